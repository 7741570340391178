"""Changes and commands of one step of the agent's machine, and moves shared by all phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from runner.agent.machine.protocol import (
    AgentDefinition,
    Command,
    Finish,
    FireHook,
    PublishQuestions,
)
from runner.agent.machine.state import AgentState, HookPoint, PassStage, ToolCall, waits
from runner.records.asking import is_answered
from runner.records.budgets import AWAITED
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt


class Transition:
    """A state under change. `moved` makes the step continue from the current phase."""

    def __init__(self, definition: AgentDefinition, state: AgentState) -> None:
        self.definition = definition
        self.state = state
        self.commands: list[Command] = []
        self.moved = False

    def put(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def add(self, command: Command) -> None:
        self.commands.append(command)

    def go_on(self, **changes: Any) -> None:
        """Change fields and continue from the resulting phase."""
        self.put(**changes)
        self.moved = True

    # -- tool calls -------------------------------------------------------------------------------

    def call(self, key: str) -> ToolCall:
        return next(call for call in self.state.calls if call.id == key)

    def put_call(self, key: str, **changes: Any) -> None:
        self.put(calls=[replace(c, **changes) if c.id == key else c for c in self.state.calls])

    # -- hook events ------------------------------------------------------------------------------

    def fire_hook(self, event: str, key: object, number: int) -> None:
        point = HookPoint(event, str(key), number, [], replayed=False)
        self.put(hook_point=point)
        self.add(fire_command(point))

    def fire_invocation_hook(self, event: str, number: int) -> None:
        """Fire an event around the pass."""
        point = HookPoint(event, "", number, [], replayed=False)
        self.put(invocation_hook_point=point)
        self.add(fire_command(point))

    def record(self, questions: Sequence[Interrupt]) -> list[str]:
        """Keep questions, publish new ones and return all ids."""
        new_questions = [
            question for question in questions if question.id not in self.state.questions
        ]
        if new_questions:
            self.put(
                questions={
                    **self.state.questions,
                    **{question.id: question for question in new_questions},
                }
            )
            asked = [
                question for question in new_questions if not question.id.startswith(AWAITED)
            ]
            if asked:
                self.add(PublishQuestions(asked))
        return [question.id for question in questions]

    # -- ends -------------------------------------------------------------------------------------

    def close_pass(self, stop_reason: str) -> None:
        """End the pass: the agent is done, waits, or was cancelled."""
        self.put(stage=PassStage.CLOSING, stop_reason=stop_reason)
        self.fire_invocation_hook("after_invocation", self.state.passes)

    def fail(self, error: ErrorRecord) -> None:
        """End the invocation with an error; its progress is kept for another attempt."""
        self.put(failure=self.state.failure or error)
        if self.state.stage is PassStage.RUNNING:
            self.put(stage=PassStage.FAILING)
            self.add(FireHook("after_invocation", "", self.state.passes, replay=False))
        else:
            self.finish("failed")

    def finish(self, kind: Literal["done", "interrupt", "failed"]) -> None:
        """Finish the execution, and drop open questions that weren't asked again."""
        open_ids = {question.id for question in waits(self.state)}
        questions = {
            k: q for k, q in self.state.questions.items() if is_answered(q) or k in open_ids
        }
        self.put(questions=questions)
        self.add(Finish(kind))


def fire_command(point: HookPoint) -> FireHook:
    return FireHook(point.event, point.key, point.number, replay=point.replayed)
