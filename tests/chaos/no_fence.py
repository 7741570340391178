"""Sabotage: a worker whose scripts let everybody write for a visit, whatever became of it since."""

from __future__ import annotations

from runner.store.redis import scripts
from tasks.app import app

__all__ = ["app"]

GUARD = "return record.status == 'running' and record.visit == visit and record.fence == fence"
with_guard = scripts._code


def without_guard(source: str) -> str:
    return with_guard(source).replace(GUARD, "return record.visit == visit")


scripts._code = without_guard
