"""The input of a node: the task and the outputs of the nodes before it, in edge order.

The text form is the one that Strands' graphs pass to their agents, so that prompts written for them work the
same here; the order is that of the edges, not of a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.records import codec
from runner.records.outcomes import Input


def function_input(task: Any, inputs: Sequence[Input]) -> tuple[str, Any]:
    """Choose the argument of a typed function, as plain JSON: the only input, or all of them by node id, or
    without any the task. The text says which one it is.
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
    parts = [{"text": "Original Task:"}, *own] if _is_blocks(task) else [_original(task)]
    parts.append({"text": "\nInputs from previous nodes:"})
    for item in inputs:
        parts += [{"text": f"\nFrom {item.node_id}:"}, {"text": f"  - Agent: {as_text(item.output)}"}]
    return parts


def _original(task: Any) -> dict[str, Any]:
    return {"text": f"Original Task: {as_text(task)}"}


def _is_blocks(task: Any) -> bool:
    return isinstance(task, list) and bool(task) and all(isinstance(item, dict) for item in task)


def text(task: Any, inputs: Sequence[Input]) -> str:
    """Build the same as one text, with a line for each block."""
    return "\n".join(block["text"] for block in blocks(task, inputs) if "text" in block)


def as_text(value: Any) -> str:
    """Format a value: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else codec.dump_json(codec.plain(value)).decode()
