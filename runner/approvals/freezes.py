"""Freezes: effects that an operator has stopped, of a graph, of a tool or all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runner.approvals.rules import plain_name
from runner.errors import UsageError
from runner.records import validation

ALL = "all"


@dataclass(frozen=True, slots=True)
class Freeze:
    """A freeze of "all", "graph:<graph>" or "tool:<tool>"; why, by whom and since when (ms)."""

    scope: str
    reason: str
    by: str = ""
    at: int = 0

    def __str__(self) -> str:
        """Say it in one line."""
        by_whom = f" by {plain_name(self.by)}" if self.by else ""
        return f"{self.scope} is frozen{by_whom}: {validation.one_line(self.reason)}"


def scope_of(graph: str = "", tool: str = "", *, everything: bool = False) -> str:
    """Name what is to be frozen.

    Raises:
        UsageError: it is not one of the three.
    """
    if sum(map(bool, (graph, tool, everything))) != 1:
        raise UsageError("name one of a graph, a tool, or all.")
    if everything:
        return ALL
    return (
        f"graph:{validation.checked(graph, 'the graph')}"
        if graph
        else (f"tool:{validation.checked(tool, 'the tool')}")
    )


def frozen(
    freezes: Mapping[str, Freeze], graph: str = "", tool: str = "", names: Iterable[str] = ()
) -> Freeze | None:
    """Return what keeps a node of a graph, or a call of a tool in one, from running; None if nothing does.

    A graph's freeze holds for the graphs inside it, too. `graph` may be the path of a nested one: any part
    of it counts. `names` are further names of the graphs on it: see `Registry.names_on`.
    """
    if not freezes:
        return None
    scopes = [ALL, *(f"graph:{name}" for name in (*parts_of(graph), *names))]
    if tool:
        scopes.append(f"tool:{tool}")
    return next((freezes[scope] for scope in scopes if scope in freezes), None)


def parts_of(path: str) -> list[str]:
    """Return the names in the path of a graph and the paths that it begins with: of "a/b" a, b and a/b."""
    names = path.split("/") if path else []
    return [*names, *("/".join(names[:end]) for end in range(2, len(names) + 1))]
