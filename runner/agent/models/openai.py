"""Models behind an OpenAI-compatible endpoint, through the official client (extra `openai`).

Speaks the chat completions API, the one that other vendors and local servers offer, too, and yields
Strands' stream chunks. Rate limits and conversations that are too long are raised under the names
that agents know; every other error of the client is raised as it is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from runner.agent.models.port import TOO_MANY
from runner.errors import ModelFault, UsageError, needs_extra
from runner.records.codec import JSON

with needs_extra("openai", "OpenAIModel"):
    import openai

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "content_filtered",
}
# Servers that speak this API have no common code for a conversation that is too long.
TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "context length",
    "max_model_len",
)
NO_KEY = "no-key-needed"  # the client requires a key; local servers often have none


class ModelThrottledException(ModelFault):
    """The provider refused the call for its rate limit; it is tried again later."""


class ContextWindowOverflowException(ModelFault):
    """The conversation is longer than the model takes; the agent shortens what it sends."""


class OpenAIModel:
    """A model of OpenAI or of any server with the same API.

    Args:
        model: the model's name at the provider.
        base_url: the server's address; default is OPENAI_BASE_URL, then OpenAI itself.
        api_key: default is OPENAI_API_KEY.
        client_args: more arguments for `openai.AsyncOpenAI`, such as `timeout` (seconds).
        params: more fields for every request, such as `temperature` or `max_tokens`.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client_args: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.config: dict[str, Any] = {"model_id": model, "params": dict(params or {})}
        self._client_args: dict[str, Any] = {
            **(client_args or {}),
            "base_url": base_url,
            "api_key": api_key,
        }
        own_server = base_url or os.environ.get("OPENAI_BASE_URL")
        if own_server and not api_key and not os.environ.get("OPENAI_API_KEY"):
            self._client_args["api_key"] = NO_KEY
        self._clients: dict[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = {}

    def get_config(self) -> dict[str, Any]:
        """Return the model's name and the fields of every request."""
        return self.config

    async def stream(
        self,
        messages: list[dict[str, Any]],
        tool_specs: list[dict[str, Any]] | None = None,
        system_prompt: str | None = None,
        *,
        tool_choice: Mapping[str, Any] | None = None,
        system_prompt_content: list[dict[str, Any]] | None = None,
        **_options: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the reply as stream chunks; a reply that is cut short raises.

        Raises:
            ModelThrottledException: the provider's rate limit is reached.
            ContextWindowOverflowException: the conversation is too long.
            UsageError: a content block has no form in this API.
            openai.APIError: the provider can't be reached or refuses the request.
        """
        prompt = system_prompt_content or ([{"text": system_prompt}] if system_prompt else [])
        request = {
            **self.config["params"],
            "model": self.config["model_id"],
            "messages": _messages(messages, prompt),
            "stream": True,
            "stream_options": {"include_usage": True},
            **_tools(tool_specs, tool_choice),
        }
        try:
            events = await self._client().chat.completions.create(**request)
            async with events:
                reader = _Reader()
                yield {"messageStart": {"role": "assistant"}}
                async for event in events:
                    for chunk in reader.read(event):
                        yield chunk
                for chunk in reader.end():
                    yield chunk
        except openai.APIError as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        """Close the connections that this event loop has open."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _client(self) -> openai.AsyncOpenAI:
        """One client a loop: connections belong to the loop that opened them, and a client costs 40 ms."""
        for closed_loop in [loop for loop in list(self._clients) if loop.is_closed()]:
            self._clients.pop(closed_loop, None)
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [_returned_at_once]})
            self._clients[loop] = openai.AsyncOpenAI(
                **{"http_client": http, **self._client_args}
            )
        return self._clients[loop]


async def _returned_at_once(response: Any) -> None:
    """Have the client raise a refused call (429): it would wait itself, and the node's slot with it."""
    if response.status_code == TOO_MANY:
        response.headers["x-should-retry"] = "false"


