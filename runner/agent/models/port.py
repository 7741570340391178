"""What a model is to an agent: the `stream` protocol of Strands' providers, unchanged.

Messages, tool specs and chunks have the Bedrock Converse shape. This file also prepares what a
model is given (rule M2); `chunks.py` puts together what it gives back.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from runner import codec

JSON = Any

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
        """Give the reply as stream chunks.

        The options are tool_choice, system_prompt_content, invocation_state, model_state,
        cancel_signal and agent_metadata.
        """


@dataclass(frozen=True, slots=True)
class AgentMetadata:
    """What a provider may know of the caller."""

    session_id: str | None = None


def prepared(messages: list[JSON]) -> list[dict[str, Any]]:
    """Copy packed messages into the form a provider takes: role and content, nothing blank or invalid.

    The user never speaks twice in a row: where an invocation ended at a limit, the results of its last
    batch and the next input are one message.
    """
    found: list[dict[str, Any]] = []
    for message in map(_message, codec.unpack(messages)):
        if found and message["role"] == found[-1]["role"] == "user":
            found[-1] = {"role": "user", "content": [*found[-1]["content"], *message["content"]]}
        else:
            found.append(message)
    return found


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] == "assistant":
        content = _assistant_content(content)
    return {"role": message["role"], "content": content}


def _assistant_content(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = any("toolUse" in block for block in content)
    found: list[dict[str, Any]] = []
    for block in content:
        if "text" in block and not block["text"].strip():
            if not calls:
                found.append({"text": BLANK})
            continue
        if "toolUse" in block and not TOOL_NAME.fullmatch(str(block["toolUse"].get("name", ""))):
            found.append({"toolUse": {**block["toolUse"], "name": INVALID_NAME}})
            continue
        found.append(block)
    return found or [{"text": BLANK}]


def is_throttled(error: BaseException) -> bool:
    """Tell whether a provider refused for its rate limit, by name: providers bring their own classes."""
    return _named(error, "ModelThrottledException")


def is_overflow(error: BaseException) -> bool:
    """Tell whether the conversation was too long for the model."""
    return _named(error, "ContextWindowOverflowException")


def _named(error: BaseException, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(error).__mro__)
