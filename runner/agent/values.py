"""What the agent's machine asks for (requests) and what it hears back (happenings).

All are frozen values of packed JSON data, so that a test can print, store and compare them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.agent.state import Inner, Reply
from runner.failures import ErrorRecord
from runner.interrupts import Interrupt

JSON = Any


@dataclass(frozen=True, slots=True)
class Definition:
    """What the machine must know of an agent; tokens and turns are limits of one invocation.

    `structured` names the tool that takes the structured output, `tool_attempts` and
    `model_attempts` bound repeats (the latter of throttled calls only).
    """

    sequential: bool = False
    structured: str | None = None
    max_turns: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None
    tool_attempts: int | None = None
    model_attempts: int = 6
    first_delay: float = 4.0
    max_delay: float = 240.0


# -- requests: what the drive has to do, in this order ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Add a message to the conversation."""

    message: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class Redact:
    """Replace the content of the last message with this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Fire:
    """Fire a hook event, made from the state as it now is; answer with Fired or Broke."""

    event: str
    key: str
    number: int
    replay: bool

    @property
    def scope(self) -> str:
        """What its questions are filed under."""
        return f"{self.event}:{self.key}" if self.key else self.event


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model; answer with Replied. `forced` makes it give the structured output."""

    forced: bool


@dataclass(frozen=True, slots=True)
class RunTool:
    """Run a tool; answer with ToolEnded, ToolAsked or Broke. `inner` is an agent's kept state."""

    use: dict[str, JSON]
    attempt: int
    tool: str
    replay: bool
    inner: Inner | None


@dataclass(frozen=True, slots=True)
class Save:
    """Store a checkpoint; what follows begins only once it is stored, if `first` says so."""

    first: bool


@dataclass(frozen=True, slots=True)
class Publish:
    """Show these questions to people now."""

    questions: list[Interrupt]


@dataclass(frozen=True, slots=True)
class Wait:
    """Let some seconds pass; answer with Waited."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: "done" (see the stop reason), "interrupt", or "failed"."""

    kind: Literal["done", "interrupt", "failed"]


Request = Append | Redact | Fire | CallModel | RunTool | Save | Publish | Wait | Finish


# -- happenings: what the machine hears ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """An execution begins, with all answers given so far; anything that was going on is lost."""

    answers: Mapping[str, Interrupt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fired:
    """All callbacks of an event ran; `changes` holds its writable attributes, packed.

    With questions in `asked` the changes count for nothing.
    """

    event: str
    key: str
    changes: dict[str, JSON] = field(default_factory=dict)
    asked: list[Interrupt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Replied:
    """The model call ended; counts of tokens are this call's, `model_state` None keeps the old one.

    `redact` replaces what the last user message said: the provider found it unfit.
    """

    reply: Reply
    usage: dict[str, int] = field(default_factory=dict)
    model_state: dict[str, JSON] | None = None
    window: int = 0
    redact: str | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool returned or raised; `duration` is in seconds."""

    id: str
    result: dict[str, JSON]
    exception: ErrorRecord | None = None
    duration: float | None = None
    structured: JSON = None
    usage: dict[str, int] = field(default_factory=dict)
    inner: Inner | None = None


@dataclass(frozen=True, slots=True)
class ToolAsked:
    """A tool asked a person and left."""

    id: str
    questions: list[Interrupt]
    usage: dict[str, int] = field(default_factory=dict)
    inner: Inner | None = None


@dataclass(frozen=True, slots=True)
class InnerAsked:
    """An agent that serves as a tool asked a person while it still works."""

    id: str
    questions: list[Interrupt]
    inner: Inner


@dataclass(frozen=True, slots=True)
class InnerSaved:
    """An agent that serves as a tool made a checkpoint."""

    id: str
    inner: Inner


@dataclass(frozen=True, slots=True)
class Broke:
    """A callback raised, or a question could not be asked: the invocation ends in this error."""

    event: str
    key: str
    error: ErrorRecord


@dataclass(frozen=True, slots=True)
class Waited:
    """The time to wait is over."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller wants this invocation to end as soon as nothing runs any more."""


Happening = (
    Started | Fired | Replied | ToolEnded | ToolAsked | InnerAsked | InnerSaved | Broke | Waited | Cancelled
)
