"""The machine's inputs and outputs: an agent's definition, events from the shell, commands to it.

All are frozen values of packed JSON data, so that tests can print, store and compare them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from runner.agent.machine.state import ModelReply, SubagentState
from runner.approvals.ballots import Use
from runner.immutable import immutable
from runner.records.codec import JSON, JSONObject
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt


@immutable
class AgentDefinition:
    """Properties of an agent for the machine; tokens and turns are limits of one invocation.

    `structured` names the tool that takes the structured output; `tool_attempts` and
    `model_attempts` bound the attempts of a call (of models, only throttled ones count).
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


# -- commands for the shell, to be carried out in order -----------------------------------------------


@immutable
class AppendMessage:
    """Add a message to the conversation."""

    message: JSONObject


@immutable
class RedactMessage:
    """Replace the content of the last message with this text."""

    text: str


@immutable
class FireHook:
    """Fire a hook event made from the current state; answered by HookFired or CallbackFailed."""

    event: str
    key: str
    number: int
    replay: bool

    @property
    def scope(self) -> str:
        return f"{self.event}:{self.key}" if self.key else self.event


@immutable
class CallModel:
    """Call the model; answered by ModelReplied. If `forced`, it gets only the output tool."""

    forced: bool


@immutable
class RunTool:
    """Run a tool; answered by ToolEnded, ToolAsked or CallbackFailed."""

    use: JSONObject
    attempt: int
    tool: str
    replay: bool
    subagent: SubagentState | None


@immutable
class WriteCheckpoint:
    """Store a checkpoint; if it is `blocking`, later commands begin only once it is stored."""

    blocking: bool


@immutable
class PublishQuestions:
    """Publish questions with a checkpoint at once, while other work continues."""

    questions: list[Interrupt]


@immutable
class RecordUse:
    """Store the use of a decision, with a checkpoint; its call begins only then. Or store that the
    call has ended.
    """

    use: Use


@immutable
class Wait:
    """Pause before the next model call, after throttling; answered by Waited."""

    seconds: float


@immutable
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


# -- events from the shell ----------------------------------------------------------------------------


@immutable
class Started:
    """An execution begins, with all answers so far; work that ran before it is lost."""

    answers: Mapping[str, Interrupt] = field(default_factory=dict)


@immutable
class HookFired:
    """All callbacks of a hook event ran; `changes` holds its writable attributes, packed.

    An absent change means the default. With `questions`, changes are ignored.
    """

    event: str
    key: str
    changes: JSONObject = field(default_factory=dict)
    questions: list[Interrupt] = field(default_factory=list)


@immutable
class ModelReplied:
    """The model call ended; `usage` is this call's, and `model_state` None keeps the old one.

    `redact` replaces the text of the last user message, whose content the provider rejected.
    """

    reply: ModelReply
    usage: dict[str, int] = field(default_factory=dict)
    model_state: JSONObject | None = None
    window: int = 0
    redact: str | None = None


@immutable
class ToolEnded:
    """A tool returned or raised; `duration` is in seconds, `effect` the use of a decision."""

    id: str
    result: JSONObject
    exception: ErrorRecord | None = None
    duration: float | None = None
    structured: JSON = None
    usage: dict[str, int] = field(default_factory=dict)
    subagent: SubagentState | None = None
    effect: Use | None = None


@immutable
class ToolAsked:
    """A tool asked a person and stopped; it runs again after the answer."""

    id: str
    questions: list[Interrupt]
    usage: dict[str, int] = field(default_factory=dict)
    subagent: SubagentState | None = None


@immutable
class SubagentAsked:
    """An agent that serves as a tool asked a person while it still works."""

    id: str
    questions: list[Interrupt]
    subagent: SubagentState


@immutable
class SubagentSaved:
    """An agent that serves as a tool made a checkpoint."""

    id: str
    subagent: SubagentState


@immutable
class ApprovalUsed:
    """An approved tool call is about to begin; an agent that serves as a tool adds its state."""

    id: str
    use: Use
    subagent: SubagentState | None = None


@immutable
class CallbackFailed:
    """A callback raised, or a tool's question was refused: the invocation ends with this error."""

    event: str
    key: str
    error: ErrorRecord


@immutable
class Waited:
    """The wait after throttling is over."""


@immutable
class Cancelled:
    """The caller wants this invocation to end once nothing is running."""


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
