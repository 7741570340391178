"""Sabotage: a process that imports this gives up nothing that it runs, whatever it is told."""

from __future__ import annotations

from runner.execution.engine import Engine

Engine._release = lambda _self, _token: False
