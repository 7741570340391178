"""The page about run events says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner import GraphBuilder, RetryPolicy
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.records.run import EventKind
from runner.records.size_limits import MAX_EVENT
from runner.store.apply_transition import SHORT
from tests.graphs import Bench, single, wired

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "run-events.md").read_text(
    encoding="utf-8"
)
ROWS = {
    kind: (detail.strip(), set(re.findall(r"`(\w+)`", data)))
    for kind, _, detail, data in re.findall(
        r"^\| `([\w.]+)` \|([^|]*)\|([^|]*)\|([^|]*)\|$", PAGE, re.MULTILINE
    )
}


def test_every_kind_has_its_row():
    """The table lists the kinds of event, no more and no less, in the order of the code."""
    assert list(ROWS) == [str(kind) for kind in EventKind]
    assert f"more than {SHORT:,} bytes" in PAGE


@pytest.fixture
def story():
    """All that happens in a run that asks, fails, tries again, skips and has a graph inside."""

    def flaky(ctx):
        if ctx.attempt == 1:
            raise ValueError("not yet")
        ctx.progress(0.5, "half")
        return ctx.interrupt("ok?", {"sum": 5}, assignees=["ann"])

    inner = GraphBuilder()
    inner.add_node(flaky, "flaky", retry=RetryPolicy(max_attempts=2, backoff=0, jitter=0))
    graph = wired(
        {"inner": inner.build(), "never": lambda ctx: 1}, ("inner never", lambda state: False)
    ).build()
    bench = Bench(graph).start()
    bench.finish()
    bench.later(1)
    bench.finish()
    (question,) = bench.result().interrupts
    apply_decisions(bench.engine, [Decision(question.id, "yes", "ann")])
    bench.finish()
    return list(bench.store.events(bench.run_id))


def test_an_event_has_what_its_row_says(story):
    """An event's data has the keys that its row names, and it has a detail where its row has one."""
    for event in story:
        detail, keys = ROWS[event.kind]
        assert bool(event.detail) == bool(detail), event
        if keys and event.data is not None:
            assert set(event.data) <= keys, event


def test_what_a_node_tells_is_bounded():
    """Of more than a stream should hold only the size is told."""
    bench = Bench(single(lambda ctx: ctx.progress(0.5, "x" * MAX_EVENT))).start()
    bench.finish()

    (event_data,) = [
        event.data for event in bench.store.events(bench.run_id) if event.kind == "progress"
    ]
    assert (list(event_data), event_data["left_out"] > MAX_EVENT) == (["left_out"], True)
    assert f"more than {MAX_EVENT:,} bytes" in PAGE


def test_what_happens_inside_is_told_with_the_way(story):
    """Progress, retries, questions and answers of a graph inside are the run's own events."""
    inside = {event.kind for event in story if event.node == "inner/flaky"}

    assert inside >= {
        "progress",
        "node.retrying",
        "interrupt.asked",
        "interrupt.answered",
        "node.completed",
    }
    assert [event.kind for event in story][-3:] == [
        "node.completed",
        "node.skipped",
        "run.ended",
    ]
