"""What a run in memory has is put under the names that its nodes have in another shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.migrating import Migration, Renamed
from runner.run import Rewrite
from runner.store.kept import KeptRun
from runner.store.stored import pack_copy


def move(run: KeptRun, move: Migration) -> None:
    """Take over another shape, other names, and what is left under them."""
    run.erase(Rewrite(move.run_id, move.events, move.records, move.undone, move.forgets))
    run.maps = {name: found for name, found in run.maps.items() if name not in move.forgets}
    within = replace(run.record, parent_node=move.parent_node, path=move.path)
    run.record = replace(within, fingerprint=move.fingerprint, graph_id=move.graph_id)
    for old, at, entry in move.visits:
        run.entries[at] = run.entries.pop(old) if entry is None else pack_copy(entry)
        if old != at:
            run.entries.pop(old, None)
            run.outputs |= {at: run.outputs.pop(old)} if old in run.outputs else {}
    names = {old: at for old, at, _ in move.visits}
    run.order = [names.get(at, at) for at in run.order]
    for each in move.renamed:
        _rename(run, each)
    for old_id, new in move.moved:
        run.questions[new.id] = new
        if old_id in run.winners:
            run.winners[new.id] = run.winners[old_id]


def _rename(run: KeptRun, moved: Renamed) -> None:
    node, name, at = moved.node, moved.today, (moved.node, moved.visit)
    run.documents.pop(node, None)
    if moved.document is not None:
        run.documents[name] = pack_copy(moved.document)
    by_name: tuple[dict[str, Any], ...] = (run.messages, run.maps)
    by_visit: tuple[dict[tuple[str, int], Any], ...] = (run.given, run.items)
    for kept in by_name:
        if node in kept:
            kept[name] = kept.pop(node)
    for given in by_visit:
        if at in given:
            given[name, moved.visit] = given.pop(at)
