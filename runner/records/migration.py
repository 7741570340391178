"""Request to a store to migrate a waiting run to another shape of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from runner.immutable import immutable
from runner.records.codec import JSON
from runner.records.interrupts import Interrupt
from runner.records.run import Records, VisitEntry, VisitKey


@immutable
class Renamed:
    """A node that has another name now, with its present visit.

    `document` replaces the node's stored document, or is None without one; `decided` are the new
    ids of this visit's questions that no longer wait.
    """

    node: str
    today: str
    visit: int = 0
    document: JSON = None
    decided: Sequence[str] = ()


@immutable
class Migration:
    """A waiting run that continues in another shape, with records derived at event number `events`.

    `event_data` is the data of the migration's event. `undone` are the visits that no longer count,
    each with its entry; the documents of nodes in `forgets` are deleted. `visits` are (old, new,
    entry, or None if it is unchanged). `moved` are (old id, question under its new id) of decided
    questions; `withdrawn` are open questions (node, visit, id), and `replacements` replace them.
    `stops` are (node, child run) pairs that are no longer needed.
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
