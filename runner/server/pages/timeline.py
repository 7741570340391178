"""Time of a run's nodes by phase: queued, running, waiting for people, for a retry or for a limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from runner.definition.model import map_of
from runner.immutable import immutable
from runner.records.run import PATH
from runner.server.pages.rendering import span
from runner.store.interface import Event

WIDTH = 1000.0
"""Units of a row's bar; the page stretches it."""

LEAST = 4.0
"""Units of the shortest phase, so that it can be seen."""

ACTIVE = {"queued", "running"}
"""The phases in which a run goes on."""

WORDS = {
    "queued": "queued",
    "running": "ran",
    "waiting": "waited for people",
    "retry": "waited for a retry",
    "limit": "waited for a limit",
    "inside": "waited for what is inside",
    "held": "held",
}

NEXT = {
    "node.started": "running",
    "node.waiting": "waiting",
    "node.resumed": "queued",
    "node.limited": "limit",
    "node.expanded": "inside",
    "node.held": "held",
    "node.released": "queued",
    "node.lost": "queued",
    "node.left": "queued",
}
"""The phase that begins with an event; `node.retrying` begins two."""

ENDS = {"node.completed", "node.failed", "node.skipped", "node.cancelled"}


@immutable
class NodePhase:
    """A phase of a node, with start and end in ms."""

    kind: str
    start: int
    end: int


@immutable
class Bar:
    """One phase as a rectangle of a row `WIDTH` wide, and in words."""

    kind: str
    x: float
    width: float
    words: str


@immutable
class TimelineRow:
    """Phases of a node: as bars, and in words by kind."""

    bars: tuple[Bar, ...]
    words: str


def phases(
    events: Iterable[Event], begun: int, now: int, before: Callable[[str], Sequence[str]]
) -> dict[str, list[NodePhase]]:
    """Derive the phases of each node from the events of a run.

    A node is queued from the end of the last node `before` it until it starts; a first node is queued from
    the start of the node around it, or of the run.
    """
    ends: dict[str, int] = {}
    starts: dict[str, int] = {}
    present: dict[str, tuple[str, int]] = {}
    phases: dict[str, list[NodePhase]] = {}

    def end(node: str, at: int) -> None:
        if node in present:
            kind, since = present.pop(node)
            phases.setdefault(node, []).append(NodePhase(kind, since, max(at, since)))

    for event in events:
        node = event.node
        at = event.at
        if event.kind == "node.started" and node not in present:
            outer = map_of(node) or node.rpartition(PATH)[0]
            earliest = starts.get(outer, begun)
            ready = max((ends[name] for name in before(node) if name in ends), default=earliest)
            present[node] = ("queued", min(max(ready, earliest), at))
            starts[node] = at
            if present.get(outer, ("", 0))[0] == "running":
                end(outer, at)
                present[outer] = ("inside", at)
        if event.kind in NEXT:
            end(node, at)
            present[node] = (NEXT[event.kind], at)
        elif event.kind == "node.retrying":
            end(node, at)
            due = at + int(event.detail or 0)
            phases.setdefault(node, []).append(NodePhase("retry", at, min(due, now)))
            present[node] = ("queued", min(due, now))
        elif event.kind in ENDS:
            end(node, at)
            ends[node] = at
    for node in list(present):
        end(node, now)
    return phases


def rows(
    phases: Mapping[str, Sequence[NodePhase]], begun: int, now: int
) -> tuple[dict[str, TimelineRow], int]:
    """Lay out the phases of each node on one scale; return also by how many ms it is shortened.

    All time in which no node is queued or runs is together at most as long as the other time.
    """
    active = sorted(
        (phase.start, phase.end)
        for node_phases in phases.values()
        for phase in node_phases
        if phase.kind in ACTIVE
    )
    gaps = list[tuple[int, int]]()
    until = begun
    for start, end in [*active, (now, now)]:
        gaps += [(until, start)] * (start > until)
        until = max(until, end)
    sums = [0, *accumulate(end - start for start, end in gaps)]
    idle = sums[-1]
    cut = max(0.0, 1 - (now - begun - idle) / idle) if active and idle else 0.0

    def position(at: int) -> float:
        """Return the ms of the scale at a time."""
        number = bisect_left(gaps, (at, at))
        ahead = max(0, gaps[number - 1][1] - at) if number else 0
        return at - begun - cut * (sums[number] - ahead)

    scale = WIDTH / max(1.0, position(now))
    laid_out = {
        node: TimelineRow(
            tuple(_bars(node_phases, position, scale)), ", ".join(_totals(node_phases))
        )
        for node, node_phases in phases.items()
    }
    return laid_out, round(cut * idle)


def _bars(
    node_phases: Iterable[NodePhase], position: Callable[[int], float], scale: float
) -> Iterator[Bar]:
    for phase in node_phases:
        start = position(phase.start) * scale
        width = max(LEAST, (position(phase.end) * scale) - start)
        title = f"{WORDS[phase.kind]} {span(phase.end - phase.start)}"
        x = max(0.0, min(start, WIDTH - width))
        yield Bar(phase.kind, round(x, 1), round(width, 1), title)


def _totals(node_phases: Iterable[NodePhase]) -> Iterator[str]:
    totals: dict[str, int] = {}
    for phase in node_phases:
        totals[phase.kind] = totals.get(phase.kind, 0) + phase.end - phase.start
    return (
        f"{WORDS[kind]} {span(total)}"
        for kind, total in totals.items()
        if total or kind != "queued"
    )
