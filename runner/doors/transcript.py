"""The messages of an AG-UI thread: a client's own, and new ones to send to it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from runner.errors import needs_extra
from runner.records.codec import JSONMapping
from runner.records.json_form import pretty

with needs_extra("agui", "the AG-UI agent"):
    from ag_ui import core


class Transcript:
    """The messages of a thread: the client's messages, and one run's messages to send to it.

    A message's id begins with its run's id, so that any process knows which messages a client has.
    """

    def __init__(self, messages: Iterable[core.Message], run_id: str) -> None:
        self.messages: dict[str, Any] = {item.id: item for item in messages}
        self.calls: set[str] = set()
        self.texts: Counter[str] = Counter()
        self._open: dict[str, tuple[str, str | None]] = {}
        self._read: Counter[str] = Counter()
        for item in self.messages.values():
            if isinstance(item, core.AssistantMessage) and item.id.startswith(run_id):
                self.texts[item.content or ""] += 1
                self.calls.update(call.id for call in item.tool_calls or ())

    def piece(
        self, node: str, name: str, text: str, owner: str | None
    ) -> Iterator[core.BaseEvent]:
        """Yield a piece of a node's streamed text, which may begin a message called `name`."""
        if node not in self._open:
            self._open[node] = name, owner
            self.messages[name] = core.AssistantMessage(id=name, content="")
            yield core.TextMessageStartEvent(
                message_id=name, role="assistant", subagent_run_id=owner
            )
        name, owner = self._open[node]
        self.messages[name].content += text
        yield core.TextMessageContentEvent(message_id=name, delta=text, subagent_run_id=owner)

    def end(self, node: str) -> Iterator[core.BaseEvent]:
        """End a node's streamed text, if it has one."""
        if node in self._open:
            name, owner = self._open.pop(node)
            self.texts[self.messages[name].content] += 1
            yield core.TextMessageEndEvent(message_id=name, subagent_run_id=owner)

    def end_all(self) -> Iterator[core.BaseEvent]:
        """End the texts of all nodes."""
        for node in [*self._open]:
            yield from self.end(node)

    def text(self, name: str, text: str, owner: str | None = None) -> Iterator[core.BaseEvent]:
        """Yield a whole text, unless it was streamed or the client has it."""
        if not self.texts[text]:
            yield from self.piece(name, name, text, owner)
            yield from self.end(name)
        self.texts[text] -= 1

    def conversation(
        self, source: str, messages: Sequence[Any], visits: int, owner: str | None
    ) -> Iterator[core.BaseEvent]:
        """Yield the new part of an agent's conversation; `source` is its run and node.

        Each visit began with a prompt; earlier messages belong to a session or were given to the
        agent.
        """
        prompts = [
            number
            for number, item in enumerate(messages)
            if item["role"] == "user"
            and any("toolResult" not in block for block in item["content"])
        ]
        begun = prompts[-visits] if 0 < visits <= len(prompts) else 0
        for number in range(max(begun, self._read[source]), len(messages)):
            name = f"{source}/{number}"
            item = messages[number]
            for block in item["content"]:
                if item["role"] == "assistant" and block.get("text"):
                    yield from self.text(name, block["text"], owner)
                elif "toolUse" in block:
                    yield from self._call(source, name, block["toolUse"], owner)
                elif "toolResult" in block:
                    yield from self._result(source, block["toolResult"], owner)
        self._read[source] = len(messages)

    def _call(
        self, source: str, parent: str, use: JSONMapping, owner: str | None
    ) -> Iterator[core.BaseEvent]:
        name = f"{source}/{use['toolUseId']}"
        tool = use["name"]
        if name in self.calls:
            return  # a call that waited for people began in an earlier client run
        self.calls.add(name)
        arguments = json.dumps(use["input"], ensure_ascii=False)
        call = core.ToolCall(
            id=name, function=core.FunctionCall(name=tool, arguments=arguments)
        )
        caller = self.messages.get(parent)
        if not isinstance(
            caller, core.AssistantMessage
        ):  # a client may send any message with that id
            caller = self.messages[parent] = core.AssistantMessage(id=parent)
        caller.tool_calls = [*(caller.tool_calls or ()), call]
        yield core.ToolCallStartEvent(
            tool_call_id=name,
            tool_call_name=tool,
            parent_message_id=parent,
            subagent_run_id=owner,
        )
        yield core.ToolCallArgsEvent(tool_call_id=name, delta=arguments, subagent_run_id=owner)
        yield core.ToolCallEndEvent(tool_call_id=name, subagent_run_id=owner)

    def _result(
        self, source: str, result: JSONMapping, owner: str | None
    ) -> Iterator[core.BaseEvent]:
        call = f"{source}/{result['toolUseId']}"
        name = f"{call}/result"
        if name in self.messages:
            return
        text = "\n".join(pretty(next(iter(block.values()), "")) for block in result["content"])
        self.messages[name] = core.ToolMessage(id=name, content=text, tool_call_id=call)
        yield core.ToolCallResultEvent(
            message_id=name, tool_call_id=call, content=text, role="tool", subagent_run_id=owner
        )
