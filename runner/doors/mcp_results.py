"""Results of MCP tools: values, errors, and runs that have ended or continue as tasks."""

from __future__ import annotations

from typing import Any

from runner.definition.model import Definition
from runner.doors.questions import failure
from runner.errors import needs_extra
from runner.execution.functions import result_schema
from runner.operations.views import RunView
from runner.records.json_form import pretty, stamp
from runner.records.run import Status

with needs_extra("mcp", "the MCP server"):
    import mcp_types as types

POLL = 2000
"""Milliseconds between a client's requests for a task's state."""

OPEN_RUN = {
    "type": "object",
    "properties": {"run_id": {"type": "string"}, "status": {"type": "string"}},
    "required": ["run_id", "status"],
    "description": "A run that continues: runs_show returns its state.",
}
"""The schema of a result returned before the run has ended."""


def task_head(view: RunView) -> dict[str, Any]:
    """Return the common fields of every answer about a task."""
    changed = max(view.created_at, view.ended_at, *(node.since for node in view.nodes))
    return {
        "taskId": view.run_id,
        "createdAt": stamp(view.created_at),
        "lastUpdatedAt": stamp(changed),
        "ttlMs": None,
        "pollIntervalMs": POLL,
    }


def result_form(definition: Definition | None) -> dict[str, Any] | None:
    """Return the schema of a graph tool's result; None if the graph doesn't declare an object."""
    schema = definition and result_schema(definition)
    if not schema or schema.get("type") != "object":
        return None
    definitions = schema.pop("$defs", {})
    return {"type": "object", "anyOf": [schema, OPEN_RUN], "$defs": definitions}


def complete(value: Any, text: str = "") -> types.CallToolResult:
    """Return a tool's result; only an object is structured, which all protocol versions accept."""
    content = types.TextContent(type="text", text=text or pretty(value))
    structured = value if isinstance(value, dict) else None
    return types.CallToolResult(content=[content], structured_content=structured)


def failed(text: str) -> types.CallToolResult:
    """Return a tool's error result, which the model reads."""
    return complete(text).model_copy(update={"is_error": True})


def result(view: RunView) -> types.CallToolResult:
    """Return the result of a run that has ended."""
    if view.status == Status.COMPLETED:
        return complete(view.output)
    return failed(failure(view))
