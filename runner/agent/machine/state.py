"""The stored document of an agent: everything that must survive a pause, and nothing else.

The conversation is stored beside it, as deltas. All values are packed JSON data. Only `new_state`
has defaults: a stored document with a missing or unknown field is refused.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Literal

from runner.errors import CorruptDocument
from runner.immutable import immutable
from runner.records import codec
from runner.records.asking import is_answered
from runner.records.budgets import AWAITED
from runner.records.codec import JSON, JSONObject
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt, usual_dropped


class PassStage(enum.StrEnum):
    """The stage of one pass through the agent; a pass ends when the agent ends or waits."""

    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    STOPPED = "stopped"
    FAILING = "failing"
    DONE = "done"


class Phase(enum.StrEnum):
    """The agent's place in the loop."""

    PROMPT = "prompt"
    BEFORE_MODEL = "before_model"
    MODEL = "model"
    THROTTLED = "throttled"
    AFTER_MODEL = "after_model"
    REPLIED = "replied"
    TOOLS = "tools"
    AFTER_TOOLS = "after_tools"
    RESULTS = "results"
    ENDED = "ended"


class CallStage(enum.StrEnum):
    """The stage of one attempt of one tool call."""

    WAITING = "waiting"
    BEFORE = "before"
    RUNNING = "running"
    AFTER = "after"
    BROKEN = "broken"
    DONE = "done"


@codec.strict
@immutable
class HookPoint:
    """One firing of a hook event, whose data is read from the rest of the state.

    `question_ids` are the questions asked by its callbacks in the last pass. With any, it is
    parked, and its data stays as it was before the first callback.
    """

    event: str
    key: str
    number: int
    question_ids: list[str]
    replayed: bool


@codec.strict
@immutable
class Selection:
    """Call as left by the Before callbacks: the use to run, and the tool's name, if any.

    `registered` is true if the tool is the agent's own tool of that name.
    """

    use: JSONObject
    tool: str | None
    registered: bool


@codec.strict
@immutable
class Snapshot:
    """A finished attempt before the first After callback; every replay starts from it.

    `duration` is in seconds, or None if no tool ran.
    """

    kind: Literal["success", "error", "cancelled", "unknown"]
    result: JSONObject
    exception: ErrorRecord | None
    cancel_message: str | None
    duration: float | None


@codec.strict
@immutable
class SubagentState:
    """The document and conversation of an agent used as a tool, inside its caller's document."""

    document: JSONObject
    messages: list[JSON]


@codec.strict
@immutable
class ToolCall:
    """One tool call of a reply; `use` is the model's request.

    With `question_ids` it is parked at its stage. `structured` is the structured output, if this
    call produced it.
    """

    use: JSONObject
    attempt: int
    stage: CallStage
    question_ids: list[str]
    replayed: bool
    selection: Selection | None
    snapshot: Snapshot | None
    result: JSONObject | None
    subagent: SubagentState | None
    structured: JSON

    @property
    def id(self) -> str:
        """The tool use id, unique in its conversation."""
        return str(self.use["toolUseId"])

    @property
    def active(self) -> bool:
        return (
            self.stage in (CallStage.BEFORE, CallStage.RUNNING, CallStage.AFTER)
            and not self.question_ids
        )


@codec.strict
@immutable
class ModelReply:
    """A model's reply that isn't part of the conversation yet, or the error in its place."""

    message: JSONObject | None
    stop_reason: str
    exception: ErrorRecord | None
    fault: Literal["", "throttled", "overflow", "other"]
    next_window: int | None


@codec.strict
@immutable
class SessionStart:
    """The session when the invocation began: its id, the number of messages, and the user state."""

    id: str
    length: int
    user_state: JSONObject


@codec.strict
@immutable
class AgentState:
    """The state of an agent in one visit of its node.

    `hook_point` is the loop's hook event that is firing or parked, `invocation_hook_point` the one
    around the pass. `turn` counts turns of the loop, `attempt` the model calls of one turn.
    `window` is the index of the first message the model sees, `length` the number of messages.
    """

    v: Literal[1]
    visit: int
    passes: int
    inputs: int
    stage: PassStage
    phase: Phase
    invocation_hook_point: HookPoint | None
    hook_point: HookPoint | None
    prompt: list[JSON]
    turn: int
    first_turn: int
    attempt: int
    throttled: int
    reply: ModelReply | None
    calls: list[ToolCall]
    round: int
    announced: bool
    questions: dict[str, Interrupt]
    usage: dict[str, int]
    model_state: JSONObject
    user_state: JSONObject
    window: int
    length: int
    forced: bool
    structured: JSON
    stop_reason: str
    cancelled: bool
    failure: ErrorRecord | None
    session: SessionStart | None


def new_state(visit: int, user_state: JSONObject, length: int) -> AgentState:
    """Return the state of an agent before its first invocation, with `length` messages."""
    return AgentState(
        v=1,
        visit=visit,
        passes=0,
        inputs=0,
        stage=PassStage.DONE,
        phase=Phase.ENDED,
        invocation_hook_point=None,
        hook_point=None,
        prompt=[],
        turn=0,
        first_turn=0,
        attempt=1,
        throttled=0,
        reply=None,
        calls=[],
        round=0,
        announced=False,
        questions={},
        usage={},
        model_state={},
        user_state=user_state,
        window=0,
        length=length,
        forced=False,
        structured=None,
        stop_reason="",
        cancelled=False,
        failure=None,
        session=None,
    )


def new_invocation(past: AgentState, visit: int, prompt: list[JSON]) -> AgentState:
    """Begin an invocation with new input; user state, model state and window are kept."""
    return replace(
        new_state(visit, past.user_state, past.length),
        stage=PassStage.OPENING,
        phase=Phase.PROMPT,
        passes=1,
        inputs=1,
        prompt=prompt,
        model_state=past.model_state,
        window=past.window,
    )


def open_questions(state: AgentState) -> list[Interrupt]:
    """List the unanswered questions of hook points and calls."""
    return [question for question in waits(state) if not question.id.startswith(AWAITED)]


def waits(state: AgentState) -> list[Interrupt]:
    """List the open questions, with placeholders for the questions of others."""
    stops = (state.invocation_hook_point, state.hook_point, *state.calls)
    ids = [key for stop in stops if stop is not None for key in stop.question_ids]
    questions = [state.questions[key] for key in ids if key in state.questions]
    return [question for question in questions if not is_answered(question)]


def any_answered(state: AgentState, question_ids: list[str]) -> bool:
    """Return whether a question was answered, or its placeholder for another's question is gone."""
    return any(
        key not in state.questions or is_answered(state.questions[key]) for key in question_ids
    )


def callback_reply(content: list[JSON]) -> ModelReply:
    """Make a reply that replaces the model's."""
    return ModelReply({"role": "assistant", "content": content}, "end_turn", None, "", None)


def add_usage(counts: dict[str, int], usage: dict[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + usage.get(name, 0) for name in {**counts, **usage}}


def to_document(state: AgentState) -> JSONObject:
    """Return the state as JSON data for storage."""
    document: JSONObject = codec.load_json(codec.encode(state))
    for question in document["questions"].values():
        usual_dropped(question)
    return document


def from_document(document: JSONObject) -> AgentState:
    """Read stored data.

    Raises:
        CorruptDocument: the data doesn't have this version's form, or two calls have the same id.
    """
    state = codec.decode(AgentState, codec.dump_json(document))
    if len({call.id for call in state.calls}) < len(state.calls):
        raise CorruptDocument("two calls of a stored agent have one id, so nothing was called.")
    return state
