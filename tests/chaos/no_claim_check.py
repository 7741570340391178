"""Sabotage: a worker whose claims believe every message, whatever its visit is and has become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner import scheduler
from runner.records.run import Status
from runner.store.redis import scripts
from tasks.app import app

__all__ = ["app"]

PLANNED = "if ENDED[status] or number ~= visit or attempt ~= ARGV[9]"
TO_CLAIM = "do return {'other'} end\n" + PLANNED
# A text that no script has any more would sabotage nothing.
TEXTS = [
    file.read_text(encoding="utf-8")
    for file in Path(scripts.__file__).parents[1].rglob("lua/**/*.lua")
]
assert any(PLANNED in text for text in TEXTS)

with_look, with_check = scripts._code, scheduler.claim


def without_look(source: str) -> str:
    return with_look(source).replace(PLANNED, TO_CLAIM)


def without_check(changes, node, visit, attempt, nonce):
    """Claim the node as the message says that it is."""
    changes.put(
        node, replace(changes.node(node), status=Status.READY, visit=visit, attempt=attempt)
    )
    return with_check(changes, node, visit, attempt, nonce)


scripts._code = without_look
scheduler.claim = without_check
