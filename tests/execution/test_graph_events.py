"""The events before and after a graph: they ask, wait and go on like nodes, and stay out of sight."""

from __future__ import annotations

import pytest

from runner import GraphBuilder, Status
from runner.definition.registry import Registry
from runner.errors import DefinitionError
from runner.hooks import AfterGraphEvent, BeforeGraphEvent


class Provider:
    """Registers the callbacks that a test gives it."""

    def __init__(self, **callbacks):
        self.callbacks = callbacks

    def register_hooks(self, registry, **_):
        for name, callback in self.callbacks.items():
            registry.add_callback(
                {"before": BeforeGraphEvent, "after": AfterGraphEvent}[name], callback
            )


def echo(ctx):
    return {"task": ctx.task, "inputs": ctx.inputs}


def broken(_):
    raise ValueError("broken")


def build(*nodes, **callbacks):
    builder = GraphBuilder()
    for name, node in zip("abc", nodes, strict=False):
        builder.add_node(node, name)
    for first, second in zip("abc"[: len(nodes)], "abc"[1 : len(nodes)], strict=False):
        builder.add_edge(first, second)
    return builder.set_hook_providers([Provider(**callbacks)])


def answer(result, response):
    return [
        {"interruptResponse": {"interruptId": interrupt.id, "response": response}}
        for interrupt in result.interrupts
    ]


def test_before_graph_asks_ahead_of_every_node():
    """No node runs before the event's question is answered, and the nodes see nothing of the event."""
    seen = []
    graph = build(
        echo, echo, before=lambda event: seen.append((event.task, event.interrupt("go")))
    ).build()

    first = graph("task")

    assert first.status is Status.INTERRUPTED
    assert ([interrupt.name for interrupt in first.interrupts], first.execution_order) == (
        ["go"],
        [],
    )
    second = graph(answer(first, "yes"))
    assert (second.status, second.execution_order) == (Status.COMPLETED, ["a", "b"])
    assert list(second.results) == ["a", "b"]
    assert second.results["a"].output == {"task": "task", "inputs": {}}
    assert seen == [("task", "yes")]


def test_a_built_graph_takes_callbacks_for_its_next_run():
    """They are called after those of the providers, and in the run that a registered graph starts, too."""
    called = []
    graph = build(echo, before=lambda event: called.append("provider")).build()
    graph("first")
    graph.add_hook(lambda event: called.append("before"), BeforeGraphEvent)
    graph.hooks.add_callback(AfterGraphEvent, lambda event: called.append("after"))
    graph("second")

    assert called == ["provider", "provider", "before", "after"]
    registry = Registry()
    registry.add("late", lambda: graph)
    assert list(registry.find("late").definition.nodes) == ["@before", "a", "@after"]


def test_after_graph_sees_the_result_and_keeps_the_run_open():
    """The event shows how the run will end; while it asks the run waits, and no node runs again."""
    seen = []

    def after(event):
        seen.append((event.result.status, event.result.execution_order, event.is_replay))
        event.interrupt("really")

    graph = build(echo, echo, after=after).build()

    first = graph("task")

    assert first.status is Status.INTERRUPTED
    assert [interrupt.name for interrupt in first.interrupts] == ["really"]
    second = graph(answer(first, "yes"))
    assert (second.status, second.execution_order) == (Status.COMPLETED, ["a", "b"])
    assert seen == [(Status.COMPLETED, ["a", "b"], False), (Status.COMPLETED, ["a", "b"], True)]


def test_after_graph_fires_for_a_failed_run_but_cannot_hold_it():
    """A run that fails still fires its last event; what that asks is withdrawn and the run ends."""
    seen = []

    def after(event):
        seen.append(event.result.status)
        event.interrupt("again")

    result = build(broken, after=after).build()("task")

    assert (result.status, result.interrupts, seen) == (Status.FAILED, [], [Status.FAILED])
    assert list(result.results) == ["a"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_in_a_callback_fails_the_run(when):
    """What a callback raises is the run's failure, with the error where it can be read."""
    result = build(echo, **{when: broken}).build()("task")

    assert result.status is Status.FAILED
    assert str(result.results[f"@{when}"].result) == "broken"


def test_events_count_as_no_execution():
    """The limit on node executions is for the user's nodes alone."""
    graph = build(echo, echo, before=lambda _: None, after=lambda _: None)

    assert graph.set_max_node_executions(2).build()("task").status is Status.COMPLETED


def test_ids_of_events_are_reserved():
    """A node can't take the name of an event."""
    with pytest.raises(DefinitionError, match="beginning with '@'"):
        GraphBuilder().add_node(echo, "@before")
