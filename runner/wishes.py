"""What is wanted of a moved run: where its old nodes go, which count no more, and what becomes of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from runner.errors import ConflictError, NotFoundError, UsageError
from runner.graph import HIDDEN, Topology
from runner.maps import BRACKETS, map_of
from runner.ports import RunSnapshot
from runner.run import NodeRecord, Status

WAITS = "waits"
RENEWED = "is asked under its new name"
GOES_ON = "goes on"
BEGINS = "begins"
ANEW = "begins anew"
LATER = "comes later"
DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person says of the nodes of one graph: where they go, and which of them count no more."""

    goes: Mapping[str, str] = field(default_factory=dict)
    drops: Collection[str] = ()

    def own(self) -> Wish:
        """Leave out what is said of graphs inside."""
        goes = {old: today for old, today in self.goes.items() if "/" not in old}
        return Wish(goes, [name for name in self.drops if "/" not in name])

    def check_inside(self, old: Topology) -> None:
        """Make sure that what is said of graphs inside names nodes that the graph had.

        Raises:
            NotFoundError: there was no such node.
        """
        for name in [*self.goes, *self.drops]:
            outer, inside, _ = name.partition("/")
            if inside and outer not in old.nodes:
                raise NotFoundError(
                    f"graph {old.graph_id!r} had no node {outer!r}, so {name!r} is nowhere. Nothing changed."
                )

    def inside(self, node: str, today: str) -> Wish:
        """Give what is said of the graph that a node is.

        Raises:
            UsageError: a node is to go to another graph.
        """
        here, there = f"{node}/", f"{today}/"
        goes = {old: new for old, new in self.goes.items() if old.startswith(here)}
        strays = [f"{old}={new}" for old, new in goes.items() if not new.startswith(there)]
        if strays:
            raise UsageError(
                f"{', '.join(strays)}: a node can't go to another graph; nothing was changed. Drop it, and "
                "it begins anew there."
            )
        drops = [name.removeprefix(here) for name in self.drops if name.startswith(here)]
        return Wish({old.removeprefix(here): new.removeprefix(there) for old, new in goes.items()}, drops)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a node; `unused` are the ids of its answered questions whose answers don't apply."""

    graph_id: str
    node: str
    today: str
    becomes: str
    reason: str = ""
    unused: tuple[str, ...] = ()


class Names:
    """The old names of a run's nodes, and those of today."""

    def __init__(self, snapshot: RunSnapshot, shapes: tuple[Topology, Topology], wish: Wish) -> None:
        """Take the run, its shape and today's."""
        self._snapshot, self._wish = snapshot, wish
        self._old, self._new = shapes

    def today(self, node: str) -> str:
        """Name a node as it is named now; "" for one that is gone. Items follow their map."""
        owner = map_of(node)
        if owner:
            found = self.today(owner)
            return found and found + node[len(owner) :]
        if node in self._wish.drops:
            return ""
        return self._wish.goes.get(node, node if node in self._new.nodes else "")

    def used(self) -> list[str]:
        """List the nodes that have had a visit; items of maps are not listed."""
        found = [name for name, record in self._snapshot.nodes.items() if record.visit]
        return [
            name
            for name in dict.fromkeys([*found, *(node for node, _ in self._snapshot.entries)])
            if not map_of(name)
        ]

    def check(self) -> None:
        """Make sure that each name is there, that no two meet, and that nothing is lost unsaid.

        Raises:
            NotFoundError: a node that was named is not there. UsageError: two names meet.
            ConflictError: a node that has run or waits is gone, and nobody said what becomes of it.
        """
        run_id, graph, goes = self._snapshot.record.run_id, self._new.graph_id, self._wish.goes
        both = sorted(set(goes) & set(self._wish.drops))
        if both:
            raise UsageError(
                f"{', '.join(both)} can't be another node today and count no more; nothing was changed."
            )
        for node in [*goes, *self._wish.drops]:
            if node not in self._old.nodes or node.endswith(BRACKETS):
                raise NotFoundError(f"graph {graph!r} had no node {node!r} when run {run_id} began.")
        for today in goes.values():
            if today not in self._new.nodes or today.endswith(BRACKETS):
                raise NotFoundError(f"graph {graph!r} has no node {today!r} now; nothing was changed.")
        used = self.used()
        names = [*(self.today(node) for node in used), *(n for n in used if n in self._wish.drops)]
        meet = sorted({today for node, today in goes.items() if node != today and names.count(today) > 1})
        if meet:
            raise UsageError(
                f"{', '.join(meet)} has run already in run {run_id}, or two nodes are to have that name; "
                "nothing was changed."
            )
        lost = [node for node in used if not self.today(node) and not node.startswith(HIDDEN)]
        lost = [f"{node} {self._stands(node)}" for node in lost if node not in self._wish.drops]
        if lost:
            raise ConflictError(
                f"run {run_id} can't go on with today's graph {graph!r}: {', '.join(lost)}, and there is no "
                "such node now. Nothing was changed. Say which node it is today with --map OLD=NEW, or that "
                "it counts no more with --drop OLD."
            )

    def _stands(self, node: str) -> str:
        status = self._snapshot.nodes.get(node, NodeRecord()).status
        return {Status.WAITING: "waits", Status.FAILED: "has failed"}.get(status, "has run")
