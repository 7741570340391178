"""A slow and obvious model of runs, written from the design alone, to hold the scheduler against.

It knows no counters, stamps, timers or indexes. A run is the list of what happened in it; who is
ready, what is dead, which loop begins again and which is over is worked out anew, by looking at
the whole graph, each time that somebody asks. Nothing of the library's scheduling is used here,
only the declarations of nodes and edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runner.definition.model import Definition, EdgeSpec, Join

ENTRY = -1
"""The place of an entry point's own arrival, which comes over no edge."""


class Overlap(Exception):
    """Two loops share nodes and neither holds the other, or a back edge repeats nothing."""


@dataclass(frozen=True)
class End:
    """How a visit ended: the edges (by their place in the definition) that it took, "" if it failed."""

    node: str
    visit: int
    completed: bool
    took: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Loop:
    """A header, and the nodes that are repeated with it."""

    header: str
    body: frozenset[str]


class Map:
    """A graph with its back edges and loops found by trying every path."""

    def __init__(self, definition: Definition) -> None:
        self.nodes = list(definition.nodes)
        self.edges = list(definition.edges)
        self.entries = list(definition.entries)
        self.any = {name for name, spec in definition.nodes.items() if spec.join is Join.ANY}
        self.back = {number for number, edge in enumerate(self.edges) if edge.back}
        seen: set[str] = set()
        for entry in self.entries:
            self._walk(entry, [], seen)
        self.ahead = {node: self._reach(node) for node in self.nodes}
        self.loops = self._loops()
        self.left = [self._left(edge) for edge in self.edges]
        self.into = {
            node: [number for number, edge in enumerate(self.edges) if edge.target == node]
            for node in self.nodes
        }

    def _walk(self, node: str, way: list[str], seen: set[str]) -> None:
        """Depth first: an edge to a node that is still on the way goes back."""
        if node in seen:
            return
        seen.add(node)
        for number, edge in enumerate(self.edges):
            if edge.source == node and not edge.back:
                if edge.target in [*way, node]:
                    self.back.add(number)
                else:
                    self._walk(edge.target, [*way, node], seen)

    def _reach(self, node: str) -> set[str]:
        reached = {node}
        for _ in self.nodes:
            reached |= {
                edge.target
                for number, edge in enumerate(self.edges)
                if number not in self.back and edge.source in reached
            }
        return reached

    def _loops(self) -> list[Loop]:
        """A loop is what lies between a header and a source of its back edges, and the loops in there."""
        bodies: dict[str, set[str]] = {}
        for number in self.back:
            source, header = self.edges[number].source, self.edges[number].target
            if source not in self.ahead[header]:
                raise Overlap(f"no path leads from {header} to {source}")
            between = {node for node in self.ahead[header] if source in self.ahead[node]}
            bodies.setdefault(header, set()).update(between)
        for _ in bodies:
            for body in bodies.values():
                body.update(*(bodies[header] for header in bodies.keys() & body))
        loops = [Loop(header, frozenset(body)) for header, body in bodies.items()]
        for one, other in itertools.combinations(loops, 2):
            if one.body & other.body not in (set(), one.body, other.body):
                raise Overlap(f"{one.header} and {other.header}")
        return sorted(loops, key=lambda loop: len(loop.body))

    def _left(self, edge: EdgeSpec) -> Loop | None:
        """The outermost loop that an edge leaves."""
        loops_left = [
            loop
            for loop in self.loops
            if edge.source in loop.body and edge.target not in loop.body
        ]
        return loops_left[-1] if loops_left else None


