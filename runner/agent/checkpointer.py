"""Storage for an agent execution's checkpoints and questions.

Three kinds exist: a node's visit (its methods block, so they run on threads), a direct call (kept
in memory), and another agent's tool call (kept inside that agent's document, `subagent.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from runner import async_loop
from runner.approvals import freezes
from runner.approvals.ballots import Use
from runner.records import budgets
from runner.records.budgets import Spending, Sum, Tagged
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONObject
from runner.records.executors import Visit
from runner.records.interrupts import Address, Interrupt

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Checkpointer(Protocol):
    """Storage for an execution; methods raise LeaseLost once another worker has taken it over."""

    address: Address
    answers: Mapping[str, Interrupt]
    invocation_state: JSONObject
    idempotency_key: str

    async def save(self, checkpoint: Saved) -> None:
        """Store a checkpoint."""

    async def ask(self, questions: Sequence[Interrupt], checkpoint: Saved) -> None:
        """Store a checkpoint and publish questions."""

    async def use(self, use: Use, checkpoint: Saved) -> None:
        """Store a checkpoint, and record that a decision is used."""

    async def check(self) -> None:
        """Raise when this work must stop."""

    def check_now(self) -> None:
        """Raise when this work must stop, for code on another thread."""

    async def check_effect(self, tool: str) -> None:
        """Raise EffectsFrozen if calls of the tool are frozen."""

    async def spend(self, tag: Tagged | None, spending: Spending) -> str:
        """Add to the sum of the run or of a tag, like `Store.spend`."""

    async def open_raise(self, tag: Tagged | None, counter: str) -> str:
        """Ask to raise a bound of a sum, like `Visit.open_raise`."""

    async def close_raise(self, tag: Tagged | None, counter: str, refusal: str = "") -> None:
        """Wake the calls that wait for a raise, like `Visit.close_raise`."""

    async def spent(self, tag: Tagged | None) -> dict[str, Sum]:
        """Read the sum of the run or of a tag, by counter."""

    async def tags(self) -> dict[str, str]:
        """Return the tags of the run."""


def _on_thread(
    method: Callable[Arguments, Result],
) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
    return functools.partial(async_loop.in_thread, method)


class VisitCheckpointer:
    """Stores through the visit of a node."""

    def __init__(self, visit: Visit) -> None:
        self.address = visit.address
        self.answers = visit.answers
        self.invocation_state = visit.invocation_state
        self.idempotency_key = visit.idempotency_key
        self.check_now = visit.check
        self.check = _on_thread(visit.check)
        self.check_effect = _on_thread(freezes.check_tool)
        self.save = _on_thread(visit.save)
        self.ask = _on_thread(visit.ask)
        self.use = _on_thread(visit.use)
        self.spend = _on_thread(visit.spend)
        self.spent = _on_thread(visit.spent)
        self.open_raise = _on_thread(visit.open_raise)
        self.close_raise = _on_thread(visit.close_raise)
        self.tags = _on_thread(visit.tags)


class DirectCheckpointer:
    """Keeps a direct call's last checkpoint in memory; no other worker can take over its work."""

    def __init__(
        self,
        address: Address,
        answers: Mapping[str, Interrupt],
        invocation_state: JSONObject,
        messages: list[JSON],
        sums: dict[str, str],
    ) -> None:
        """Start with the agent's `sums`: its direct calls count as one run without tags."""
        self._sums = sums
        self.address = address
        self.answers = answers
        self.invocation_state = invocation_state
        self.idempotency_key = f"{address.run_id}.{address.node_id}.{address.visit}"
        self.document: JSONObject | None = None
        self.messages = list(messages)

    async def save(self, checkpoint: Saved) -> None:
        self.document = checkpoint.document
        self.messages = [*self.messages[: checkpoint.keep], *checkpoint.messages]

    async def ask(self, questions: Sequence[Interrupt], checkpoint: Saved) -> None:
        """Store a checkpoint; the questions are shown when the call returns."""
        del questions
        await self.save(checkpoint)

    async def use(self, use: Use, checkpoint: Saved) -> None:
        """Store a checkpoint; questions of direct calls have no rule, so no decision is used."""
        del use
        await self.save(checkpoint)

    async def check(self) -> None:
        """Do nothing: from outside, only its cancel signal stops a direct call."""

    async def check_effect(self, tool: str) -> None:
        await async_loop.in_thread(freezes.check_tool, tool)

    def check_now(self) -> None:
        """Do nothing, like `check`."""

    async def spend(self, tag: Tagged | None, spending: Spending) -> str:
        del tag  # direct calls have no tags
        return budgets.add(self._sums, spending)

    async def open_raise(self, tag: Tagged | None, counter: str) -> str:
        """Return "" so that this call asks: no other visit shares its sum."""
        del tag, counter
        return ""

    async def close_raise(self, tag: Tagged | None, counter: str, refusal: str = "") -> None:
        """Do nothing: no other visit waits."""

    async def spent(self, tag: Tagged | None) -> dict[str, Sum]:
        del tag
        return budgets.sums(self._sums)

    async def tags(self) -> dict[str, str]:
        return {}
