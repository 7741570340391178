from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from runner import GraphBuilder, telemetry
from runner.tracing import instrument, trace_id


@pytest.fixture
def spans():
    """Everything that is traced while the test runs."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = instrument(provider)
    yield exporter.get_finished_spans
    telemetry.detach(observer)


def ask(ctx):
    return ctx.interrupt("approval", reason={"secret": "hunter2"})


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
    assert [span.attributes["runner.outcome"] for span in (before, after)] == ["waiting", "completed"]
    assert [link.context.span_id for link in after.links] == [before.context.span_id]
    assert {f"{span.context.trace_id:032x}" for span in (before, after)} == {trace_id(question.run_id)}
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
