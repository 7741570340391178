"""Sabotage: a process that imports this never looks at what is due."""

from __future__ import annotations

from runner.execution.engine import Engine

Engine.sweep = lambda *_: 0
