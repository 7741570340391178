"""Crashes for tests: a worker that dies at a chosen point of a node, without a process to kill.

The store plays them, for all that a worker leaves behind is what it wrote there. From that point on
the dead worker's writes do not arrive, as if it were gone; its lease runs out, and the visit runs again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from runner.errors import UsageError
from runner.interrupts import Interrupt
from runner.outcomes import Saved
from runner.ports import Claim, Reply, Settlement, Token
from runner.store.memory import MemoryStore


class CrashPoint(enum.StrEnum):
    """When a worker dies.

    `start`: before the node's code. `after_effect`: a function given to `once` has run, and its result
    is not recorded. `after_record`: it is recorded. `before_commit`: the node's code has ended, and the
    store does not know. `after_commit`: the store knows, and nobody has rung for the nodes behind.
    """

    START = "start"
    AFTER_EFFECT = "after_effect"
    AFTER_RECORD = "after_record"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


class WorkerDied(BaseException):
    """Ends a node's code where its worker is said to have died; code that catches errors lets it pass."""


class Crashes:
    """Which crashes are still to come."""

    def __init__(self) -> None:
        """Plan none."""
        self._left: dict[tuple[str, CrashPoint], int] = {}

    def plan(self, node: str, point: str, times: int) -> None:
        """Let the worker of a node die at a point, so many times in a row.

        Raises:
            UsageError: there is no such point.
        """
        known = ", ".join(CrashPoint)
        if point not in list(CrashPoint):
            raise UsageError(
                f"there is no crash point {point!r}, so nothing will crash; choose one of {known}."
            )
        self._left[node, CrashPoint(point)] = times

    def missed(self) -> list[str]:
        """Name the crashes that have not come, each as "node at point"."""
        return [f"{node} at {point}" for (node, point), left in self._left.items() if left]

    def strikes(self, node: str, point: CrashPoint) -> bool:
        """Tell whether the worker dies here, and count it."""
        left = self._left.get((node, point), 0)
        self._left[node, point] = max(0, left - 1)
        return left > 0


class CrashingStore(MemoryStore):
    """A memory store whose writers die as planned."""

    def __init__(self, crashes: Crashes, **options: Any) -> None:
        """`options` are those of a MemoryStore."""
        super().__init__(**options)
        self._crashes = crashes
        self._dead: set[Token] = set()

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        """Take a visit; the worker may die before its code."""
        found = super().claim(run_id, node, visit, attempt, nonce)
        if isinstance(found, Claim):
            self._reach(found.token, CrashPoint.START)
        return found

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
        """Let a visit wait, unless its worker is dead."""
        return self._alive(token, lambda: super(CrashingStore, self).park(token, interrupts, saved))

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        """Publish questions, unless the worker is dead."""
        return self._alive(token, lambda: super(CrashingStore, self).ask(token, interrupts, saved))

    def retry(self, token: Token, delay_ms: int, entry: dict[str, Any] | None, saved: Saved | None) -> Reply:
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
    """Tell whether this is the note before an effect, which `on_unknown="raise"` writes."""
    executor = saved.document.get("executor") if isinstance(saved.document, dict) else None
    kept = executor.get("once") if isinstance(executor, dict) else None
    return isinstance(kept, dict) and any("result" not in entry for entry in kept.values())
