"""The protocol of models: `stream` of Strands' providers, unchanged.

Messages, tool specs and chunks have the Bedrock Converse shape. This file also prepares the messages
that a model gets; `chunks.py` assembles the chunks that it yields.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from runner.records import codec
from runner.records.codec import JSON

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
INVALID_NAME = "INVALID_TOOL_NAME"
BLANK = "[blank text]"


@runtime_checkable
class Model(Protocol):
    """A model provider: any object of Strands' `strands.models` has this shape."""

    def stream(
        self,
        messages: list[dict[str, Any]],
        tool_specs: list[dict[str, Any]] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterable[Any]:
        """Yield the reply as stream chunks.

        The options are tool_choice, system_prompt_content, invocation_state, model_state,
        cancel_signal and agent_metadata.
        """


@dataclass(frozen=True, slots=True)
class AgentMetadata:
    """What a provider may know of the caller."""

    session_id: str | None = None


def prepared(messages: list[JSON]) -> list[dict[str, Any]]:
    """Copy packed messages into the form a provider takes: role and content, nothing blank or invalid.

    Two messages of the user in a row become one: where an invocation ended at a limit, the results of its
    last tool calls and the next input.
    """
    copies: list[dict[str, Any]] = []
    for message in map(_message, codec.unpack(messages)):
        if copies and message["role"] == copies[-1]["role"] == "user":
            copies[-1] = {"role": "user", "content": [*copies[-1]["content"], *message["content"]]}
        else:
            copies.append(message)
    return copies


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] == "assistant":
        content = _assistant_content(content)
    return {"role": message["role"], "content": content}


def _assistant_content(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = any("toolUse" in block for block in content)
    blocks: list[dict[str, Any]] = []
    for block in content:
        if "text" in block and not block["text"].strip():
            if not calls:
                blocks.append({"text": BLANK})
            continue
        if "toolUse" in block and not TOOL_NAME.fullmatch(str(block["toolUse"].get("name", ""))):
            blocks.append({"toolUse": {**block["toolUse"], "name": INVALID_NAME}})
            continue
        blocks.append(block)
    return blocks or [{"text": BLANK}]


def is_throttled(error: BaseException) -> bool:
    """Whether a provider refused for its rate limit, by name: providers bring their own classes."""
    return _named(error, "ModelThrottledException")


def is_overflow(error: BaseException) -> bool:
    """Whether the conversation was too long for the model."""
    return _named(error, "ContextWindowOverflowException")


def _named(error: BaseException, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(error).__mro__)
