"""One node fails. Whether the others go on is the graph's decision."""

from __future__ import annotations

from runner import GraphBuilder


def broken(ctx):
    raise RuntimeError("no connection")


def ask(ctx):
    return ctx.interrupt("ok?")


def builder():
    made = GraphBuilder()
    made.add_node(broken)
    made.add_node(lambda ctx: "never", "after")
    made.add_node(ask)
    made.add_edge("broken", "after")
    return made.set_entry_point("broken").set_entry_point("ask")


def test_a_failure_stops_the_run():
    """By default a failed node stops everything: what waits is cancelled, and its question withdrawn."""
    result = builder().build()("task")

    assert (result.status, result.reason) == ("failed", 'node "broken" failed')
    assert result.interrupts == []
    assert "after" not in result.results


def test_a_failure_may_stay_in_its_branch():
    """With `continue` only what depends on the failed node is skipped; questions can still be answered."""
    graph = builder().set_failure_policy("continue").build()
    first = graph("task")
    last = graph(
        [{"interruptResponse": {"interruptId": first.interrupts[0].id, "response": "yes"}}]
    )

    assert first.status == "interrupted"
    assert last.status == "failed"
    assert {node: str(result.status) for node, result in last.results.items()} == {
        "broken": "failed",
        "after": "skipped",
        "ask": "completed",
    }
