"""What a run in memory takes over from the one that it is a fork of."""

from __future__ import annotations

from typing import Any

from runner.ports import Fork
from runner.store.kept import KeptRun
from runner.store.layout import dump
from runner.store.stored import pack_copy

JSON = Any


def copy(run: KeptRun, source: KeptRun, fork: Fork) -> None:
    """Take over what a run leaves behind that this one is a fork of."""
    weights = run.weights
    for at, place in sorted(fork.kept.items(), key=lambda kept: kept[1]):
        entry = run.entries[at] = pack_copy(source.entries[at])
        weights.add(len(_shelved(run, entry) if at in source.outputs else dump(entry)))
        if at in source.outputs:
            run.outputs[at] = pack_copy(source.outputs[at])
            weights.put(run.output_piece(*at), len(_shelved(run, run.outputs[at])))
        run.order += [at] if place else []
    for node in fork.remembers:
        if node in source.documents:
            run.documents[node] = pack_copy(source.documents[node])
            run.messages[node] = pack_copy(source.messages.get(node, []))
            kept = source.weights.kept(source.record.run_id, node)
            weights.take_over((run.record.run_id, node), kept)
    if fork.at is not None:
        run.given[fork.at] = pack_copy(fork.input)
        weights.add(len(dump(fork.input)))


def _shelved(run: KeptRun, value: JSON) -> bytes:
    return run.weights.shelve(dump(value))
