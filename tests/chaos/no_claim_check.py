"""Sabotage: a worker whose claims believe every message, whatever its visit is and has become."""

from __future__ import annotations

from pathlib import Path

from runner.store.redis import scripts
from tasks.app import app

__all__ = ["app"]

LOOK = (
    "if record.status ~= 'ready' or record.visit ~= visit or record.attempt ~= attempt "
    "then return {'stale'} end"
)
PLANNED = "if ENDED[status] or number ~= visit or attempt ~= ARGV[9]"
TO_CLAIM = "do return {'other'} end\n" + PLANNED
# A text that no script has any more would sabotage nothing.
TEXTS = [file.read_text(encoding="utf-8") for file in Path(scripts.__file__).parents[1].rglob("lua/**/*.lua")]
assert all(any(part in text for text in TEXTS) for part in (LOOK, PLANNED))

with_look = scripts._code


def without_look(source: str) -> str:
    return with_look(source).replace(LOOK, "").replace(PLANNED, TO_CLAIM)


scripts._code = without_look
