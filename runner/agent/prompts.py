"""Turns what a caller gives an agent into messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner import codec
from runner.errors import UsageError

JSON = Any

ROLES = frozenset({"user", "assistant"})


def as_messages(prompt: Any) -> list[JSON]:
    """Read a text, content blocks or whole messages as packed messages; None is no message.

    Raises:
        UsageError: it is none of these.
    """
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "content": [{"text": codec.pack(prompt, "prompt")}]}]
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise UsageError(f"an agent takes a text, content blocks or messages, not a {type(prompt).__name__}.")
    if all(_is_message(item) for item in prompt):
        packed: list[JSON] = codec.pack([dict(item) for item in prompt], "messages")
        return packed
    if all(isinstance(item, Mapping) and "role" not in item for item in prompt):
        return [{"role": "user", "content": codec.pack(prompt, "prompt")}]
    raise UsageError("an agent's input mixes messages with something else; give messages or blocks.")


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("role") in ROLES and isinstance(item.get("content"), list)


def merged(first: list[JSON], then: list[JSON]) -> list[JSON]:
    """Join messages so that the user doesn't speak twice in a row: providers refuse that."""
    if first and then and first[-1]["role"] == then[0]["role"] == "user":
        joined = {"role": "user", "content": [*first[-1]["content"], *then[0]["content"]]}
        return [*first[:-1], joined, *then[1:]]
    return [*first, *then]


def redacted(message: dict[str, JSON], text: str) -> list[JSON]:
    """Replace what a message says; results of tools keep their places, because every call needs one."""
    blocks = [block for block in message["content"] if "toolResult" in block]
    if not blocks:
        return [{"text": text}]
    return [{"toolResult": {**block["toolResult"], "content": [{"text": text}]}} for block in blocks]
