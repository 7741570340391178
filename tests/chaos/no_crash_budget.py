"""Sabotage: a worker whose scripts count no lost leases."""

from __future__ import annotations

from runner.store.redis import scripts
from tests.chaos.fork_app import app

__all__ = ["app"]

with_budget = scripts._code
scripts._code = lambda source: with_budget(source).replace("local CRASHES = 5", "local CRASHES = 1000")
