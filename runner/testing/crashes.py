"""Crashes for tests: a worker that dies at a chosen point of a node, without a process to kill.

The store plays them, for all that a worker leaves behind is what it wrote there. From that point on
the dead worker's writes do not arrive, as if it were gone; its lease runs out, and the visit runs again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from runner.errors import UsageError
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Saved
from runner.records.run import VisitEntry
from runner.store.interface import Claim, Reply, Settlement, Token
from runner.store.memory.store import MemoryStore


class CrashPoint(enum.StrEnum):
    """When a worker dies.

    `start`: before the node's code. `after_effect`: a function given to `once` has run, and its result
    is not recorded. `after_record`: it is recorded. `before_commit`: the node's code has ended, and the
    store does not know. `after_commit`: the store knows, and no doorbell was rung for the nodes behind.
    """

    START = "start"
    AFTER_EFFECT = "after_effect"
    AFTER_RECORD = "after_record"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


class WorkerDied(BaseException):
    """Ends a node's code where its worker dies; code that catches errors does not catch it."""


class Crashes:
    """Which crashes are still to come."""

    def __init__(self) -> None:
        """Plan none."""
        self._left: dict[tuple[str, CrashPoint], int] = {}

    def plan(self, node: str, point: str, times: int) -> None:
        """Make the worker of a node die at a point, so many times in a row.

        Raises:
            UsageError: there is no such point.
        """
        points = ", ".join(CrashPoint)
        if point not in list(CrashPoint):
            raise UsageError(
                f"there is no crash point {point!r}, so nothing will crash; choose one of {points}."
            )
        self._left[node, CrashPoint(point)] = times

    def missed(self) -> list[str]:
        """Name the crashes that have not come, each as "node at point"."""
        return [f"{node} at {point}" for (node, point), times in self._left.items() if times]

    def strikes(self, node: str, point: CrashPoint) -> bool:
        """Return whether the worker dies here, and count it."""
        remaining = self._left.get((node, point), 0)
        self._left[node, point] = max(0, remaining - 1)
        return remaining > 0


class CrashingStore(MemoryStore):
    """A memory store whose writers die as planned."""

    def __init__(self, crashes: Crashes, **options: Any) -> None:
        """`options` are those of a MemoryStore."""
        super().__init__(**options)
        self._crashes = crashes
        self._dead: set[Token] = set()

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        """Take a visit; the worker may die before its code."""
        claim = super().claim(run_id, node, visit, attempt, nonce)
        if isinstance(claim, Claim):
            self._reach(claim.token, CrashPoint.START)
        return claim

    def save(self, token: Token, saved: Saved) -> Reply:
        """Write what a visit keeps; the worker may die before or after."""
        self._bury(token)
        if _is_intent(saved):
            return super().save(token, saved)
        self._reach(token, CrashPoint.AFTER_EFFECT)
        reply = super().save(token, saved)
        self._reach(token, CrashPoint.AFTER_RECORD)
        return reply

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        """End a visit; the worker may die before or after."""
        self._bury(token)
        self._reach(token, CrashPoint.BEFORE_COMMIT)
        reply = super().settle(token, settlement, nonce)
        if reply.word == "settled":
            self._reach(token, CrashPoint.AFTER_COMMIT)
        return reply

    def park(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        """Park a visit, unless its worker is dead."""
        return self._alive(token, lambda: super(CrashingStore, self).park(token, interrupts, saved))

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        """Publish questions, unless the worker is dead."""
        return self._alive(token, lambda: super(CrashingStore, self).ask(token, interrupts, saved))

    def retry(self, token: Token, delay_ms: int, entry: VisitEntry | None, saved: Saved | None) -> Reply:
        """Run a visit again later, unless its worker is dead."""
        return self._alive(token, lambda: super(CrashingStore, self).retry(token, delay_ms, entry, saved))

    def _alive(self, token: Token, write: Callable[[], Reply]) -> Reply:
        self._bury(token)
        return write()

    def _reach(self, token: Token, point: CrashPoint) -> None:
        if self._crashes.strikes(token.node, point):
            self._dead.add(token)
            self._bury(token)

    def _bury(self, token: Token) -> None:
        """Code that outlives its worker's death, in a `finally` perhaps, writes nothing."""
        if token in self._dead:
            raise WorkerDied(f"the worker of node {token.node!r} died here, as the test wants.")


def _is_intent(saved: Saved) -> bool:
    """Return whether this is the note before an effect, which `on_unknown="raise"` writes."""
    executor = saved.document.get("executor") if isinstance(saved.document, dict) else None
    effects = executor.get("once") if isinstance(executor, dict) else None
    return isinstance(effects, dict) and any("result" not in entry for entry in effects.values())
