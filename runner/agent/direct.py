"""An agent called directly: one conversation in memory, one invocation at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner import codec
from runner.agent.context import UserState
from runner.agent.desk import DirectDesk
from runner.agent.drive import Drive
from runner.agent.memory import begun
from runner.agent.prompts import as_messages
from runner.agent.results import AgentResult
from runner.agent.state import AgentState, Stage, fresh, restored, waits_for
from runner.asking import answered
from runner.errors import ResponseError, UsageError
from runner.interrupts import Address, Interrupt, answers_from, is_answers

if TYPE_CHECKING:
    from runner.agent.agent import Agent

JSON = Any
Emit = Callable[[dict[str, Any]], None]


class Conversation:
    """What an agent remembers between direct calls: its stored document, as a node's would be."""

    def __init__(self, agent: Agent, run_id: str) -> None:
        self._agent = agent
        self._run_id = run_id
        self._document: dict[str, JSON] | None = None
        self._visits = 0
        self._busy = threading.Lock()
        self._cancel = threading.Event()

    def cancel(self) -> None:
        """Stop before the next model or tool call."""
        self._cancel.set()

    async def invoke(
        self, prompt: Any, invocation_state: dict[str, Any], emit: Emit | None = None
    ) -> AgentResult:
        """Run one invocation, or go on with the one that waits.

        Raises:
            ResponseError: answers are waited for and these can't be used; nothing was applied.
            UsageError: the agent is running already.
        """
        if not self._busy.acquire(blocking=False):
            raise UsageError(f"agent {self._agent.name!r} is running already; wait until it is done.")
        try:
            return await self._invoke(prompt, invocation_state, emit)
        finally:
            self._busy.release()

    async def _invoke(self, prompt: Any, invocation_state: dict[str, Any], emit: Emit | None) -> AgentResult:
        messages = as_messages(self._agent.messages)
        state, answers = self._opened(prompt, len(messages))
        self._visits = state.visit
        self._cancel.clear()
        address = Address(self._run_id, self._agent.name, state.visit)
        desk = DirectDesk(address, answers, invocation_state, messages)
        drive = Drive(
            self._agent.recipe, desk, state, messages, stored=len(messages), cancel=self._cancel, emit=emit
        )
        try:
            ending = await drive.run()
            await desk.save(ending.saved)
        finally:
            # Without an ending, what was stored last is what a process that died here would find.
            self._keep(desk)
        if ending.error is not None:
            raise ending.error
        return ending.result

    def _keep(self, desk: DirectDesk) -> None:
        if desk.document is not None:
            self._document = desk.document
            self._agent.messages = codec.unpack(desk.messages)
            self._agent.state = UserState.restored(desk.document["user"])

    def _opened(self, prompt: Any, length: int) -> tuple[AgentState, dict[str, Interrupt]]:
        if self._document is None:
            past = fresh(0, {}, length)
        else:
            past = replace(restored(self._document), length=length)
        past = replace(past, user=self._agent.state.document())
        open_questions = waits_for(past)
        if open_questions or is_answers(prompt) or (prompt == [] and _is_stopped(past)):
            return past, _answers(past, prompt, self._agent.name)
        return begun(past, self._visits + 1, as_messages(prompt)), {}


def _is_stopped(state: AgentState) -> bool:
    return state.stage is not Stage.DONE


def _answers(state: AgentState, prompt: Any, name: str) -> dict[str, Interrupt]:
    """Check a set of answers as one; an answer to an answered question changes nothing."""
    given = answers_from(prompt)
    if not _is_stopped(state):
        raise ResponseError(f"agent {name!r} waits for no answers; give it a new input instead.")
    unknown = [answer.interrupt_id for answer in given if answer.interrupt_id not in state.questions]
    if unknown:
        raise ResponseError(f"agent {name!r} did not ask {unknown}; nothing was applied.")
    found: dict[str, Interrupt] = {}
    for answer in given:
        question = state.questions[answer.interrupt_id]
        if not answered(question) and question.id not in found:
            found[question.id] = replace(question, response=answer.response)
    return found
