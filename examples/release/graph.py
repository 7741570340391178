"""The graph of a release: facts gathered side by side, notes drafted, a person's word, the file.

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
    """What a person may answer; the store checks it before anything is woken."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "if": {"properties": {"decision": {"const": "edit"}}},
            "then": {"required": ["notes"], "properties": {"notes": {"minLength": 1}}},
        },
    )

    decision: Literal["approve", "reject", "edit"]
    notes: str = Field("", description="with edit: the new text; with reject: why")


class Task(BaseModel):
    """What a run is started with."""

    path: str = "."
    commits: int = 20
    out: str = "release-notes/NOTES.md"


def begin(ctx: NodeContext) -> dict[str, Any]:
    """Check the task once, so that the nodes behind can rely on it."""
    task = Task.model_validate(ctx.task)
    path = Path(task.path).resolve()
    if not path.is_dir():
        raise ValueError(f"there is no folder {task.path!r}; name a repository.")
    return {"name": path.name, "path": str(path), "commits": task.commits}


def changes(ctx: NodeContext) -> list[dict[str, str]]:
    """What changed, out of git."""
    of = ctx.inputs["begin"]
    return gather.changes(of["path"], of["commits"])


def tests(ctx: NodeContext) -> dict[str, Any]:
    """Whether its tests pass: they run now."""
    return gather.run_tests(ctx.inputs["begin"]["path"], seconds=25)


def licences(_: NodeContext) -> dict[str, Any]:
    """Under which licences the installed packages are."""
    found = gather.licences()
    return {
        "packages": len(found),
        "by_licence": dict(Counter(row["licence"] for row in found).most_common()),
    }


def wheel(ctx: NodeContext) -> dict[str, Any]:
    """How large its wheel is: it is built now."""
    return gather.wheel_size(ctx.inputs["begin"]["path"])


@tool
def recent_changes(repository: str, limit: int = 20) -> list[str]:
    """List the subjects of the newest commits.

    Args:
        repository: the folder of the repository.
        limit: how many commits at most.
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
    """Put the facts beside the draft, for one person to look at."""
    built, tested = ctx.inputs["wheel"], ctx.inputs["tests"]
    return {
        "notes": ctx.inputs["notes"],
        "changes": len(ctx.inputs["changes"]),
        "tests": {key: tested[key] for key in ("passed", "failed", "seconds")},
        "licences": ctx.inputs["licences"],
        "wheel": {key: built[key] for key in ("file", "bytes", "detail")},
    }


def approve(ctx: NodeContext) -> dict[str, str]:
    """Let a person approve, reject or edit the notes."""
    shown = ctx.inputs["report"]
    said = ctx.interrupt("approve_release", reason=shown, response_schema=Decision)
    text = said.notes if said.decision == "edit" else shown["notes"]
    return {"decision": said.decision, "text": text, "reason": said.notes}


def is_accepted(state: Any) -> bool:
    """Tell whether the notes are to be written."""
    return bool(state.results["approve"].output["decision"] != "reject")


def write(ctx: NodeContext) -> dict[str, Any]:
    """Write the notes. Writing the same text again does no harm, so this needs no `once`."""
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
    facts = [builder.add_node(each) for each in (changes, tests, licences, wheel)]
    notes = builder.add_node(drafter, "notes")
    for node in (report, approve, write):
        builder.add_node(node)
    for node in (*facts, notes):
        builder.add_edge("begin", node)
        builder.add_edge(node, "report")
    builder.add_edge("report", "approve")
    builder.add_edge("approve", "write", is_accepted)
    return builder.build()
