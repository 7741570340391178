"""What a run in memory has is put under the names that its nodes have in another shape.

Two nodes may have exchanged their names: all is taken away before anything is put in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from runner import codec
from runner.migrating import At, Migration
from runner.moved import bare
from runner.run import Rewrite
from runner.store.kept import KeptRun
from runner.store.stored import pack_copy


def move(run: KeptRun, move: Migration) -> None:
    """Take over another shape, other names, and what is left under them."""
    run.erase(Rewrite(move.run_id, move.events, move.records, move.undone, move.forgets))
    run.maps = {name: found for name, found in run.maps.items() if name not in move.forgets}
    within = replace(run.record, parent_node=move.parent_node, path=move.path)
    run.record = replace(within, fingerprint=move.fingerprint, graph_id=move.graph_id)
    _move_visits(run, move)
    _move_nodes(run, move)
    for old_id, new in move.moved:
        run.questions.pop(new.id, None)
        run.questions[new.id] = new
        run.weights.put(("q", new.id), len(codec.encode(bare(new))))
        if old_id in run.winners:
            run.winners[new.id] = run.winners[old_id]


def _move_visits(run: KeptRun, move: Migration) -> None:
    names = {old: at for old, at, _ in move.visits}
    run.entries |= {old: pack_copy(entry) for old, _, entry in move.visits if entry is not None}
    _exchange(run.entries, names.items())
    _exchange(run.outputs, names.items())
    run.weights.exchange([(run.output_piece(*old), run.output_piece(*at)) for old, at in names.items()])
    run.order = [names.get(at, at) for at in run.order]


def _move_nodes(run: KeptRun, move: Migration) -> None:
    names = [(each.node, each.today) for each in move.renamed]
    visits: list[tuple[At, At]] = [
        ((each.node, each.visit), (each.today, each.visit)) for each in move.renamed
    ]
    run.weights.exchange_kept(run.record.run_id, move.renamed)
    for by_name in (run.messages, run.maps):
        _exchange(by_name, names)
    for by_visit in (run.given, run.items):
        _exchange(by_visit, visits)
    for each in move.renamed:
        run.documents.pop(each.node, None)
    run.documents |= {
        each.today: pack_copy(each.document) for each in move.renamed if each.document is not None
    }


def _exchange(kept: dict[Any, Any], names: Iterable[tuple[Any, Any]]) -> None:
    taken = [(new, kept.pop(old)) for old, new in names if old in kept]
    kept |= taken
