"""Views of an agent for users: its state, the tool context with its `interrupt`, and the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Unpack

from typing_extensions import TypeVar

from runner.records import codec
from runner.records.asking import Asker, typed_interrupt
from runner.records.codec import JSON, JSONObject
from runner.records.interrupts import Interrupt, InterruptOptions, usual_dropped

_Agent = TypeVar("_Agent", default=Any)


class UserState:
    """An agent's state: JSON values by name, kept across pauses and visits."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: JSONObject = {}
        for key, value in (values or {}).items():
            self.set(key, value)

    def get(self, key: str | None = None) -> Any:
        """Return a copy of one value, or None if it isn't set; without a key, a copy of all."""
        if key is None:
            return codec.unpack(self._values)
        return codec.unpack(self._values.get(key))

    def set(self, key: str, value: Any) -> None:
        """Keep a copy of a value.

        Raises:
            UnstorableError: the value can't be stored.
        """
        self._values = {**self._values, str(key): codec.pack(value, f"agent state {key!r}")}

    def delete(self, key: str) -> None:
        """Delete a value, if it is set."""
        self._values = codec.without(self._values, key)

    def document(self) -> JSONObject:
        return self._values

    @classmethod
    def restored(cls, document: JSONObject) -> UserState:
        state = cls()
        state._values = document
        return state


@dataclass(eq=False)
class AgentView:
    """View of a running agent; `messages` is a copy, while `state` may be changed."""

    name: str
    state: UserState
    _messages: Callable[[], list[JSON]]
    cancel_signal: threading.Event

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far."""
        return list(codec.unpack(self._messages()))


class ToolContext(Generic[_Agent]):
    """Context of a tool call. `attempt` counts retries, not resumes.

    `idempotency_key` is the same string at every start of this attempt, even after a crash or an
    answer: pass it to services that take one. As in a node, it is derived from the idempotency key
    that the run was started with.
    """

    def __init__(
        self,
        tool_use: dict[str, Any],
        agent: AgentView,
        asker: Asker,
        *,
        invocation_state: dict[str, Any],
        idempotency_key: str,
        attempt: int = 1,
        is_replay: bool = False,
        check: Callable[[], None] | None = None,
        report_progress: Callable[[float, str], object] | None = None,
    ) -> None:
        self.tool_use = tool_use
        self.agent = agent
        self.invocation_state = invocation_state
        self.idempotency_key = idempotency_key
        self.attempt = attempt
        self.is_replay = is_replay
        self._asker = asker
        self._check = check
        self._report_progress = report_progress

    @property
    def cancel_signal(self) -> threading.Event:
        """The event set when this work is no longer wanted; pass it to calls that can stop."""
        return self.agent.cancel_signal

    @property
    def cancelled(self) -> bool:
        """Return whether this work was cancelled or taken over by another worker."""
        return self.agent.cancel_signal.is_set()

    def check(self) -> None:
        """Stop here if the lease was lost or the run was cancelled; call it in long loops.

        Raises:
            LeaseLost: another worker continues. RunStopped: the run was cancelled.
        """
        if self._check is not None:
            self._check()

    def progress(self, fraction: float, note: str = "") -> None:
        """Report this call's progress to people watching the run; `fraction` goes from 0 to 1."""
        if self._report_progress is not None:
            self._report_progress(float(fraction), str(note))

    @typed_interrupt
    def interrupt(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        **options: Unpack[InterruptOptions],
    ) -> Any:
        """Ask a person: the first call leaves the tool, which reruns from its top after the answer.

        `response` is an answer given in advance. The options are as in `NodeContext.interrupt`:
        response_schema, assignees, expires_in, on_expire, remind_every and remind_after.

        Raises:
            UsageError: the question can't be asked as it is; this ends the invocation.
            InterruptExpired: no answer came in time.
        """
        return self._asker.decide(name, reason, response, **options)[0]


@dataclass
class AgentMetrics:
    """Metrics of one invocation; Strands counts an agent's whole life, and times its calls, too."""

    accumulated_usage: dict[str, int]

    def get_summary(self) -> dict[str, Any]:
        """Return the metrics as a dict."""
        return asdict(self)


@dataclass
class AgentResult:
    """Result of an agent's invocation.

    `stop_reason` is end_turn, tool_use, interrupt, cancelled, limit_turns, limit_total_tokens,
    limit_output_tokens or the model's own. `usage` counts this invocation's tokens, `state` is the
    agent's state, and `interrupts` are the open questions.
    """

    stop_reason: str
    message: dict[str, Any]
    interrupts: Sequence[Interrupt] = ()
    state: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    structured_output: Any = None

    @property
    def metrics(self) -> AgentMetrics:
        """The usage in the shape of Strands."""
        return AgentMetrics(
            {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0, **self.usage}
        )

    def __str__(self) -> str:
        """Return the open questions, or the structured output as JSON, or the text."""
        if self.interrupts:
            return str(
                [{"id": i.id, "name": i.name, "reason": i.reason} for i in self.interrupts]
            )
        if self.structured_output is not None:
            return codec.dump_json(codec.plain(self.structured_output)).decode()
        return "".join(f"{text}\n" for text in _texts(self.message))

    @property
    def output(self) -> JSON:
        """Output for the next nodes: the structured output as JSON data, otherwise the text."""
        if self.structured_output is not None:
            return codec.plain(self.structured_output)
        return "\n".join(_texts(self.message))

    def to_document(self) -> JSONObject:
        """Return the packed form for storage."""
        return {
            "type": "agent_result",
            "stop_reason": self.stop_reason,
            "message": codec.pack(self.message, "message"),
            "interrupts": [usual_dropped(asdict(interrupt)) for interrupt in self.interrupts],
            "state": codec.pack(self.state, "state"),
            "usage": dict(self.usage),
            "structured_output": codec.pack(self.structured_output, "structured_output"),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, JSON]) -> AgentResult:
        """Restore a result; structured output becomes its model again if that class is imported."""
        return cls(
            stop_reason=document["stop_reason"],
            message=codec.unpack(document["message"]),
            interrupts=[
                codec.decode(Interrupt, codec.dump_json(i)) for i in document["interrupts"]
            ],
            state=codec.unpack(document["state"]),
            usage=dict(document["usage"]),
            structured_output=codec.unpack(document["structured_output"]),
        )


def _texts(message: Mapping[str, Any]) -> list[str]:
    """List the texts of a message, those with citations included."""
    texts: list[str] = []
    for block in message.get("content", ()):
        if "text" in block:
            texts.append(block["text"])
        elif "citationsContent" in block:
            texts.extend(
                item["text"] for item in block["citationsContent"]["content"] if "text" in item
            )
    return texts
