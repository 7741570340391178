"""Maps in the slow model, written from `docs/decisions/0007-maps.md`: a node whose items do its work.

An item is a visit like any other, in the run of its map. No place is counted: whenever something has
happened, every map looks at all of its items, begins those that there is room for, and is ready when
all have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.definition.model import MapSpec
from tests.properties.reference_runs import Run, Visit, World

AT_WORK = ("ready", "running", "retrying")
ENDED = ("completed", "failed", "cancelled")


@dataclass
class Items:
    """The list of one visit of a map; the first `begun` of it have had their turn."""

    values: Sequence[str]
    begun: int = 0
    stopped: bool = False


class MapWorld(World):
    """Runs in which nodes may be maps."""

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.lists: dict[tuple[str, str, int], Items] = {}

    # -- what is asked -----------------------------------------------------------------------------

    def spec(self, run: Run, node: str) -> MapSpec | None:
        """What the graph says of a map; None for an item, and for a node that is no map."""
        declared = run.definition.nodes.get(node)
        return declared.map if declared else None

    def list_of(self, run: Run, visit: Visit) -> Items | None:
        """The list that a map's visit has, or that an item is of."""
        return self.lists.get((run.id, visit.owner, visit.number))

    def items(self, run: Run, visit: Visit) -> list[Visit]:
        """The items of a map's visit that have been ready, in the order of the list."""
        values = self.list_of(run, visit)
        names = (
            [f"{visit.owner}[{place}]" for place in range(len(values.values))] if values else []
        )
        return [
            run.visits[name, visit.number]
            for name in names
            if (name, visit.number) in run.visits
        ]

    def has_a_place(self, item: Visit) -> bool:
        """Whether an item is at work: one that waits for a person is not, one whose child works is."""
        if item.status == "waiting" and item.child:
            return self.status(self.runs[item.child]) == "executing"
        return item.status in AT_WORK

    def stops(self, run: Run, visit: Visit) -> bool:
        """An item of a map that has stopped may only end, too."""
        return super().stops(run, visit) or (visit.is_item and self.list_of(run, visit).stopped)

    def nodes(self, run: Run) -> dict[str, tuple[str, int]]:
        """Say where the items of the present round stand, too."""
        positions = super().nodes(run)
        for node in run.shape.nodes:
            visit = run.now(node)
            for item in self.items(run, visit) if visit else ():
                positions[item.node] = (item.status, item.number)
        return positions

    # -- what is done ------------------------------------------------------------------------------

    def expand(self, claim: tuple, values: Sequence[str] | None) -> str:
        """Let a map wait for its items; the first list of a visit is the one that counts."""
        visit = self.held(*claim)
        if visit is None:
            word = self.repeated(*claim, ("waiting", "ready", "cancelled"))
            return "expanded" if word in ("waiting", "ready") else word
        run = self.runs[claim[0]]
        if values is None and self.list_of(run, visit) is None:
            return "no_items"
        if run.stopping:
            visit.status = "cancelled"
            self.withdraw(visit)
        else:
            self.lists.setdefault((run.id, visit.node, visit.number), Items(list(values or ())))
            visit.status, visit.collects, visit.lost = "waiting", True, 0
        self.after(run)
        return "cancelled" if run.stopping else "expanded"

    def conclude(
        self, run: Run, visit: Visit, *, completed: bool, took: frozenset[int] = frozenset()
    ) -> None:
        """An item's end is its map's affair: it stops no run, and perhaps its map."""
        if not visit.is_item:
            super().conclude(run, visit, completed=completed, took=took)
            return
        visit.status = "completed" if completed else "failed"
        self.withdraw(visit)
        if not completed and self.spec(run, visit.owner).stops:
            self.list_of(run, visit).stopped = True
            if not run.stopping:
                self.drop([item for item in self.items(run, visit) if item.status not in ENDED])
        self.after(run)

    def retry(self, claim: tuple, delay: int, *, counts: bool) -> str:
        """A map that has stopped and is tried again begins anew what has not completed."""
        visit = self.held(*claim)
        word = super().retry(claim, delay, counts=counts)
        items = self.lists.get(claim[:3])
        if (
            visit is not None
            and word == "retrying"
            and counts
            and items is not None
            and items.stopped
        ):
            items.begun, items.stopped = 0, False
        return word

    def after(self, run: Run) -> None:
        """Whatever has happened, maps may go on: those of this run, and then those above it.

        The innermost first, for a map that has its list and no item yet is at work all the same.
        """
        super().after(run)
        for other in reversed(self.runs.values()):
            for visit in other.open():
                if visit.collects and visit.status == "waiting" and not other.stopping:
                    self.go_on(other, visit)

    def go_on(self, run: Run, visit: Visit) -> None:
        """Begin the items of one map that there is room for; with none left it is ready."""
        items, most = self.list_of(run, visit), self.spec(run, visit.node).concurrency
        while items.begun < len(items.values) and not items.stopped:
            if most and sum(self.has_a_place(item) for item in self.items(run, visit)) >= most:
                break
            self.begin(run, f"{visit.node}[{items.begun}]", visit.number)
            items.begun += 1
        all_begun = items.stopped or items.begun == len(items.values)
        if all_begun and all(item.status in ENDED for item in self.items(run, visit)):
            visit.status, visit.collects = "ready", False

    def begin(self, run: Run, name: str, number: int) -> None:
        """Make an item ready; one that its map has begun before keeps what it gave, if it gave anything."""
        item = run.visits.setdefault((name, number), Visit(name, number))
        if item.status in ("failed", "cancelled"):
            item.status, item.attempt, item.lost = "ready", item.attempt + 1, 0
