"""Freezes: an operator has stopped the effects of a graph, of a tool, or all effects."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar

from runner.approvals.rules import plain_name
from runner.errors import EffectsFrozen, StoreError, UsageError
from runner.immutable import immutable
from runner.records import validation

log = logging.getLogger(__name__)

ALL = "all"

LOOK_EVERY = 5.0
"""Seconds between two reads by a working process; a freeze may take this long to hold everywhere."""

WAIT_MS = 15_000
"""Milliseconds for which a node that met a frozen tool waits before it checks again."""


@immutable
class Freeze:
    """A freeze of "all", "graph:<graph>" or "tool:<tool>", with its reason, author and beginning (ms)."""

    scope: str
    reason: str
    by: str = ""
    at: int = 0

    def __str__(self) -> str:
        """Describe the freeze in one line."""
        by_whom = f" by {plain_name(self.by)}" if self.by else ""
        return f"{self.scope} is frozen{by_whom}: {validation.one_line(self.reason)}"


def scope_of(graph: str = "", tool: str = "", *, everything: bool = False) -> str:
    """Name the scope of a freeze.

    Raises:
        UsageError: the arguments don't name exactly one of the three.
    """
    if sum(map(bool, (graph, tool, everything))) != 1:
        raise UsageError("name one of a graph, a tool, or all.")
    if everything:
        return ALL
    if graph:
        return f"graph:{validation.checked(graph, 'the graph')}"
    return f"tool:{validation.checked(tool, 'the tool')}"


def scope_named(kind: str, name: str) -> str:
    """Name the scope of a freeze by its kind, "all", "graph" or "tool"; raises as `scope_of` does."""
    graph, tool = (name if kind == each else "" for each in ("graph", "tool"))
    return scope_of(graph, tool, everything=kind == ALL)


def frozen(
    freezes: Mapping[str, Freeze], graph: str = "", tool: str = "", names: Iterable[str] = ()
) -> Freeze | None:
    """Return the freeze that stops a node of a graph, or a call of a tool in one; None without one.

    A graph's freeze also holds for the graphs inside it. `graph` may be the path of a nested graph:
    any part of it counts. `names` are further names of the graphs on it: see `Registry.names_on`.
    """
    if not freezes:
        return None
    scopes = [ALL, *(f"graph:{name}" for name in (*parts_of(graph), *names))]
    if tool:
        scopes.append(f"tool:{tool}")
    return next((freezes[scope] for scope in scopes if scope in freezes), None)


def parts_of(path: str) -> list[str]:
    """Return the names in a graph's path and the paths that it begins with: for "a/b" a, b and a/b."""
    names = path.split("/") if path else []
    return [*names, *("/".join(names[:end]) for end in range(2, len(names) + 1))]


_check_of_node: ContextVar[Callable[[str], None]] = ContextVar(
    "runner_freezes", default=lambda _: None
)


def check_by(check: Callable[[str], None]) -> None:
    """Have `check` refuse frozen tools of all agents in this context, including graphs that a node calls."""
    outer = _check_of_node.get()

    def both(tool: str) -> None:
        outer(tool)
        check(tool)

    _check_of_node.set(both)


def check_tool(tool: str) -> None:
    """Stop before a call of a tool that is frozen for the running node; outside of nodes, no tool is frozen.

    Raises:
        EffectsFrozen: the tool is frozen.
    """
    _check_of_node.get()(tool)


class Freezes:
    """Cache of freezes. Thread-safe; it reads every few seconds while there is work, and never without."""

    def __init__(
        self,
        read_freezes: Callable[[], Mapping[str, Freeze]],
        names: Callable[[str], Iterable[str]] = lambda _: (),
    ) -> None:
        """Prepare the cache without reading. `names` returns further names of the graphs on a path."""
        self._read = read_freezes
        self._names = names
        self._due = 0.0
        self._known: Mapping[str, Freeze] = {}

    def refresh(self) -> None:
        """Read the freezes now; if the store can't be reached, the last ones read stay valid."""
        self._due = time.monotonic() + LOOK_EVERY
        try:
            self._known = self._read()
        except StoreError as error:
            log.info("freeze.unread: %s The freezes that were read last apply.", error)

    def of(self, graph: str, tool: str = "") -> Freeze | None:
        """Return the freeze that stops a node of a graph, or a call of a tool there.

        A freeze found in the cache is read again: after a thaw the doorbell rings at once, and a
        process that still believed in the freeze would ignore it.
        """
        active_freezes = self.known
        if not active_freezes:
            return None
        names = self._names(graph)
        freeze = frozen(active_freezes, graph, tool, names)
        if freeze is not None:
            self.refresh()
            freeze = frozen(self._known, graph, tool, names)
        return freeze

    @property
    def known(self) -> Mapping[str, Freeze]:
        """All freezes, by scope."""
        if time.monotonic() >= self._due:
            self.refresh()
        return self._known

    def check(self, graph: str, tool: str = "") -> None:
        """Stop before an effect that is frozen.

        Raises:
            EffectsFrozen: the effect is frozen; the node is tried again later.
        """
        freeze = self.of(graph, tool)
        if freeze is not None:
            raise EffectsFrozen(str(freeze))
