"""What the nodes of a run spent their time on, derived from its events."""

from __future__ import annotations

from runner.server.pages.timeline import NodePhase, phases, rows
from runner.store.interface import Event


def events(*rows):
    return [
        Event(str(number), kind, at, node, 1, detail)
        for number, (at, kind, node, detail) in enumerate(rows)
    ]


def spent(*rows, now=1_000, before=()):
    upstream = dict(before)
    return phases(events(*rows), 0, now, lambda node: upstream.get(node, []))


def test_a_node_is_queued_from_the_end_of_the_one_before():
    """The first node from the run's beginning, the next from the end of the first."""
    phases = spent(
        (5, "node.started", "a", "1"),
        (20, "node.completed", "a", ""),
        (50, "node.started", "b", "1"),
        (60, "node.failed", "b", ""),
        before=[("b", ["a"])],
    )

    assert phases["a"] == [NodePhase("queued", 0, 5), NodePhase("running", 5, 20)]
    assert phases["b"] == [NodePhase("queued", 20, 50), NodePhase("running", 50, 60)]


def test_waits_for_people_retries_and_limits_are_told_apart():
    """What is still going on ends now."""
    asked = spent(
        (0, "node.started", "a", "1"),
        (10, "node.waiting", "a", ""),
        (400, "node.resumed", "a", ""),
        (410, "node.started", "a", "1"),
        (420, "node.retrying", "a", "300"),
        (730, "node.limited", "a", "50"),
        (780, "node.started", "a", "2"),
    )["a"]

    assert [(phase.kind, phase.end - phase.start) for phase in asked[1:]] == [
        ("running", 10),
        ("waiting", 390),
        ("queued", 10),
        ("running", 10),
        ("retry", 300),
        ("queued", 10),
        ("limit", 50),
        ("running", 220),
    ]


def test_a_graph_inside_and_a_map_wait_for_what_is_in_them():
    """Their own code has run; what is inside is queued from their start."""
    phases = spent(
        (10, "node.started", "inner", "1"),
        (30, "node.started", "inner/x", "1"),
        (40, "node.completed", "inner/x", ""),
        (10, "node.started", "each", "1"),
        (15, "node.expanded", "each", "1"),
        (18, "node.started", "each[0]", "1"),
        (20, "node.completed", "each[0]", ""),
        (25, "node.completed", "each", ""),
        now=50,
    )

    assert [phase.kind for phase in phases["inner"]] == ["queued", "running", "inside"]
    assert phases["inner/x"][0] == NodePhase("queued", 10, 30)
    assert [phase.kind for phase in phases["each"]] == ["queued", "running", "inside"]
    assert phases["each[0]"][0] == NodePhase("queued", 10, 18)


def test_rows_share_one_scale():
    """Each phase has its place on it, the shortest can be seen, and the words add them up."""
    laid_out, shortened = rows(
        {
            "a": [
                NodePhase("queued", 0, 0),
                NodePhase("running", 0, 1),
                NodePhase("waiting", 1, 2_000),
            ]
        },
        0,
        2_000,
    )
    (row,) = laid_out.values()

    # Two seconds in which nothing runs are as long as the millisecond of work.
    assert [(bar.kind, bar.x, bar.width) for bar in row.bars][1:] == [
        ("running", 0, 500),
        ("waiting", 500, 500),
    ]
    assert shortened == 1_998
    assert row.words == "ran 1 ms, waited for people 2.0 s"
