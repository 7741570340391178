"""The plugin's fixtures, also where the package is not installed with its entry point."""

from __future__ import annotations

from runner.testing.plugin import clock, crash_at, run_graph

__all__ = ["clock", "crash_at", "run_graph"]
