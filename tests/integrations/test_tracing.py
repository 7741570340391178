from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from runner import Agent, GraphBuilder, tool
from runner.execution import telemetry
from runner.execution.telemetry import trace_id
from runner.integrations.telemetry import instrument
from runner.testing import ScriptedModel

pytestmark = pytest.mark.full


@pytest.fixture
def provider():
    return TracerProvider()


@pytest.fixture
def spans(provider):
    """Everything that is traced while the test runs."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = instrument(provider)
    yield exporter.get_finished_spans
    telemetry.detach(observer)


@pytest.fixture
def tracer(provider):
    """The tracer of a program that starts runs."""
    return provider.get_tracer("shop")


def ask(ctx):
    return ctx.interrupt("approval", reason={"secret": "hunter2"})


def done(ctx):
    return "done"


def fail(ctx):
    raise ValueError("no such order")


def build(*functions):
    builder = GraphBuilder()
    builder.set_graph_id("shop")
    for function in functions:
        builder.add_node(function)
    return builder.build()


def test_the_span_after_a_wait_links_to_the_one_before(spans):
    """No span is open while a person thinks; one trace holds both executions, linked to each other."""
    graph = build(ask)
    (question,) = graph("go").interrupts
    graph([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
    before, after = spans()

    assert [span.name for span in (before, after)] == ["shop/ask", "shop/ask"]
    assert [span.attributes["runner.outcome"] for span in (before, after)] == [
        "waiting",
        "completed",
    ]
    assert [link.context.span_id for link in after.links] == [before.context.span_id]
    assert {f"{span.context.trace_id:032x}" for span in (before, after)} == {
        trace_id(question.run_id)
    }
    assert before.links == ()


def test_a_failed_node_is_an_error_with_its_exception(spans):
    """A span says that its node failed, and of what."""
    build(fail)("go")
    (span,) = spans()

    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].attributes["exception.type"] == "ValueError"
    assert span.events[0].attributes["exception.message"] == "no such order"


def test_no_data_is_recorded(spans):
    """What a question shows and what nodes give stay out of traces."""
    build(ask)("my task")
    (span,) = spans()

    assert "hunter2" not in span.to_json()
    assert "my task" not in span.to_json()


def test_no_span_names_a_parent_that_is_not_exported(spans):
    """A run that was started outside of any span is one trace of spans, and none of them is left hanging."""
    outer = GraphBuilder()
    outer.set_graph_id("outer")
    outer.add_node(build(done), "inner")
    run = outer.build()("go").run_id
    exported = {span.context.span_id for span in spans()}

    assert {span.name for span in spans()} >= {"outer/inner/done", "outer/inner"}
    assert {f"{span.context.trace_id:032x}" for span in spans()} == {trace_id(run)}
    assert {span.parent.span_id for span in spans() if span.parent} <= exported


def test_the_trace_of_the_caller_continues_in_the_run_and_its_child_runs(spans, tracer):
    """What a request starts is in the request's trace, in nested graphs, too, and after an answer."""
    outer = GraphBuilder()
    outer.set_graph_id("outer")
    outer.add_node(build(ask), "inner")
    graph = outer.build()
    with tracer.start_as_current_span("request") as request:
        (question,) = graph("go").interrupts
    graph([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])

    assert [span.name for span in spans()].count("outer/inner/ask") == 2
    assert {span.context.trace_id for span in spans()} == {request.get_span_context().trace_id}
    nodes = [span for span in spans() if span.name != "request"]
    assert {span.parent.span_id for span in nodes} == {request.get_span_context().span_id}


def test_calls_of_models_and_tools_are_spans_within_their_node(spans):
    """An agent's node shows what took its time: each model call and each tool call."""

    @tool
    def weather(city: str) -> str:
        """Look out of the window."""
        if city == "Atlantis":
            raise LookupError("it sank")
        return "sunny"

    uses = [
        {"toolUse": {"toolUseId": city, "name": "weather", "input": {"city": city}}}
        for city in ("Oslo", "Atlantis")
    ]
    model = ScriptedModel([uses, "It is sunny."])
    builder = GraphBuilder()
    builder.set_graph_id("shop")
    builder.add_node(Agent(name="forecaster", model=model, tools=[weather]), "forecast")
    builder.build()("What is the weather?")
    *inner, node = spans()

    assert node.name == "shop/forecast"
    assert sorted(span.name for span in inner) == [
        "chat ScriptedModel",
        "chat ScriptedModel",
        "execute_tool weather",
        "execute_tool weather",
    ]
    assert {span.parent.span_id for span in inner} == {node.context.span_id}
    assert {span.attributes["gen_ai.agent.name"] for span in inner} == {"forecaster"}
    errors = [
        span.attributes.get("error.type")
        for span in inner
        if span.status.status_code is StatusCode.ERROR
    ]
    assert errors == ["LookupError"]
    assert "Oslo" not in "".join(span.to_json() for span in inner)
