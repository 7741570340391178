"""Where an execution of an agent stores its checkpoints and publishes its questions.

Three kinds: a node's visit (its methods block, so they run on threads), a direct call (kept in
memory), and a tool call of another agent (kept inside that agent's own document, `subagent.py`).
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
from runner.records.codec import JSON
from runner.records.executors import Visit
from runner.records.interrupts import Address, Interrupt

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Checkpointer(Protocol):
    """Storage for an execution; methods raise LeaseLost when the work now belongs to another worker."""

    address: Address
    answers: Mapping[str, Interrupt]
    invocation_state: dict[str, Any]
    idempotency_key: str

    async def save(self, checkpoint: Saved) -> None:
        """Store a checkpoint."""

    async def ask(self, questions: Sequence[Interrupt], checkpoint: Saved) -> None:
        """Store a checkpoint and publish questions."""

    async def use(self, use: Use, checkpoint: Saved) -> None:
        """Store a checkpoint, and that a decision is used."""

    async def check(self) -> None:
        """Raise when this work must stop."""

    def check_now(self) -> None:
        """The same, for code on a thread of its own."""

    async def check_effect(self, tool: str) -> None:
        """Raise EffectsFrozen where the call of a tool is frozen."""

    async def spend(self, tag: Tagged | None, spending: Spending) -> str:
        """Add to the sum of the run or of a tag, as `Store.spend`."""

    async def open_raise(self, tag: Tagged | None, counter: str) -> str:
        """Ask to raise a bound of a sum, as `Visit.open_raise`."""

    async def close_raise(self, tag: Tagged | None, counter: str, refusal: str = "") -> None:
        """Have those go on that wait for it, as `Visit.close_raise`."""

    async def spent(self, tag: Tagged | None) -> dict[str, Sum]:
        """Read such a sum."""

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
        self.check_now, self.check = visit.check, _on_thread(visit.check)
        self.check_effect = _on_thread(freezes.check_tool)
        self.save, self.ask = _on_thread(visit.save), _on_thread(visit.ask)
        self.use = _on_thread(visit.use)
        self.spend, self.spent = _on_thread(visit.spend), _on_thread(visit.spent)
        self.open_raise = _on_thread(visit.open_raise)
        self.close_raise = _on_thread(visit.close_raise)
        self.tags = _on_thread(visit.tags)


class DirectCheckpointer:
    """Keeps the last checkpoint of a direct call in memory; no other worker can take its work over."""

    def __init__(
        self,
        address: Address,
        answers: Mapping[str, Interrupt],
        invocation_state: dict[str, Any],
        messages: list[JSON],
        sums: dict[str, str],
    ) -> None:
        """`sums` is what the agent's direct calls have spent: they count as one run, without tags."""
        self._sums = sums
        self.address = address
        self.answers = answers
        self.invocation_state = invocation_state
        self.idempotency_key = f"{address.run_id}.{address.node_id}.{address.visit}"
        self.document: dict[str, JSON] | None = None
        self.messages = list(messages)

    async def save(self, checkpoint: Saved) -> None:
        self.document = checkpoint.document
        self.messages = [*self.messages[: checkpoint.keep], *checkpoint.messages]

    async def ask(self, questions: Sequence[Interrupt], checkpoint: Saved) -> None:
        """Store a checkpoint; the questions are shown when the call returns."""
        del questions
        await self.save(checkpoint)

    async def use(self, use: Use, checkpoint: Saved) -> None:
        """Store a checkpoint: a direct call has no question with a rule."""
        del use
        await self.save(checkpoint)

    async def check(self) -> None:
        """Nothing stops a direct call from outside but its cancel signal."""

    async def check_effect(self, tool: str) -> None:
        await async_loop.in_thread(freezes.check_tool, tool)

    def check_now(self) -> None:
        """As `check`."""

    async def spend(self, tag: Tagged | None, spending: Spending) -> str:
        del tag  # there are no tags
        return budgets.add(self._sums, spending)

    async def open_raise(self, tag: Tagged | None, counter: str) -> str:
        """Ask: no other call can wait for this one."""
        del tag, counter
        return ""

    async def close_raise(self, tag: Tagged | None, counter: str, refusal: str = "") -> None:
        """No caller waits."""

    async def spent(self, tag: Tagged | None) -> dict[str, Sum]:
        del tag
        return budgets.sums(self._sums)

    async def tags(self) -> dict[str, str]:
        return {}
