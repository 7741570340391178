"""The case of a question: the task, inputs and conversation that led to it, bounded in size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.definition.model import map_of
from runner.immutable import immutable
from runner.operations.exports import Question, plain
from runner.records.codec import JSONObject
from runner.records.json_form import pretty
from runner.server.pages.node_drawer import MessageView, messages_of
from runner.server.pages.run_graph import Wiring

LONGEST = 8_000
"""Characters of a task or an input; the page of the node shows it in full."""

CONVERSATION = 24_000
"""Characters of the newest messages."""

INPUTS = 8


@immutable
class CaseView:
    """Texts by their names, and the newest messages; `is_cut` is true if something is left out."""

    values: Mapping[str, str]
    messages: tuple[MessageView, ...]
    is_cut: bool


def case_of(run: Wiring, question: Question) -> CaseView:
    """Collect the case of a question of a run.

    The conversation belongs to the agent that asks, else to an agent whose result the node got.
    """
    snapshot = run.snapshot
    node = question.node_id
    if snapshot is None:
        return CaseView({}, (), is_cut=False)
    inputs = run.inputs(map_of(node) or node)
    values: JSONObject = {"task": plain(snapshot.task)}
    values |= {f"from {name}": value for name, value in list(inputs.items())[:INPUTS]}
    texts = {name: pretty(value) for name, value in values.items() if value is not None}
    talks = [talk for name in (node, *inputs) if (talk := snapshot.messages.get(name))]
    messages, left = _newest(list(messages_of(talks[0])) if talks else [])
    return CaseView(
        {name: _cut(text, LONGEST) for name, text in texts.items()},
        messages,
        is_cut=left <= 0
        or len(inputs) > INPUTS
        or any(len(text) > LONGEST for text in texts.values()),
    )


def _newest(messages: list[MessageView]) -> tuple[tuple[MessageView, ...], int]:
    """Return the newest messages, and how many more characters would fit; 0 or less if some are left out."""
    newest: list[MessageView] = []
    left = CONVERSATION
    for message in reversed(messages):
        parts = []
        for part in message.parts:
            text = pretty(part.data)
            parts += [replace(part, data=_cut(text, left))] if left > 0 else []
            left -= len(text)
        newest += [replace(message, parts=tuple(parts))] if parts else []
    return tuple(reversed(newest)), left


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
