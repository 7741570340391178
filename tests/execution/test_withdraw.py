"""A question that is taken back, in all that can ask one."""

from __future__ import annotations

import pytest

from runner import Agent, RetryPolicy, tool
from runner.errors import ConflictError, InterruptWithdrawn, NotFoundError
from runner.hooks import AfterNodeCallEvent, BeforeModelCallEvent, BeforeNodeCallEvent
from runner.testing import ScriptedModel
from tests.client.test_client import ask, office
from tests.graphs import single, wired


def asks(event_type):
    """Give a hook provider that asks at an event."""

    class Provider:
        def register_hooks(self, registry, **kwargs):
            registry.add_callback(event_type, lambda event: event.interrupt("ok?"))

    return Provider()


@tool(context=True)
def careful(tool_context):
    """Ask first."""
    return f"said {tool_context.interrupt('ok?')}"


def said(messages):
    return messages[-1]["content"][0]["toolResult"]["content"][0]["text"]


def with_tool():
    """Give an agent whose tool asks."""
    model = ScriptedModel([{"toolUse": {"name": "careful"}}, said])
    return single(Agent(name="a", model=model, tools=[careful]))


def with_agent_hook():
    """Give an agent with a hook that asks."""
    return single(
        Agent(name="a", model=ScriptedModel(["done"]), hooks=[asks(BeforeModelCallEvent)])
    )


def with_node_hook(event_type):
    """Give a graph with a hook that asks around its node."""
    builder = wired({"a": lambda ctx: "done"})
    builder.set_hook_providers([asks(event_type)])
    return builder.build()


GRAPHS = {
    "function": lambda: single(ask),
    "tool": with_tool,
    "agent hook": with_agent_hook,
    "before node": lambda: with_node_hook(BeforeNodeCallEvent),
    "after node": lambda: with_node_hook(AfterNodeCallEvent),
}


@pytest.mark.full
@pytest.mark.parametrize("who", GRAPHS)
def test_a_question_is_asked_anew(who):
    """Whoever asked asks a new question; the old one takes no answer, the new one does."""
    client, bench = office(GRAPHS[who]())
    run = client.start("bench", "task")
    bench.finish_all()
    (old,) = run.interrupts()

    client.withdraw(old.id, "wrong person", reask=True)
    bench.finish_all()

    (new,) = run.interrupts()
    assert (new.name, new.reason, new.id != old.id) == (old.name, old.reason, True)
    assert client.respond(old.id, "late").status == "superseded"
    assert client.respond(new.id, "yes").status == "accepted"
    bench.finish_all()
    assert run.status == "completed"


@pytest.mark.parametrize("who", sorted(GRAPHS.keys() - {"tool"}))
def test_a_question_that_is_gone_fails_its_node(who):
    """Without asking anew the node fails with the reason."""
    client, bench = office(GRAPHS[who]())
    run = client.start("bench", "task")
    bench.finish_all()

    client.withdraw(run.interrupts()[0].id, "not needed")
    bench.finish_all()

    result = run.result()
    assert result.status == "failed"
    assert isinstance(result.results["a"].result, InterruptWithdrawn)
    assert "not needed" in str(result.results["a"].result)


def test_a_tool_tells_the_model_that_its_question_is_gone():
    """As with other errors of a tool, the model is told."""
    client, bench = office(with_tool())
    run = client.start("bench", "task")
    bench.finish_all()

    client.withdraw(run.interrupts()[0].id, "not needed")
    bench.finish_all()

    assert "InterruptWithdrawn" in run.result().results["a"].output


def test_code_may_catch_it():
    """A function that catches the error goes on without an answer."""

    def tolerant(ctx):
        try:
            return ctx.interrupt("ok?")
        except InterruptWithdrawn as error:
            return f"went on: {error}"

    client, bench = office(single(tolerant))
    run = client.start("bench", "task")
    bench.finish_all()
    client.withdraw(run.interrupts()[0].id, "not needed")
    bench.finish_all()

    assert (
        run.result().results["a"].output
        == "went on: the question 'ok?' was withdrawn: not needed."
    )


def test_a_later_attempt_asks_anew(in_redis):
    """A retry, by policy or in place, asks a new question instead of failing of the old one again."""
    client, bench = office(
        single(ask, retry=RetryPolicy(max_attempts=2, backoff=0.0)), in_redis
    )
    run = client.start("bench", "task")
    bench.finish_all()
    (first,) = run.interrupts()
    client.withdraw(first.id)
    bench.finish_all()
    bench.later(1)
    bench.finish_all()
    (second,) = run.interrupts()
    client.withdraw(second.id)
    bench.finish_all()
    assert run.status == "failed"

    run.retry()
    bench.finish_all()

    (third,) = run.interrupts()
    assert len({first.id, second.id, third.id}) == 3
    client.respond(third.id, "yes")
    bench.finish_all()
    assert run.result().results["a"].output == "yes"


@pytest.mark.full
def test_what_is_not_open_can_not_be_withdrawn():
    """Nothing changes, and the caller is told why."""
    client, bench = office(single(ask))
    run = client.start("bench", "task")
    bench.finish_all()
    (question,) = run.interrupts()
    client.respond(question.id, "yes")

    with pytest.raises(ConflictError, match="not open any more"):
        client.withdraw(question.id)
    with pytest.raises(NotFoundError):
        client.withdraw("00none.a.1.abc")