@dataclass
class Picture:
    """Where a graph stands after some visits have ended.

    `ends` has how each node ended in the present round; `opened` the visit of each node that was
    made ready and has not ended; `via` the ends that asked for that visit; `visits` how often each
    node was made ready.
    """

    map: Map
    ends: dict[str, End | None] = field(default_factory=dict)
    opened: dict[str, int] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    visits: dict[str, int] = field(default_factory=dict)
    via: dict[str, list[tuple[int, End]]] = field(default_factory=dict)
    left: dict[int, End] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    asked: dict[str, list[tuple[int, End]]] = field(default_factory=dict)
    kept: dict[str, set[int]] = field(default_factory=dict)

    def settled(self, node: str) -> bool:
        """Whether a node has come to an end in this round."""
        return node in self.skipped or self.ends.get(node) is not None

    # -- what has arrived --------------------------------------------------------------------------

    def arrival(self, number: int) -> bool | None:
        """Whether an edge has arrived live (True) or dead (False), or not yet (None)."""
        edge = self.map.edges[number]
        if number in self.map.back:
            return None
        leaves = self.map.left[number]
        if leaves is not None:
            return (
                True if number in self.left else False if leaves.header in self.over else None
            )
        if not self.settled(edge.source):
            return None
        end = self.ends.get(edge.source)
        return end is not None and end.completed and number in end.took

    def arrivals(self, node: str) -> dict[int, bool | None]:
        """What has come of all that a first visit waits for; an entry point has one live arrival."""
        into = self.map.into[node]
        states = {
            number: self.arrival(number) for number in into if number not in self.map.back
        }
        return {ENTRY: True, **states} if node in self.map.entries else states

    def inputs(self, node: str) -> list[tuple[str, int]]:
        """Name the visits whose results a node gets, in the order of its edges."""
        requests = dict(self.via.get(node, []))
        visits = []
        for number, edge in enumerate(self.map.edges):
            if edge.target == node and number in requests:
                visits.append((edge.source, requests[number].visit))
            elif edge.target == node and self.arrival(number):
                end = self.left.get(number) or self.ends[edge.source]
                visits.append((edge.source, end.visit))
        return visits

    # -- what follows ------------------------------------------------------------------------------

    def end(self, end: End) -> None:
        """A visit has ended: note its exits and its requests."""
        self.ends[end.node] = end
        self.opened.pop(end.node, None)
        for number in sorted(end.took) if end.completed else ():
            edge = self.map.edges[number]
            if number in self.map.back:
                self.asked.setdefault(edge.target, []).append((number, end))
            elif self.map.left[number] is not None:
                self.left.setdefault(number, end)

    def follow(self) -> None:
        """Look at everything until nothing changes any more."""
        while any(self._join(node) for node in self.map.nodes) or any(
            self._close_round(loop) for loop in self.map.loops
        ):
            pass

    def _join(self, node: str) -> bool:
        if node in self.opened or self.settled(node):
            return False
        arrived = self.arrivals(node)
        live = {number for number, how in arrived.items() if how}
        whole = None not in arrived.values()
        if live and (whole or (node in self.map.any and live - self.kept.get(node, set()))):
            self._open(node, [])
        elif whole and not live:
            self.skipped.add(node)
        else:
            return False
        return True

    def _open(self, node: str, via: list[tuple[int, End]]) -> None:
        self.visits[node] = self.opened[node] = self.visits.get(node, 0) + 1
        self.via[node] = via

    def _close_round(self, loop: Loop) -> bool:
        """A loop whose nodes have all settled begins again when it was asked to, or is over."""
        inner = [other for other in self.map.loops if other.body < loop.body]
        if loop.header in self.over or not all(self.settled(node) for node in loop.body):
            return False
        if not all(other.header in self.over for other in inner):
            return False
        requests = self.asked.pop(loop.header, [])
        if requests and not any(
            self.asked.get(other.header) for other in self.map.loops if loop.body < other.body
        ):
            self._again(loop, inner)
            self._open(loop.header, requests)
        else:
            self.over.add(loop.header)
        return True

    def _again(self, loop: Loop, inner: Sequence[Loop]) -> None:
        """Forget what happened inside of a loop; what came from outside is kept."""
        for node in loop.body:
            # What came in an earlier round is not what an any-join of this round waits for.
            self.kept[node] = {
                number
                for number, how in self.arrivals(node).items()
                if how is not None
                and (number == ENTRY or self.map.edges[number].source not in loop.body)
            }
        for node in loop.body:
            self.ends[node] = None
            self.skipped.discard(node)
        for number in list(self.left):
            if (
                self.map.edges[number].target in loop.body
                and self.map.edges[number].source in loop.body
            ):
                del self.left[number]
        for loop_inside in inner:
            self.over.discard(loop_inside.header)
            self.asked.pop(loop_inside.header, None)


def picture(graph: Map, ends: Iterable[End]) -> Picture:
    """Work out where a graph stands from nothing but the visits that have ended."""
    drawing = Picture(graph)
    drawing.follow()
    for end in ends:
        drawing.end(end)
        drawing.follow()
    return drawing