# -- the request -------------------------------------------------------------------------------------


def _messages(
    messages: Iterable[Mapping[str, Any]], prompt: list[dict[str, Any]]
) -> list[JSON]:
    """Translate messages, with the system prompt first.

    A content block that has no form in this API is refused, except reasoning, which the API never
    takes back.
    """
    system = [{"role": "system", "content": _texts(prompt)}] if prompt else []
    return [*system, *(item for message in messages for item in _message(message))]


def _message(message: Mapping[str, Any]) -> Iterable[JSON]:
    blocks = message["content"]
    if message["role"] == "assistant":
        yield _assistant(blocks)
        return
    results = [block["toolResult"] for block in blocks if "toolResult" in block]
    for result in results:
        yield {
            "role": "tool",
            "tool_call_id": result["toolUseId"],
            "content": _result_text(result),
        }
    # A tool message holds text only, so pictures and files follow as the user's.
    shown = [
        item
        for result in results
        for item in result["content"]
        if not item.keys() & {"text", "json"}
    ]
    other_blocks = [
        block for block in blocks if not block.keys() & {"toolResult", "cachePoint"}
    ]
    if shown or other_blocks:
        yield {"role": "user", "content": _parts(shown + other_blocks)}


def _assistant(blocks: list[dict[str, Any]]) -> JSON:
    message: dict[str, Any] = {"role": "assistant"}
    text = _texts(blocks)
    calls = [_call(block["toolUse"]) for block in blocks if "toolUse" in block]
    if calls:
        message["tool_calls"] = calls
    if text or not calls:
        message["content"] = text
    return message


def _call(use: Mapping[str, Any]) -> JSON:
    function = {"name": use["name"], "arguments": json.dumps(use["input"])}
    return {"id": use["toolUseId"], "type": "function", "function": function}


def _texts(blocks: Iterable[Mapping[str, Any]]) -> str:
    texts = [block["text"] for block in blocks if "text" in block]
    for block in blocks:
        texts += [
            item["text"]
            for item in block.get("citationsContent", {}).get("content", ())
            if "text" in item
        ]
    return "\n".join(texts)


def _result_text(result: Mapping[str, Any]) -> str:
    texts = [
        item["text"] if "text" in item else json.dumps(item["json"])
        for item in result["content"]
        if "text" in item or "json" in item
    ]
    return "\n".join(texts) or ("(see what follows)" if result["content"] else "(no output)")


def _parts(blocks: list[dict[str, Any]]) -> str | list[JSON]:
    """One text goes as plain text: many servers take nothing else."""
    if len(blocks) == 1 and "text" in blocks[0]:
        return str(blocks[0]["text"])
    return [_part(block) for block in blocks]


def _part(block: Mapping[str, Any]) -> JSON:
    if "text" in block:
        return {"type": "text", "text": block["text"]}
    if "image" in block and "bytes" in block["image"]["source"]:
        kind = block["image"]["format"].replace("jpg", "jpeg")
        return {
            "type": "image_url",
            "image_url": {"url": _data(f"image/{kind}", block["image"])},
        }
    if "document" in block and "bytes" in block["document"]["source"]:
        document = block["document"]
        name = f"{document['name']}.{document['format']}"
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return {"type": "file", "file": {"filename": name, "file_data": _data(kind, document)}}
    raise UsageError(
        f"a content block with {sorted(block)} can't be sent to an OpenAI-compatible endpoint; "
        "give text, or an image or document as bytes."
    )


def _data(kind: str, content: Mapping[str, Any]) -> str:
    return f"data:{kind};base64,{base64.b64encode(content['source']['bytes']).decode('ascii')}"


