"""What tests of graphs, agents and stores need: a scripted model, a manual clock, a contract.

Names are imported when first used, so that a program without pytest can use the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.agent.models.scripted import ScriptedModel
    from runner.testing.fake_redis import fake_store
    from runner.testing.in_process import CrashPoint, ManualClock, answer
    from runner.testing.replaying import replay
    from tests.contract.store import StoreContract

__all__ = [
    "CrashPoint",
    "ManualClock",
    "ScriptedModel",
    "StoreContract",
    "answer",
    "fake_store",
    "replay",
]

_HOMES = {
    "CrashPoint": "runner.testing.in_process",
    "ManualClock": "runner.testing.in_process",
    "ScriptedModel": "runner.agent.models.scripted",
    "StoreContract": "tests.contract.store",
    "answer": "runner.testing.in_process",
    "fake_store": "runner.testing.fake_redis",
    "replay": "runner.testing.replaying",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
