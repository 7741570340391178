"""The protocol of models: the `stream` method of Strands' providers, unchanged.

Messages, tool specs and chunks have the Bedrock Converse shape. This file also prepares messages
for a model, and assembles the chunks that it yields.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from runner.errors import LONGEST_WAIT, RetryAfter, UnstorableError
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.size_limits import MAX_STATE

INVALID = "invalid"
"""The key for why a tool use's arguments can't be used; its input is then empty."""

MAX_ARGUMENTS = MAX_STATE // 4
"""Maximum bytes of all call arguments in a reply; an agent's state holds them several times."""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
INVALID_NAME = "INVALID_TOOL_NAME"
BLANK = "[blank text]"
TOO_MANY = 429  # the HTTP status of a rate limit


@runtime_checkable
class Model(Protocol):
    """A model provider: every model in Strands' `strands.models` has this shape."""

    def stream(
        self,
        messages: list[JSONObject],
        tool_specs: list[JSONObject] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterable[Any]:
        """Yield the reply as stream chunks, without changing the messages.

        The options are tool_choice, system_prompt_content, invocation_state, model_state,
        cancel_signal and agent_metadata.
        """


@immutable
class AgentMetadata:
    """Facts about the caller for a provider."""

    session_id: str | None = None


class ProviderMessages:
    """A conversation in a provider's form: role and content, nothing blank or invalid.

    It only grows, but its last message may be replaced; each call prepares only new messages.
    """

    def __init__(self) -> None:
        self._messages: list[JSON] = []
        self._start, self._count = 0, 0
        self._prepared: list[JSONObject] = []
        self.tool_use_ids: set[str] = set()
        self.cuts: list[int] = []

    def read(self, messages: Sequence[JSON]) -> None:
        """Read the packed conversation for `prepare`, its call ids and the places to cut it.

        It may only be cut before a user message without tool results, so that no call is cut from
        its result and running calls are never affected.
        """
        last = self._count - 1
        if last >= 0 and messages[last] is not self._messages[last]:
            self._count, self._prepared = 0, []
        for index in range(len(self._messages), len(messages)):
            role = messages[index]["role"]
            blocks = messages[index]["content"]
            uses = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
            self.tool_use_ids.update(map(str, uses))
            if index and role == "user" and not any("toolResult" in block for block in blocks):
                self.cuts.append(index)
        self._messages = [*messages]

    def prepare(self, start: int) -> list[JSONObject]:
        """Return a new list of the messages from `start` on; calls share the messages themselves.

        Two user messages in a row become one: after an invocation ended at a limit, the results of
        its last tool calls are followed by the next input.
        """
        if start != self._start:
            self._start = start
            self._count = 0
            self._prepared = []
        added = codec.unpack(self._messages[max(start, self._count) :])
        for message in [_message(message) for message in added]:
            if self._prepared and message["role"] == self._prepared[-1]["role"] == "user":
                message["content"] = [*self._prepared.pop()["content"], *message["content"]]
            self._prepared.append(message)
        self._count = len(self._messages)
        return [*self._prepared]


def _message(message: JSONObject) -> JSONObject:
    content = message["content"]
    if message["role"] == "assistant":
        content = _assistant_content(content)
    return {"role": message["role"], "content": content}


def _assistant_content(content: list[JSONObject]) -> list[JSONObject]:
    calls = any("toolUse" in block for block in content)
    blocks: list[JSONObject] = []
    for block in content:
        if "text" in block and not block["text"].strip():
            if not calls:
                blocks.append({"text": BLANK})
            continue
        blocks.append(
            {"toolUse": _shown_use(block["toolUse"])} if "toolUse" in block else block
        )
    return blocks or [{"text": BLANK}]


def _shown_use(use: JSONObject) -> JSONObject:
    name = str(use.get("name", ""))
    shown = {key: value for key, value in use.items() if key != INVALID}
    return shown if TOOL_NAME.fullmatch(name) else {**shown, "name": INVALID_NAME}


def is_throttled(error: BaseException) -> bool:
    """Return whether a provider's rate limit refused a call; providers' classes match by name."""
    return _named(error, "ModelThrottledException")


def is_overflow(error: BaseException) -> bool:
    """Return whether the conversation was too long for the model."""
    return _named(error, "ContextWindowOverflowException")


def raise_delayed(error: BaseException) -> None:
    """Raise RetryAfter if an error was caused by a status 429 reply that says when to retry.

    Raises:
        RetryAfter: the node should continue at that time, at most a week later.
    """
    cause: BaseException | None = error
    depth = 0
    while cause is not None and depth < 100:  # an error may be its own cause
        depth += 1
        delay = _delay(_refusal_headers(cause))
        if delay is not None:
            seconds = min(max(0.0, delay), LONGEST_WAIT)
            raise RetryAfter(seconds, reason=f"the provider said so (429): {error}") from error
        cause = cause.__cause__


def _refusal_headers(error: BaseException) -> Mapping[str, str]:
    """Return the headers of a status 429 reply, as HTTP clients name them; else an empty dict."""
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", getattr(error, "status_code", None))
    headers = getattr(response, "headers", getattr(error, "headers", None))
    return headers if status == TOO_MANY and isinstance(headers, Mapping) else {}


def _delay(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in Retry-After, given as a number or a date; None if it has neither."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return seconds
    try:
        return parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return None


def _named(error: BaseException, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(error).__mro__)


# The stream chunks of a model, assembled into one message.


COUNTS = (
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cacheReadInputTokens",
    "cacheWriteInputTokens",
)


class Assembly:
    """The reply received so far. Blocks keep their order, signatures their exact bytes."""

    def __init__(self) -> None:
        self.content: list[JSONObject] = []
        self.stop_reason: str | None = None
        self.usage: dict[str, int] = {}
        self.redact_user: str | None = None
        self._redact_reply: str | None = None
        self._block = _Block()

    def add(self, chunk: JSONMapping) -> None:
        """Add one chunk; unknown keys are ignored."""
        if start := chunk.get("contentBlockStart"):
            self._block.start(start.get("start") or {})
        elif delta := chunk.get("contentBlockDelta"):
            self._block.add(delta.get("delta") or {})
        elif "contentBlockStop" in chunk:
            self._close()
        elif stop := chunk.get("messageStop"):
            self.stop_reason = stop.get("stopReason")
        elif metadata := chunk.get("metadata"):
            counts = metadata.get("usage") or {}
            self.usage = {
                name: int(counts[name]) for name in COUNTS if counts.get(name) is not None
            }
        elif redact := chunk.get("redactContent"):
            self.redact_user = redact.get("redactUserContentMessage", self.redact_user)
            self._redact_reply = redact.get("redactAssistantContentMessage", self._redact_reply)

    def _close(self) -> None:
        block = self._block.content()
        if block is not None:
            self.content.append(block)
        self._block = _Block()

    def finished(self) -> tuple[JSONObject, str]:
        """Return the message and the stop reason; an unclosed block counts if it isn't a call."""
        if not self._block.is_tool:
            self._close()
        content = self.content
        if self._redact_reply is not None:
            content = [{"text": self._redact_reply}]
        calls = any("toolUse" in block for block in content)
        reason = self.stop_reason or "end_turn"
        if reason in ("end_turn", "tool_use"):
            reason = "tool_use" if calls else "end_turn"
        return {"role": "assistant", "content": content}, reason


class _Block:
    """One content block under construction."""

    def __init__(self) -> None:
        self.tool: JSONObject | None = None
        self.input: list[str] = []
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.signature: str | None = None
        self.redacted = b""
        self.citations: list[Any] = []

    @property
    def is_tool(self) -> bool:
        return self.tool is not None

    def start(self, start: JSONMapping) -> None:
        if use := start.get("toolUse"):
            self.tool = {"toolUseId": use.get("toolUseId"), "name": use.get("name")}
            if use.get("reasoningSignature") is not None:
                self.tool["reasoningSignature"] = use["reasoningSignature"]

    def add(self, delta: JSONMapping) -> None:
        if "text" in delta:
            self.text.append(delta["text"])
        if "toolUse" in delta:
            self._add_tool(delta["toolUse"])
        if "reasoningContent" in delta:
            self._add_reasoning(delta["reasoningContent"])
        if "citation" in delta:
            self.citations.append(delta["citation"])

    def _add_tool(self, delta: JSONMapping) -> None:
        self.tool = self.tool or {"toolUseId": None, "name": None}
        for key in ("toolUseId", "name"):
            if delta.get(key):
                self.tool[key] = delta[key]
        piece = delta.get("input", "")
        self.input.append(piece if isinstance(piece, str) else json.dumps(piece))

    def _add_reasoning(self, delta: JSONMapping) -> None:
        self.reasoning.append(delta.get("text", ""))
        if "signature" in delta:
            self.signature = (self.signature or "") + delta["signature"]
        self.redacted += delta.get("redactedContent", b"")

    def content(self) -> JSONObject | None:
        text = "".join(self.text)
        reasoning = "".join(self.reasoning)
        if self.tool is not None:
            if self.tool.get("name") is not None:
                return {"toolUse": {**self.tool, **_parsed("".join(self.input))}}
            return None
        if self.citations:
            return {
                "citationsContent": {"citations": self.citations, "content": [{"text": text}]}
            }
        if text:
            return {"text": text}
        if reasoning or self.signature is not None:
            signature = {} if self.signature is None else {"signature": self.signature}
            return {"reasoningContent": {"reasoningText": {"text": reasoning, **signature}}}
        if self.redacted:
            return {"reasoningContent": {"redactedContent": self.redacted}}
        return None


def _parsed(text: str) -> JSONObject:
    # A model's broken JSON doesn't stop the agent: the call is answered with an error.
    try:
        return {"input": json.loads(text) if text.strip() else {}}
    except (ValueError, RecursionError) as error:
        return {"input": {}, INVALID: f"the arguments are not valid JSON: {error}"}


def storable_calls(message: JSONObject) -> JSONObject:
    """Remove arguments that can't be stored from a reply's calls, and add the reason to the calls.

    These calls get an error, from which the model learns, and the agent continues.
    """
    content, room = [], MAX_ARGUMENTS
    for block in message["content"]:
        if "toolUse" not in block:
            content.append(block)
            continue
        use = {key: _text(value) for key, value in block["toolUse"].items()}
        try:
            size = len(codec.dump_json(codec.pack(use["input"], "the arguments")))
            fault = (
                ""
                if size <= room
                else f"the arguments have {size:,} bytes, more than a reply's calls may"
            )
        except UnstorableError as error:
            size = 0
            fault = str(error).rstrip(".")
        if fault:
            use = {**use, "input": {}, INVALID: fault}
        else:
            room -= size
        content.append({"toolUse": use})
    return {**message, "content": content}


def _text(value: Any) -> Any:
    """Replace lone surrogates in a string, as they can't be stored; return other values as is."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def own_ids(message: JSONObject, ids_in_use: set[str], index: int) -> JSONObject:
    """Make every tool use id unique in its conversation, and add it to `ids_in_use`.

    Some providers restart their numbering with each reply; a repeated id would tie two calls to one
    answer. Models may write any id, even a suffixed one, so suffixes are added until it's free.
    """
    content = []
    for position, block in enumerate(message["content"]):
        if "toolUse" not in block:
            content.append(block)
            continue
        unique = str(block["toolUse"].get("toolUseId") or f"tooluse_{index}_{position}")
        while unique in ids_in_use:
            unique = f"{unique}_{index}_{position}"
        ids_in_use.add(unique)
        content.append({"toolUse": {**block["toolUse"], "toolUseId": unique}})
    return {**message, "content": content}


def call_name(key: str, attempt: int) -> str:
    """Return a name for one attempt of a call, unique in its agent, for keys and question ids.

    A model may write any text as an id, so the separators used in keys and ids are escaped.
    """
    name = quote(key, safe="").replace(".", "%2E")
    return name if attempt == 1 else f"{name}:{attempt}"
