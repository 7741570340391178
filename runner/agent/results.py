"""What comes out: a tool's result in the shape that a model takes, and an agent's own result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pydantic

from runner import codec
from runner.errors import UnstorableError, UsageError
from runner.interrupts import Interrupt

JSON = Any

STATUSES = frozenset({"success", "error"})
BLOCKS = frozenset({"text", "json", "image", "document", "video"})


def content_of(returned: Any, name: str) -> dict[str, Any]:
    """Turn what a tool returned into a packed result without its id.

    A dict with status and content, or a list of content blocks, is taken as it is.

    Raises:
        UnstorableError: it can't be stored.
    """
    where = f"the result of tool {name}"
    if isinstance(returned, pydantic.BaseModel):
        returned = codec.plain(returned)
    if is_result(returned):
        packed: dict[str, Any] = codec.pack({k: returned[k] for k in ("status", "content")}, where)
        return packed
    if _is_content(returned):
        return {"status": "success", "content": codec.pack(returned, where)}
    if isinstance(returned, Mapping):
        return {"status": "success", "content": [{"json": codec.pack(returned, where)}]}
    if isinstance(returned, bytes):
        raise UnstorableError(f"{where} is bytes; return text, JSON data or a content block.")
    if isinstance(returned, str):
        text = codec.pack(returned, where)
    else:
        text = codec.dump_json(codec.plain(codec.pack(returned, where))).decode()
    return {"status": "success", "content": [{"text": text}]}


def is_result(value: Any) -> bool:
    """Tell whether a value has the shape of a tool result."""
    return (
        isinstance(value, Mapping)
        and value.get("status") in STATUSES
        and isinstance(value.get("content"), list)
    )


def _is_content(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, Mapping) and len(block) == 1 and block.keys() <= BLOCKS for block in value)
    )


def replaced_result(value: Any, name: str) -> dict[str, JSON]:
    """Check a result that a callback put in the place of a tool's.

    Raises:
        UsageError: it has not the shape of a tool result.
    """
    if not is_result(value):
        raise UsageError(f"a callback gave tool {name} a result without status and content.")
    return content_of(value, name)


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
        """Return the open questions, else the structured output as JSON, else the text."""
        if self.interrupts:
            return str([{"id": i.id, "name": i.name, "reason": i.reason} for i in self.interrupts])
        if self.structured_output is not None:
            return codec.dump_json(codec.plain(self.structured_output)).decode()
        return "".join(f"{text}\n" for text in texts(self.message))

    @property
    def output(self) -> JSON:
        """What the next nodes get: the structured output as JSON data, else the text."""
        if self.structured_output is not None:
            return codec.plain(self.structured_output)
        return "\n".join(texts(self.message))

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


def texts(message: Mapping[str, Any]) -> list[str]:
    """List the texts of a message, those with citations included."""
    found: list[str] = []
    for block in message.get("content", ()):
        if "text" in block:
            found.append(block["text"])
        elif "citationsContent" in block:
            found.extend(part["text"] for part in block["citationsContent"]["content"] if "text" in part)
    return found
