"""The stored document of an agent: everything that must survive a pause, and nothing else.

The conversation itself is stored beside it, as deltas. All values are packed JSON data. Only
`fresh` has defaults: a stored document with a field missing or unknown is refused loudly.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import pydantic

from runner import codec
from runner.asking import answered
from runner.failures import ErrorRecord
from runner.interrupts import Interrupt

JSON = Any


class Stage(enum.StrEnum):
    """Where one pass through the agent stands; a pass ends where the agent ends or waits."""

    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    STOPPED = "stopped"
    FAILING = "failing"
    DONE = "done"


class Phase(enum.StrEnum):
    """Where in the loop the agent stands."""

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
    """Where one attempt of one tool call stands."""

    WAITING = "waiting"
    BEFORE = "before"
    RUNNING = "running"
    AFTER = "after"
    BROKEN = "broken"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Site:
    """One firing of a hook event; what it shows is read from the rest of the state.

    `asked` holds the ids of the questions of the last pass; with any, the site is parked, and what
    it shows stays as it was before the first callback.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    event: str
    key: str
    number: int
    asked: list[str]
    replayed: bool


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the Before callbacks left of a call: the use as it runs, and the tool's name, if any.

    `registered` tells whether the tool is the agent's own of that name.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    use: dict[str, JSON]
    tool: str | None
    registered: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A finished attempt before the first After callback: what every replay starts from.

    `duration` is in seconds, None where no tool ran.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    kind: Literal["success", "error", "cancelled", "unknown"]
    result: dict[str, JSON]
    exception: ErrorRecord | None
    cancel_message: str | None
    duration: float | None


@dataclass(frozen=True, slots=True)
class Inner:
    """What an agent that serves as a tool keeps, inside its caller's document."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    document: dict[str, JSON]
    messages: list[JSON]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the batch; `use` is as the model asked for it.

    With anything in `asked` it is parked at its stage. `structured` is the structured output that
    it produced, if it is that tool.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    use: dict[str, JSON]
    attempt: int
    stage: CallStage
    asked: list[str]
    replayed: bool
    chosen: Chosen | None
    snapshot: Snapshot | None
    result: dict[str, JSON] | None
    inner: Inner | None
    structured: JSON

    @property
    def id(self) -> str:
        """The tool use id: one of a kind in its conversation."""
        return str(self.use["toolUseId"])

    @property
    def active(self) -> bool:
        """Tell whether something of it is going on right now."""
        return self.stage in (CallStage.BEFORE, CallStage.RUNNING, CallStage.AFTER) and not self.asked


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply that isn't part of the conversation yet, or the error in its place."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    message: dict[str, JSON] | None
    stop_reason: str
    exception: ErrorRecord | None
    fault: Literal["", "throttled", "overflow", "other"]
    next_window: int | None


@dataclass(frozen=True, slots=True)
class Recalled:
    """What an invocation found in its session: how many messages came before it, and the state then."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    id: str
    first: int
    user: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class AgentState:
    """Where an agent stands in one visit of its node.

    `site` is the hook event of the loop that fires or is parked, `edge` that around the pass.
    `turn` counts model calls that were begun, `attempt` repeats of one, `window` is the index of
    the first message the model sees, `length` the number of messages in the conversation.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    v: Literal[1]
    visit: int
    passes: int
    inputs: int
    stage: Stage
    phase: Phase
    edge: Site | None
    site: Site | None
    prompt: list[JSON]
    turn: int
    first_turn: int
    attempt: int
    throttled: int
    reply: Reply | None
    calls: list[Call]
    round: int
    announced: bool
    questions: dict[str, Interrupt]
    usage: dict[str, int]
    model_state: dict[str, JSON]
    user: dict[str, JSON]
    window: int
    length: int
    forced: bool
    structured: JSON
    stop_reason: str
    cancelled: bool
    failure: ErrorRecord | None
    session: Recalled | None


def fresh(visit: int, user: dict[str, JSON], length: int) -> AgentState:
    """Begin an agent that has no past but `length` messages it was given."""
    return AgentState(
        v=1,
        visit=visit,
        passes=0,
        inputs=0,
        stage=Stage.DONE,
        phase=Phase.ENDED,
        edge=None,
        site=None,
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
        user=user,
        window=0,
        length=length,
        forced=False,
        structured=None,
        stop_reason="",
        cancelled=False,
        failure=None,
        session=None,
    )


def invoked(state: AgentState, visit: int, prompt: list[JSON]) -> AgentState:
    """Begin a new invocation with this input; memory stays, everything of the last one goes."""
    past = fresh(visit, state.user, state.length)
    return replace(
        past,
        stage=Stage.OPENING,
        phase=Phase.PROMPT,
        passes=1,
        inputs=1,
        prompt=prompt,
        model_state=state.model_state,
        window=state.window,
    )


def waits_for(state: AgentState) -> list[Interrupt]:
    """List the questions that are open: asked by a site or call and not answered."""
    parked = (state.edge, state.site, *state.calls)
    ids = [key for place in parked if place is not None for key in place.asked]
    return [state.questions[key] for key in ids if not answered(state.questions[key])]


def woken(state: AgentState, asked: list[str]) -> bool:
    """Tell whether one of these questions was answered."""
    return any(answered(state.questions[key]) for key in asked)


def said(content: list[JSON]) -> Reply:
    """Make the reply that a callback gave in the model's place."""
    return Reply({"role": "assistant", "content": content}, "end_turn", None, "", None)


def summed(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    """Add up counts of tokens by name."""
    return {name: counts.get(name, 0) + more.get(name, 0) for name in {**counts, **more}}


def document(state: AgentState) -> dict[str, JSON]:
    """Turn the state into the JSON data that is stored."""
    found: dict[str, JSON] = codec.load_json(codec.encode(state))
    return found


def restored(stored: dict[str, JSON]) -> AgentState:
    """Read stored data.

    Raises:
        CorruptDocument: it is not what this version stores.
    """
    return codec.decode(AgentState, codec.dump_json(stored))
