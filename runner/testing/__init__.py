"""Tools for tests of graphs and agents: a scripted model, a manual clock, crash points.

Names are imported when first used, so that a program uses some without the packages of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.lazy_names import lazy_names

if TYPE_CHECKING:
    from runner.agent.models.scripted import ScriptedModel
    from runner.testing.fake_redis import fake_store
    from runner.testing.in_process import CrashPoint, InProcessRuns, ManualClock, answer

__all__ = [
    "CrashPoint",
    "InProcessRuns",
    "ManualClock",
    "ScriptedModel",
    "answer",
    "fake_store",
]

__getattr__ = lazy_names(
    __name__,
    {
        "runner.agent.models.scripted": ("ScriptedModel",),
        "runner.testing.fake_redis": ("fake_store",),
        "runner.testing.in_process": ("CrashPoint", "InProcessRuns", "ManualClock", "answer"),
    },
)
