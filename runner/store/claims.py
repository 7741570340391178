"""Reading what the scripts `claim` and `fetch` say: a visit and all that its worker needs, and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runner.ports import Claim, Fetched, RunSnapshot, Token
from runner.store import layout, questions
from runner.store.blobs import Blobs


def claimed(
    run_id: str, node: str, said: list[Any], blobs: Blobs, read: Callable[[str], RunSnapshot | None]
) -> Claim:
    """Build the claim; large values are read with it, and so is the child run that the node waits for."""
    _, graph, fingerprint, current, at, own, task, given, inputs, asked, document, messages, items, report = (
        said
    )
    record, _ = layout.node_record(own)
    large = [task, given, report, *(output for _, _, output in inputs)]
    task, given, report, *outputs = map(_load, blobs.get(large))
    return Claim(
        token=Token(run_id, node, record.visit, record.fence),
        graph_id=graph.decode(),
        fingerprint=fingerprint.decode(),
        current=current.decode(),
        signature=layout.load(at)["signature"],
        record=record,
        task=task,
        given=given,
        inputs=[
            (name.decode(), number, output) for (name, number, _), output in zip(inputs, outputs, strict=True)
        ],
        answers=questions.answered(*asked) if asked else [],
        document=layout.load(document) if document else None,
        messages=[layout.load(message) for message in messages],
        child=read(record.child) if record.child else None,
        map=layout.map_of_visit(items, record.visit),
        report=report,
    )


def fetched(found: Sequence[bytes], blobs: Blobs) -> list[Fetched]:
    """Read nodes with their latest output and entry."""
    outputs, places = blobs.get(found[1::3]), found[2::3]
    entries = blobs.get([place and place.partition(b" ")[2] for place in places])
    return [
        (layout.node_record(own)[0], _load(output), _load(entry))
        for own, output, entry in zip(found[::3], outputs, entries, strict=True)
    ]


def _load(data: bytes | None) -> Any:
    return None if data is None else layout.load(data)
