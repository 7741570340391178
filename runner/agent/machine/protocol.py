"""The machine's inputs and outputs: an agent's definition, events from the shell, commands to it.

All are frozen values of packed JSON data, so that a test can print, store and compare them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner.agent.machine.state import ModelReply, SubagentState
from runner.approvals.ballots import Use
from runner.records.codec import JSON
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """Properties of an agent that the machine needs; tokens and turns are limits of one invocation.

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


# -- commands: what the shell must do, in this order --------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendMessage:
    """Add a message to the conversation."""

    message: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class RedactMessage:
    """Replace the content of the last message with this text."""

    text: str


@dataclass(frozen=True, slots=True)
class FireHook:
    """Fire a hook event, made from the state as it now is; answered by HookFired or CallbackFailed."""

    event: str
    key: str
    number: int
    replay: bool

    @property
    def scope(self) -> str:
        return f"{self.event}:{self.key}" if self.key else self.event


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model; answered by ModelReplied. `forced` offers it only the output tool."""

    forced: bool


@dataclass(frozen=True, slots=True)
class RunTool:
    """Run a tool; answered by ToolEnded, ToolAsked or CallbackFailed."""

    use: dict[str, JSON]
    attempt: int
    tool: str
    replay: bool
    subagent: SubagentState | None


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Store a checkpoint; if it is `blocking`, what follows begins only once it is stored."""

    blocking: bool


@dataclass(frozen=True, slots=True)
class PublishQuestions:
    """Publish questions at once, while other work goes on; a checkpoint goes with them."""

    questions: list[Interrupt]


@dataclass(frozen=True, slots=True)
class RecordUse:
    """Store that a decision is used, with a checkpoint; the call that it is for begins only then. Or that
    the call has ended.
    """

    use: Use


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause before the next model call, after throttling; answered by Waited."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: "done" (see the stop reason), "interrupt", or "failed"."""

    kind: Literal["done", "interrupt", "failed"]


Command = (
    AppendMessage
    | RedactMessage
    | FireHook
    | CallModel
    | RunTool
    | WriteCheckpoint
    | PublishQuestions
    | RecordUse
    | Wait
    | Finish
)


# -- events: what happened ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """An execution begins, with all answers so far; whatever was running before is lost."""

    answers: Mapping[str, Interrupt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HookFired:
    """All callbacks of a hook event ran; `changes` holds its writable attributes, packed.

    A change that is absent is the default. With `questions` the changes count for nothing.
    """

    event: str
    key: str
    changes: dict[str, JSON] = field(default_factory=dict)
    questions: list[Interrupt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """The model call ended; counts of tokens are this call's, `model_state` None keeps the old one.

    `redact` replaces the text of the last user message: the provider rejected its content.
    """

    reply: ModelReply
    usage: dict[str, int] = field(default_factory=dict)
    model_state: dict[str, JSON] | None = None
    window: int = 0
    redact: str | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool returned or raised; `duration` is in seconds, `effect` what it did by a decision."""

    id: str
    result: dict[str, JSON]
    exception: ErrorRecord | None = None
    duration: float | None = None
    structured: JSON = None
    usage: dict[str, int] = field(default_factory=dict)
    subagent: SubagentState | None = None
    effect: Use | None = None


@dataclass(frozen=True, slots=True)
class ToolAsked:
    """A tool asked a person and stopped; it runs again after the answer."""

    id: str
    questions: list[Interrupt]
    usage: dict[str, int] = field(default_factory=dict)
    subagent: SubagentState | None = None


@dataclass(frozen=True, slots=True)
class SubagentAsked:
    """An agent that serves as a tool asked a person while it still works."""

    id: str
    questions: list[Interrupt]
    subagent: SubagentState


@dataclass(frozen=True, slots=True)
class SubagentSaved:
    """An agent that serves as a tool made a checkpoint."""

    id: str
    subagent: SubagentState


@dataclass(frozen=True, slots=True)
class ApprovalUsed:
    """A tool call is about to begin that was approved; of an agent that serves as a tool with its state."""

    id: str
    use: Use
    subagent: SubagentState | None = None


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """A callback raised, or a tool's question was refused: the invocation ends in this error."""

    event: str
    key: str
    error: ErrorRecord


@dataclass(frozen=True, slots=True)
class Waited:
    """The time to wait is over."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller wants this invocation to end as soon as nothing runs any more."""


MachineEvent = (
    Started
    | HookFired
    | ModelReplied
    | ToolEnded
    | ToolAsked
    | SubagentAsked
    | SubagentSaved
    | ApprovalUsed
    | CallbackFailed
    | Waited
    | Cancelled
)
