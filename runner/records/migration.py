"""Request to a store to migrate a waiting run to another shape of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.records.codec import JSON
from runner.records.interrupts import Interrupt
from runner.records.run import Records, VisitEntry, VisitKey


@dataclass(frozen=True, slots=True)
class Renamed:
    """A node that has another name now, with its present visit.

    `document` replaces the node's stored one, None where there is none; `decided` are the questions of this
    visit, by their new ids, that no longer wait.
    """

    node: str
    today: str
    visit: int = 0
    document: JSON = None
    decided: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Migration:
    """A waiting run that continues in another shape, with records derived from what was read at `events`.

    `event_data` is the data of its event. `undone` are the visits that no longer count, each with its entry;
    the documents of nodes in `forgets` are deleted. `visits` are (old, new, entry or None where it is
    unchanged). `moved` are decided questions under their new ids, by their old ones; `withdrawn` are open
    ones (node, visit, id), `replacements` those that replace them. `stops` are (node, child run) that are not
    needed any more.
    """

    run_id: str
    events: int
    fingerprint: str
    graph_id: str
    parent_node: str
    path: str
    records: Records
    started: int
    event_data: JSON
    undone: Mapping[VisitKey, VisitEntry] = field(default_factory=dict)
    forgets: Sequence[str] = ()
    renamed: Sequence[Renamed] = ()
    visits: Sequence[tuple[VisitKey, VisitKey, VisitEntry | None]] = ()
    moved: Sequence[tuple[str, Interrupt]] = ()
    withdrawn: Sequence[tuple[str, int, str]] = ()
    replacements: Sequence[Interrupt] = ()
    stops: Sequence[tuple[str, str]] = ()
