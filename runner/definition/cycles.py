"""The cycles of a graph: its back edges, and the loops that they close.

See docs/decisions/0002-loops.md. In a depth-first search from the entry points in insertion order,
an edge to a node on the stack is a back edge; its target is the loop's header. The loop is every
node on forward paths from the header to a source of its back edges, and the loops of any headers
among them. Loops nest; an edge that leaves loops belongs to the outermost loop that it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runner.definition.model import EdgeSpec
from runner.errors import DefinitionError


def back_edges(
    nodes: Sequence[str], entries: Sequence[str], edges: Sequence[EdgeSpec]
) -> set[int]:
    """Find the indexes of the edges that close a cycle, depth first without recursion."""
    leaving: dict[str, list[tuple[int, str]]] = {node: [] for node in nodes}
    back = set()
    for index, edge in enumerate(edges):
        if edge.back:
            back.add(index)
        else:
            leaving[edge.source].append((index, edge.target))
    visited: set[str] = set()
    for start in (*entries, *nodes):
        _search(start, leaving, visited, back)
    return back


def _search(
    start: str,
    leaving: Mapping[str, list[tuple[int, str]]],
    visited: set[str],
    back: set[int],
) -> None:
    if start in visited:
        return
    open_nodes = {start}
    stack = [(start, iter(leaving[start]))]
    while stack:
        node, edges = stack[-1]
        for index, target in edges:
            if target in open_nodes:
                back.add(index)
            elif target not in visited:
                open_nodes.add(target)
                stack.append((target, iter(leaving[target])))
                break
        else:
            stack.pop()
            open_nodes.discard(node)
            visited.add(node)


def loops(
    nodes: Sequence[str], edges: Sequence[EdgeSpec], back: set[int]
) -> list[tuple[str, set[str]]]:
    """Collect the loops, smallest first: each header with the nodes of its loop.

    Raises:
        DefinitionError: two loops overlap and neither contains the other, or an edge repeats
            nothing.
    """
    sources: dict[str, list[str]] = {}
    forward: dict[str, list[str]] = {node: [] for node in nodes}
    backward: dict[str, list[str]] = {node: [] for node in nodes}
    for index, edge in enumerate(edges):
        if index in back:
            sources.setdefault(edge.target, []).append(edge.source)
        else:
            forward[edge.source].append(edge.target)
            backward[edge.target].append(edge.source)
    bodies = {}
    for header, ends in sources.items():
        ahead = reach([header], forward)
        if lost := sorted(set(ends) - ahead):
            raise DefinitionError(
                f"the edge from {lost[0]!r} back to {header!r} repeats nothing: no path leads from "
                f"{header!r} to {lost[0]!r}; remove its back=True."
            )
        bodies[header] = ahead & reach(ends, backward)
    _close(bodies)
    by_size = sorted(bodies.items(), key=lambda item: len(item[1]))
    for i, (header, body) in enumerate(by_size):
        for second, larger in by_size[i + 1 :]:
            if body & larger and not body <= larger:
                raise DefinitionError(
                    f"the loops that start at {header!r} and {second!r} overlap without one holding the "
                    "other; remove back=True from one of their edges, or give them one common header."
                )
    return by_size


def _close(bodies: dict[str, set[str]]) -> None:
    """Extend each loop by the nodes of every loop whose header it contains."""
    growing = True
    while growing:
        growing = False
        for body in bodies.values():
            for inner in [node for node in body if node in bodies]:
                if not bodies[inner] <= body:
                    body.update(bodies[inner])
                    growing = True


def reach(starts: Iterable[str], edges: Mapping[str, Iterable[str]]) -> set[str]:
    """Collect every node that can be reached from `starts`, including these."""
    nodes = set(starts)
    todo = list(starts)
    while todo:
        for target in edges[todo.pop()]:
            if target not in nodes:
                nodes.add(target)
                todo.append(target)
    return nodes