def _tools(
    specs: list[dict[str, Any]] | None, choice: Mapping[str, Any] | None
) -> dict[str, JSON]:
    """Translate tool specs and the choice among them into fields of the request."""
    if not specs:
        return {}
    functions = [
        {
            "name": spec["name"],
            "description": spec["description"],
            "parameters": spec["inputSchema"]["json"],
        }
        for spec in specs
    ]
    fields: dict[str, JSON] = {
        "tools": [{"type": "function", "function": function} for function in functions]
    }
    match choice:
        case {"tool": {"name": name}}:
            fields["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"any": _}:
            fields["tool_choice"] = "required"
        case {"auto": _}:
            fields["tool_choice"] = "auto"
    return fields


# -- the reply ---------------------------------------------------------------------------------------


def _translated(error: openai.APIError) -> Exception:
    text = str(error).lower()
    if isinstance(error, openai.RateLimitError) or error.code == "rate_limit_exceeded":
        return ModelThrottledException(str(error))
    if error.code == "context_length_exceeded" or any(phrase in text for phrase in TOO_LONG):
        return ContextWindowOverflowException(str(error))
    return error


class _Reader:
    """Turns completion events into stream chunks; tool calls come whole, at the end, in their order."""

    def __init__(self) -> None:
        self._open = ""
        self._finish: str | None = None
        self._usage: Any = None
        self._calls: list[dict[str, Any]] = []

    def read(self, event: Any) -> Iterable[dict[str, Any]]:
        self._usage = getattr(event, "usage", None) or self._usage
        if not event.choices:
            return
        choice = event.choices[0]
        self._finish = choice.finish_reason or self._finish
        if choice.delta is None:
            return
        # Reasoning is no part of the API; servers that show it use one of these two names.
        reasoning = getattr(choice.delta, "reasoning_content", None) or getattr(
            choice.delta, "reasoning", None
        )
        if isinstance(reasoning, str):
            yield from self._block("reasoning", {"reasoningContent": {"text": reasoning}})
        if text := choice.delta.content or choice.delta.refusal:
            yield from self._block("text", {"text": text})
        for delta in choice.delta.tool_calls or ():
            self._add_call(delta)

    def _block(self, kind: str, delta: JSON) -> Iterable[dict[str, Any]]:
        if self._open != kind:
            yield from self._close()
            yield {"contentBlockStart": {"start": {}}}
            self._open = kind
        yield {"contentBlockDelta": {"delta": delta}}

    def _close(self) -> Iterable[dict[str, Any]]:
        if self._open:
            yield {"contentBlockStop": {}}
        self._open = ""

    def _add_call(self, delta: Any) -> None:
        # Some servers give every call the same index or none: a new id begins a new call, too.
        call = next(
            (call for call in reversed(self._calls) if call["index"] == delta.index), None
        )
        if call is None or (delta.id and call["id"] and delta.id != call["id"]):
            call = {"index": delta.index, "id": None, "name": "", "input": ""}
            self._calls.append(call)
        call["id"] = call["id"] or delta.id
        if delta.function is not None:
            call["name"] = call["name"] or delta.function.name or ""
            call["input"] += delta.function.arguments or ""

    def end(self) -> Iterable[dict[str, Any]]:
        if self._finish is None:
            raise ModelFault(
                "the provider's reply ended without a reason to stop: it was cut short and is not used."
            )
        yield from self._close()
        for call in self._calls:
            yield {
                "contentBlockStart": {
                    "start": {"toolUse": {"toolUseId": call["id"], "name": call["name"]}}
                }
            }
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": call["input"]}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": STOP_REASONS.get(self._finish, "end_turn")}}
        if self._usage is not None:
            yield {"metadata": {"usage": _usage(self._usage), "metrics": {"latencyMs": 0}}}


def _usage(counts: Any) -> dict[str, int]:
    usage = {
        "inputTokens": counts.prompt_tokens or 0,
        "outputTokens": counts.completion_tokens or 0,
        "totalTokens": counts.total_tokens or 0,
    }
    cache_tokens = getattr(counts.prompt_tokens_details, "cached_tokens", None)
    return {**usage, "cacheReadInputTokens": cache_tokens} if cache_tokens else usage
