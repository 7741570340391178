"""What a store does for runs that a deploy met: their nodes are set aside, go on again, or are moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from runner.interrupts import Interrupt
    from runner.ports import Reply, Token
    from runner.run import Records

JSON = Any

At = tuple[str, int]
"""A visit: node and number."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """A node that has another name now, with the visit that it is in.

    `document` takes the place of what it keeps, None where it keeps nothing; `decided` are the questions
    of this visit, by their new ids, that no longer wait.
    """

    node: str
    today: str
    visit: int = 0
    document: JSON = None
    decided: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Migration:
    """A waiting run that goes on in another shape, with records worked out from what was read at `events`.

    `told` is the data of its event. `undone` are the visits that no longer count, each with its entry, and
    nodes in `forgets` lose what they kept. `visits` are (old, today's, entry or None where it stays as it
    is). `moved` are decided questions under their new names, by their old ids; `withdrawn` are open ones
    (node, visit, id), `asked` those to ask instead. `stops` are (node, child run) whose work is not needed.
    """

    run_id: str
    events: int
    fingerprint: str
    graph_id: str
    parent_node: str
    path: str
    records: Records
    started: int
    told: JSON
    undone: Mapping[At, dict[str, JSON]] = field(default_factory=dict)
    forgets: Sequence[str] = ()
    renamed: Sequence[Renamed] = ()
    visits: Sequence[tuple[At, At, dict[str, JSON] | None]] = ()
    moved: Sequence[tuple[str, Interrupt]] = ()
    withdrawn: Sequence[tuple[str, int, str]] = ()
    asked: Sequence[Interrupt] = ()
    stops: Sequence[tuple[str, str]] = ()


class Migrating(Protocol):
    """The part of a store that keeps nodes whose graph is another one now."""

    def hold(self, token: Token) -> Reply:
        """Set a visit aside until its run is migrated: "held" or "stale"."""

    def release(self, run_id: str, nodes: Sequence[str]) -> Reply:
        """Let nodes go on that were set aside: "released", or "stale" when none of them is."""

    def documents(self, run_id: str) -> dict[str, JSON]:
        """Read what the nodes of a run keep to go on with, by node."""

    def migrate(self, runs: Sequence[Migration], nonce: str) -> Reply:
        """Move waiting runs to other shapes, a parent before its children: all or none.

        "migrated", "moved" when one is not as it was read or does not wait, "unknown", "unknown_graph".
        """
