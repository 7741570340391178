"""Calls the model once: gives it what it may see, and turns what comes back into one happening."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from runner import codec, failures, loops
from runner.agent.models.chunks import Assembly, own_ids
from runner.agent.models.port import AgentMetadata, is_overflow, is_throttled, prepared
from runner.agent.recipe import Recipe
from runner.agent.state import AgentState, Reply
from runner.agent.tools import spec_of
from runner.agent.values import Cancelled, Replied
from runner.agent.window import next_cut, start_of
from runner.errors import ConflictError

JSON = Any
Emit = Callable[[dict[str, Any]], None]


class ModelCall:
    """One call of the model; `error` is the exception it raised, if it did."""

    def __init__(
        self, recipe: Recipe, state: AgentState, messages: list[JSON], *, cancel: threading.Event, emit: Emit
    ) -> None:
        self.error: BaseException | None = None
        self._recipe, self._state, self._messages = recipe, state, messages
        self._cancel, self._emit = cancel, emit

    async def run(self, invocation_state: Mapping[str, Any], *, forced: bool) -> Replied | Cancelled:
        """Stream the reply to its end.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
        """
        window = start_of(self._messages, self._state.window, self._recipe.window)
        model_state = codec.unpack(self._state.model_state)
        assembly = Assembly()
        try:
            options = self._options(invocation_state, model_state, forced=forced)
            seen = prepared(self._messages[window:])
            if not await self._read(assembly, seen, self._specs(forced=forced), options):
                return Cancelled()
            message, stop_reason = assembly.finished()
            message = own_ids(codec.pack(message, "the model's reply"), self._used(), len(self._messages))
            kept = codec.pack(model_state, "model_state")
        except ConflictError:
            raise
        except BaseException as error:
            if loops.is_cancelled():
                raise
            return self._failed(error, window)
        reply = Reply(message, stop_reason, None, "", None)
        return Replied(reply, assembly.usage, kept, window, assembly.redact_user)

    async def _read(
        self, assembly: Assembly, seen: list[JSON], specs: list[JSON] | None, options: dict[str, Any]
    ) -> bool:
        prompt = self._recipe.system_prompt
        text = prompt if prompt is None or isinstance(prompt, str) else _joined(prompt)
        stream: Any = self._recipe.model.stream(seen, specs, text, **options)
        if not hasattr(stream, "aclose"):
            return await self._chunks(assembly, stream)
        async with aclosing(stream):
            return await self._chunks(assembly, stream)

    async def _chunks(self, assembly: Assembly, stream: Any) -> bool:
        async for chunk in stream:
            if self._cancel.is_set():
                return False
            assembly.add(chunk)
            self._emit({"event": chunk})
            if text := _text(chunk):
                self._emit({"data": text, "delta": {"text": text}})
        return True

    def _specs(self, *, forced: bool) -> list[JSON] | None:
        structured = self._recipe.definition.structured
        tools = [tool for name, tool in self._recipe.tools.items() if not forced or name == structured]
        return [spec_of(tool) for tool in tools] or None

    def _options(
        self, invocation_state: Mapping[str, Any], model_state: JSON, *, forced: bool
    ) -> dict[str, Any]:
        prompt = self._recipe.system_prompt
        choice = {"tool": {"name": self._recipe.definition.structured}} if forced else None
        return {
            "tool_choice": choice,
            "system_prompt_content": _content(prompt),
            "invocation_state": invocation_state,
            "model_state": model_state,
            "cancel_signal": self._cancel,
            "agent_metadata": AgentMetadata(self._recipe.session_id),
        }

    def _used(self) -> set[str]:
        blocks = (block for message in self._messages for block in message["content"])
        return {str(block["toolUse"]["toolUseId"]) for block in blocks if "toolUse" in block}

    def _failed(self, error: BaseException, window: int) -> Replied:
        self.error = error
        if is_throttled(error):
            reply = Reply(None, "", failures.record(error), "throttled", None)
        elif is_overflow(error):
            smaller = next_cut(self._messages, window)
            reply = Reply(None, "", failures.record(error), "overflow", smaller)
        else:
            reply = Reply(None, "", failures.record(error), "other", None)
        return Replied(reply, window=window)


def _text(chunk: Mapping[str, Any]) -> str | None:
    delta = (chunk.get("contentBlockDelta") or {}).get("delta") or {}
    text: str | None = delta.get("text")
    return text


def _joined(prompt: list[dict[str, Any]]) -> str:
    return "\n".join(block["text"] for block in prompt if "text" in block)


def _content(prompt: str | list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    return [{"text": prompt}] if isinstance(prompt, str) else prompt
