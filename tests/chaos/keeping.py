"""Sabotage: a process that imports this gives up nothing that it runs, whatever it is told."""

from __future__ import annotations

from runner.leaving import Leaving

Leaving._give_up = lambda _self, _token: False
