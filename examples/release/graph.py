"""The graph of a release: gathers facts in parallel, drafts notes, asks for approval, writes the file.

begin ─┬─ changes ──┐
       ├─ tests ────┤
       ├─ licences ─┼─ report ── approve ── write
       ├─ wheel ────┤
       └─ notes ────┘   (an agent; its tool asks a person who the audience is)
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from examples.release import gather
from examples.release.model import model
from runner import Agent, Graph, GraphBuilder, NodeContext, ToolContext, graph, tool


class Decision(BaseModel):
    """The schema of the answer; it is validated before the node wakes up."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "if": {"properties": {"decision": {"const": "edit"}}},
            "then": {"required": ["notes"], "properties": {"notes": {"minLength": 1}}},
        },
    )

    decision: Literal["approve", "reject", "edit"]
    notes: str = Field("", description="with edit: the new text; with reject: the reason")


class Task(BaseModel):
    """The input of a run."""

    path: str = "."
    commits: int = 20
    out: str = "release-notes/NOTES.md"


def begin(ctx: NodeContext) -> dict[str, Any]:
    """Validate the task once, so that later nodes can rely on it."""
    task = Task.model_validate(ctx.task)
    path = Path(task.path).resolve()
    if not path.is_dir():
        raise ValueError(f"there is no folder {task.path!r}; name a repository.")
    return {"name": path.name, "path": str(path), "commits": task.commits}


def changes(ctx: NodeContext) -> list[dict[str, str]]:
    """List the changes from git."""
    repository = ctx.inputs["begin"]
    return gather.changes(repository["path"], repository["commits"])


def tests(ctx: NodeContext) -> dict[str, Any]:
    """Run the tests and count them."""
    return gather.run_tests(ctx.inputs["begin"]["path"], seconds=25)


def licences(_: NodeContext) -> dict[str, Any]:
    """Count the licences of the installed packages."""
    rows = gather.licences()
    return {
        "packages": len(rows),
        "by_licence": dict(Counter(row["licence"] for row in rows).most_common()),
    }


def wheel(ctx: NodeContext) -> dict[str, Any]:
    """Build the wheel and return its size."""
    return gather.wheel_size(ctx.inputs["begin"]["path"])


@tool
def recent_changes(repository: str, limit: int = 20) -> list[str]:
    """List the subjects of the newest commits.

    Args:
        repository: the folder of the repository.
        limit: the maximum number of commits.
    """
    return [change["subject"] for change in gather.changes(repository, limit)]


@tool(context=True)
def ask_audience(tool_context: ToolContext) -> str:
    """Ask the release manager who will read the notes."""
    answer = tool_context.interrupt(
        "audience",
        reason="Who will read the release notes?",
        response_schema={"type": "string", "minLength": 1},
    )
    return f"The notes are for {answer}."


def report(ctx: NodeContext) -> dict[str, Any]:
    """Combine the facts and the draft for review."""
    package, suite = ctx.inputs["wheel"], ctx.inputs["tests"]
    return {
        "notes": ctx.inputs["notes"],
        "changes": len(ctx.inputs["changes"]),
        "tests": {key: suite[key] for key in ("outcome", "passed", "failed", "seconds")},
        "licences": ctx.inputs["licences"],
        "wheel": {key: package[key] for key in ("file", "bytes", "detail")},
    }


def approve(ctx: NodeContext) -> dict[str, str]:
    """Ask a person to approve, reject or edit the notes."""
    draft = ctx.inputs["report"]
    answer = ctx.interrupt("approve_release", reason=draft, response_schema=Decision)
    text = answer.notes if answer.decision == "edit" else draft["notes"]
    return {"decision": answer.decision, "text": text, "reason": answer.notes}


def is_accepted(state: Any) -> bool:
    """Return whether the notes will be written."""
    return bool(state.results["approve"].output["decision"] != "reject")


def write(ctx: NodeContext) -> dict[str, Any]:
    """Write the notes. Writing the same text twice is harmless, so this needs no `once`."""
    out = Path(Task.model_validate(ctx.task).out).resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(ctx.inputs["approve"]["text"].rstrip() + "\n", encoding="utf-8")
    return {"file": str(out), "bytes": out.stat().st_size}


@graph("release")
def release() -> Graph:
    """Build the graph; workers call this once."""
    builder = GraphBuilder()
    drafter = Agent(
        name="drafter",
        model=model(),
        tools=[recent_changes, ask_audience],
        system_prompt="Draft short release notes in Markdown. Before you write, look at the recent changes "
        "of the repository named in the task, and ask who the audience is. Answer with the notes alone.",
    )
    builder.add_node(begin)
    facts = [builder.add_node(function) for function in (changes, tests, licences, wheel)]
    notes = builder.add_node(drafter, "notes")
    for function in (report, approve, write):
        builder.add_node(function)
    for node in (*facts, notes):
        builder.add_edge("begin", node)
        builder.add_edge(node, "report")
    builder.add_edge("report", "approve")
    builder.add_edge("approve", "write", is_accepted)
    return builder.build()
