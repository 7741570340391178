"""Where an execution keeps its checkpoints and asks its questions, as the drive sees it.

Three kinds: a visit of a node (its methods block, so they run on threads), a direct call (kept in
memory), and a tool call of another agent (kept inside that agent's own document).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from runner import loops
from runner.agent.state import Inner
from runner.agent.values import Happening, InnerAsked, InnerSaved
from runner.interrupts import Address, Interrupt
from runner.outcomes import Saved, Visit

JSON = Any


class Desk(Protocol):
    """What the drive needs; methods raise LeaseLost when the work now belongs to another worker."""

    address: Address
    answers: Mapping[str, Interrupt]
    invocation_state: dict[str, Any]
    idempotency_key: str

    async def save(self, saved: Saved) -> None:
        """Checkpoint."""

    async def ask(self, questions: Sequence[Interrupt], saved: Saved) -> None:
        """Checkpoint and publish questions."""

    async def check(self) -> None:
        """Raise when this work must stop."""

    def check_now(self) -> None:
        """The same, for code on a thread of its own."""


class VisitDesk:
    """The desk of a node's visit."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self.address = visit.address
        self.answers = visit.answers
        self.invocation_state = visit.invocation_state
        self.idempotency_key = visit.idempotency_key
        self.check_now = visit.check

    async def save(self, saved: Saved) -> None:
        """Checkpoint."""
        await loops.in_thread(self._visit.save, saved)

    async def ask(self, questions: Sequence[Interrupt], saved: Saved) -> None:
        """Checkpoint and publish questions."""
        await loops.in_thread(self._visit.ask, questions, saved)

    async def check(self) -> None:
        """Raise when this work must stop."""
        await loops.in_thread(self._visit.check)


class DirectDesk:
    """The desk of a direct call: what was saved last is kept here."""

    def __init__(
        self,
        address: Address,
        answers: Mapping[str, Interrupt],
        invocation_state: dict[str, Any],
        stored: list[JSON],
    ) -> None:
        self.address = address
        self.answers = answers
        self.invocation_state = invocation_state
        self.idempotency_key = f"{address.run_id}.{address.node_id}.{address.visit}"
        self.document: dict[str, JSON] | None = None
        self.messages = list(stored)

    async def save(self, saved: Saved) -> None:
        """Checkpoint."""
        self.document = saved.document
        self.messages = [*self.messages[: saved.keep], *saved.messages]

    async def ask(self, questions: Sequence[Interrupt], saved: Saved) -> None:
        """Checkpoint; the questions are shown when the call returns."""
        del questions
        await self.save(saved)

    async def check(self) -> None:
        """Nobody else can take this work over."""

    def check_now(self) -> None:
        """Nobody else can take this work over."""


class InnerDesk:
    """The desk of an agent that serves as a tool."""

    def __init__(
        self,
        outer: Desk,
        key: str,
        attempt: int,
        *,
        answers: Mapping[str, Interrupt],
        messages: list[JSON],
        post: Callable[[Happening], Awaitable[None]],
    ) -> None:
        """Work for the call `key` of an agent whose own desk is `outer`."""
        number = f":{attempt}" if attempt > 1 else ""
        inside = f"{outer.address.within}tool:{key}{number}/"
        self.address = replace(outer.address, within=inside)
        self.answers = answers
        self.invocation_state = outer.invocation_state
        self.idempotency_key = f"{outer.idempotency_key}.{key}{number}"
        self.check_now = outer.check_now
        self._outer, self._key, self._messages, self._post = outer, key, messages, post

    def kept(self, saved: Saved) -> Inner:
        """Return what the outer agent keeps of this one."""
        self._messages = [*self._messages[: saved.keep], *saved.messages]
        return Inner(saved.document, self._messages)

    async def save(self, saved: Saved) -> None:
        """Checkpoint."""
        await self._post(InnerSaved(self._key, self.kept(saved)))

    async def ask(self, questions: Sequence[Interrupt], saved: Saved) -> None:
        """Checkpoint and publish questions."""
        await self._post(InnerAsked(self._key, list(questions), self.kept(saved)))

    async def check(self) -> None:
        """Raise when this work must stop."""
        await self._outer.check()
