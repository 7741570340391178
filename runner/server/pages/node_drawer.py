"""One node on the page of its run: its input, work and output, and links to further places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from runner.execution.telemetry import trace_of
from runner.immutable import immutable
from runner.operations.decided import DecisionView
from runner.operations.exports import NodeError, Question, error_of, plain
from runner.operations.views import NodeView
from runner.records.budgets import MICROS
from runner.records.codec import JSONMapping
from runner.records.run import VisitKey
from runner.server.access import Person
from runner.server.pages.run_graph import Level
from runner.server.services import Services

MESSAGES = 100
"""Maximum messages of a conversation that are shown, the newest."""

NAMES = {
    "inputTokens": "input tokens",
    "outputTokens": "output tokens",
    "totalTokens": "tokens",
    "modelCalls": "model calls",
    "toolCalls": "tool calls",
    "costMicros": "cost",
}

QUIET = ("completed", "pending", "skipped", "cancelled")
"""The states of nodes that need no attention; if there are too many nodes, these are left out first."""


@immutable
class ContentPart:
    """A piece of a message: a text, a call of a tool, or a tool's result."""

    kind: str
    name: str
    data: Any


@immutable
class MessageView:
    """One message of an agent's conversation."""

    role: str
    parts: tuple[ContentPart, ...]


@immutable
class DrawerVisit:
    """One visit of a node, as a row."""

    number: int
    status: str
    execution_ms: int
    usage: str
    summary: str


@immutable
class Drawer:
    """One node; `inputs` are the outputs that it got, by node, `links` lead to further places.

    Texts of users and agents are left out for people who may not read them.
    """

    path: str
    node: NodeView
    is_outermost: bool
    reads: bool
    questions: tuple[Question, ...]
    decided: tuple[DecisionView, ...]
    inputs: JSONMapping
    task: Any
    output: Any
    error: NodeError | None
    usage: str
    visits: tuple[DrawerVisit, ...]
    messages: tuple[MessageView, ...]
    earlier_messages: int
    items: tuple[NodeView, ...]
    links: Mapping[str, str]


def drawer(level: Level, node: NodeView, person: Person, services: Services) -> Drawer:
    """Collect all facts about a node; `level` is the run that it belongs to."""
    reads = person.may("read")
    snapshot = level.snapshot
    messages = list(
        messages_of(snapshot.messages.get(node.id, ()) if snapshot and reads else ())
    )
    items = sorted(node.items, key=lambda item: (item.status != "failed", item.status in QUIET))
    entry = snapshot.entries.get((node.id, node.visit), {}) if snapshot else {}
    return Drawer(
        path=level.path + node.id,
        node=node,
        is_outermost=not level.path,
        reads=reads,
        questions=tuple(
            question for question in level.run.interrupts if question.node_id == node.id
        ),
        decided=tuple(one for one in level.run.decided if one.node_id == node.id),
        inputs=level.inputs(node.id) if reads else {},
        task=level.run.task if reads and not level.before(node.id) else None,
        output=node.output,
        error=node.error,
        usage=_usage(entry.get("usage") or {}),
        visits=tuple(_visits(level, node)) if node.visit > 1 else (),
        messages=tuple(messages[-MESSAGES:]),
        earlier_messages=max(0, len(messages) - MESSAGES),
        items=tuple(items),
        links=dict(_links(level, node, services)),
    )


def _usage(usage: Mapping[str, int]) -> str:
    counts = [
        f"{number / MICROS:,.9g} {NAMES[name]}"
        if name == "costMicros"
        else f"{number:,} {NAMES[name]}"
        for name, number in usage.items()
        if name in NAMES and number
    ]
    return ", ".join(counts)


def _visits(level: Level, node: NodeView) -> Iterator[DrawerVisit]:
    if level.snapshot is None:
        return
    keys: list[VisitKey] = sorted(key for key in level.snapshot.entries if key[0] == node.id)
    for key in keys:
        entry = level.snapshot.entries[key]
        error = error_of(entry)
        status = "undone" if entry.get("undone") else "failed" if error else "completed"
        summary = error.type if error else ""
        yield DrawerVisit(
            key[1], status, entry.get("ms", 0), _usage(entry.get("usage") or {}), summary
        )


def messages_of(packed_messages: Any) -> Iterator[MessageView]:
    """Read stored messages for people."""
    for packed_message in packed_messages:
        message = plain(packed_message)
        content = message.get("content", ()) if isinstance(message, dict) else ()
        yield MessageView(message.get("role", ""), tuple(map(_part, content)))


def _part(block: JSONMapping) -> ContentPart:
    match block:
        case {"text": str(text)}:
            return ContentPart("text", "", text)
        case {"toolUse": {"name": name, "input": data}}:
            return ContentPart("calls", str(name), data)
        case {"toolResult": {"content": data}}:
            return ContentPart("returned", str(block["toolResult"].get("status", "")), data)
    return ContentPart("data", "", block)


def _links(level: Level, node: NodeView, services: Services) -> Iterator[tuple[str, str]]:
    run_id = level.run.run_id
    settings = services.settings
    if node.run is not None:
        yield "its run", f"/runs/{quote(node.run.run_id)}"
    if settings.flower_url and node.attempts:
        task = quote(f"{run_id}.{node.id}.{node.visit}.{node.attempts}")
        yield "Flower, with the worker", f"{settings.flower_url.rstrip('/')}/task/{task}"
    if settings.trace_url and level.snapshot is not None:
        record = level.snapshot.record
        origin = services.store.peek(record.root) or record
        yield "trace", settings.trace_url.replace("{trace_id}", trace_of(origin))
