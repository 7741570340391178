"""What a node is told: the task and the outputs of the nodes before it, in edge order.

The text form is the one that Strands' graphs give their agents (rule G17 of the behaviour notes),
so that prompts written for them read the same here; the order is that of the edges, not of a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner import codec
from runner.outcomes import Input


def given(task: Any, inputs: Sequence[Input]) -> tuple[str, Any]:
    """Choose what a function with types is given, as plain JSON: the only input, else all by id, else
    the task. The text says which it is.
    """
    if len(inputs) == 1:
        return f"the output of {inputs[0].node_id!r}", inputs[0].output
    if inputs:
        return "the input by node id", {item.node_id: item.output for item in inputs}
    return "the task", codec.plain(task)


def blocks(task: Any, inputs: Sequence[Input]) -> list[dict[str, Any]]:
    """Build the content blocks for an agent: the task alone, or the task and a section per input."""
    own = task if _is_blocks(task) else [{"text": as_text(task)}]
    if not inputs:
        return list(own)
    found = [{"text": "Original Task:"}, *own] if _is_blocks(task) else [_original(task)]
    found.append({"text": "\nInputs from previous nodes:"})
    for item in inputs:
        found.append({"text": f"\nFrom {item.node_id}:"})
        lines = (as_text(item.output),) if item.lines is None else item.lines
        found.extend({"text": f"  - Agent: {line}"} for line in lines)
    return found


def _original(task: Any) -> dict[str, Any]:
    return {"text": f"Original Task: {as_text(task)}"}


def _is_blocks(task: Any) -> bool:
    return isinstance(task, list) and bool(task) and all(isinstance(item, dict) for item in task)


def text(task: Any, inputs: Sequence[Input]) -> str:
    """Build the same as one text, a block a line."""
    return "\n".join(block["text"] for block in blocks(task, inputs) if "text" in block)


def as_text(value: Any) -> str:
    """Show a value as text: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else codec.dump_json(codec.plain(value)).decode()
