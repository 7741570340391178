"""A model that follows a script: for tests, examples and demonstrations without a provider."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from runner.records.codec import JSONObject

ScriptedReply = (
    str
    | Mapping[str, Any]
    | Sequence[Any]
    | BaseException
    | Callable[[list[dict[str, Any]]], Any]
)


class ScriptedModel:
    """Replies in order, by counting the assistant messages already in the conversation.

    This also gives the right reply after a resume in another process. A reply is a text, a content
    block (`{"toolUse": {"name": ..., "input": ...}}`), a list of blocks, an exception to raise, or a
    callable that takes the messages and returns one of these. The last reply is repeated.
    """

    def __init__(
        self, replies: Sequence[ScriptedReply], *, usage: Mapping[str, int] | None = None
    ) -> None:
        if not replies:
            raise ValueError("a ScriptedModel needs at least one reply.")
        self.replies = list(replies)
        self.usage = dict(usage or {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15})

    async def stream(
        self,
        messages: list[dict[str, Any]],
        tool_specs: list[dict[str, Any]] | None = None,  # noqa: ARG002 - part of the protocol
        system_prompt: str | None = None,  # noqa: ARG002 - as above
        **options: Any,  # noqa: ARG002 - as above
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the next reply as real stream chunks with usage metadata."""
        index = [message["role"] for message in messages].count("assistant")
        reply = self.replies[min(index, len(self.replies) - 1)]
        if callable(reply):
            reply = reply(messages)
        if isinstance(reply, BaseException):
            raise reply
        blocks = _blocks(reply, index)
        yield {"messageStart": {"role": "assistant"}}
        for block in blocks:
            for chunk in _chunks(block):
                yield chunk
        calls_tools = any("toolUse" in block for block in blocks)
        yield {"messageStop": {"stopReason": "tool_use" if calls_tools else "end_turn"}}
        yield {"metadata": {"usage": dict(self.usage), "metrics": {"latencyMs": 0}}}


def _blocks(reply: Any, index: int) -> list[JSONObject]:
    items = [reply] if isinstance(reply, (str, Mapping)) else list(reply)
    blocks: list[JSONObject] = [{"text": i} if isinstance(i, str) else dict(i) for i in items]
    for position, block in enumerate(blocks):
        if "toolUse" in block:
            use = block["toolUse"]
            key = use.get("toolUseId") or f"tooluse_{index}_{position}"
            blocks[position] = {"toolUse": {"input": {}, **use, "toolUseId": key}}
    return blocks


def _chunks(block: JSONObject) -> list[JSONObject]:
    deltas: list[JSONObject] = []
    start: JSONObject = {}
    if "toolUse" in block:
        use = block["toolUse"]
        start = {"toolUse": {key: value for key, value in use.items() if key != "input"}}
        deltas = [{"toolUse": {"input": json.dumps(use["input"])}}]
    elif "text" in block:
        deltas = [{"text": text} for text in _words(block["text"])]
    elif "reasoningContent" in block:
        content = block["reasoningContent"]
        fields = content.get("reasoningText", content)
        deltas = [{"reasoningContent": {key: value}} for key, value in fields.items()]
    return [
        {"contentBlockStart": {"start": start}},
        *({"contentBlockDelta": {"delta": delta}} for delta in deltas),
        {"contentBlockStop": {}},
    ]


def _words(text: str) -> list[str]:
    head, *tail = text.split(" ")
    return [head, *(" " + token for token in tail)]
