"""How an invocation of an agent ended, as users read it and as it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from runner.records import codec
from runner.records.codec import JSON
from runner.records.interrupts import Interrupt


@dataclass
class AgentResult:
    """How an invocation of an agent ended.

    `stop_reason` is end_turn, tool_use, interrupt, cancelled, limit_turns, limit_total_tokens,
    limit_output_tokens or the model's own. `usage` counts tokens of this invocation, `state` is the
    agent's state, `interrupts` are the open questions.
    """

    stop_reason: str
    message: dict[str, Any]
    interrupts: Sequence[Interrupt] = ()
    state: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    structured_output: Any = None

    def __str__(self) -> str:
        """Return the open questions, or the structured output as JSON, or the text."""
        if self.interrupts:
            return str([{"id": i.id, "name": i.name, "reason": i.reason} for i in self.interrupts])
        if self.structured_output is not None:
            return codec.dump_json(codec.plain(self.structured_output)).decode()
        return "".join(f"{text}\n" for text in _texts(self.message))

    @property
    def output(self) -> JSON:
        """What the next nodes get: the structured output as JSON data, otherwise the text."""
        if self.structured_output is not None:
            return codec.plain(self.structured_output)
        return "\n".join(_texts(self.message))

    def to_document(self) -> dict[str, JSON]:
        """Return the packed form that is stored."""
        return {
            "type": "agent_result",
            "stop_reason": self.stop_reason,
            "message": codec.pack(self.message, "message"),
            "interrupts": [asdict(interrupt) for interrupt in self.interrupts],
            "state": codec.pack(self.state, "state"),
            "usage": dict(self.usage),
            "structured_output": codec.pack(self.structured_output, "structured_output"),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, JSON]) -> AgentResult:
        """Restore a result; a structured output is its model again where that class is imported."""
        return cls(
            stop_reason=document["stop_reason"],
            message=codec.unpack(document["message"]),
            interrupts=[codec.decode(Interrupt, codec.dump_json(i)) for i in document["interrupts"]],
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
            texts.extend(part["text"] for part in block["citationsContent"]["content"] if "text" in part)
    return texts
