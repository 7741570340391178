"""What `runner doctor` knows, and how it says what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.store.roster import Worker
    from runner.store.vitals import Vitals

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One line: its word, what was looked at, what was found, and the fix unless all is well."""

    word: str
    name: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known. `broker` says what is wrong with it, "" for nothing; `clock` is ours in ms."""

    vitals: Vitals
    workers: Sequence[Worker]
    graphs: Mapping[str, str]
    letters: int
    clock: int
    sweep_interval: float
    broker: str
    broker_is_store: bool
    unguarded: bool
    unknown: Sequence[str] = field(default_factory=tuple)
    durability: str = "fast"
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def alive(self) -> list[Worker]:
        """The workers that gave a sign of life lately and take nodes."""
        return [worker for worker in self.workers if worker.state(self.vitals.now) == "alive"]

    def named(self, state: str) -> list[str]:
        """Name the workers that are in a state."""
        return [worker.name for worker in self.workers if worker.state(self.vitals.now) == state]
