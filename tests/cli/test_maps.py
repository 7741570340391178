"""A map in the command line's pictures of a run: one line with counts, and what people must see."""

from __future__ import annotations

import io

from rich.console import Console

from runner import GraphBuilder
from runner.cli.documents import run_document
from runner.cli.tree import draw
from runner.cli.view import read_run
from runner.store.memory import MemoryStore


def work(ctx):
    if ctx.task == "bad":
        raise ValueError("no such invoice")
    return ctx.interrupt("ok?", assignees=["ana"]) if ctx.task == "ask" else ctx.task


def run_of(items):
    store, builder = MemoryStore(), GraphBuilder()
    builder.add_map(work, "invoices", on_error="continue", concurrency=2)
    result = builder.set_store(store).build()(items)
    return read_run(store, result.run_id)


def test_a_map_is_one_line_with_counts():
    """The tree shows a map as one line, and below it the items that wait or have failed."""
    run = run_of(["a", "ask", "b", "bad"])
    console = Console(file=io.StringIO(), width=200)
    console.print(draw(run, run.created_at))
    lines = [line.strip(" ├└─│") for line in console.file.getvalue().splitlines()]

    assert "2 of 4 items done, 1 waiting, 1 failed" in lines[1]
    assert [line.split()[1] for line in lines[2:] if " invoices[" in line] == ["invoices[1]", "invoices[3]"]
    assert any("asks ok? of ana" in line for line in lines)
    assert not any("invoices[0]" in line for line in lines)


def test_items_are_nodes_in_json():
    """The document of a run has a map's items after the map, and their questions."""
    found = run_document(run_of(["a", "ask"]))

    assert [node["id"] for node in found["nodes"]] == ["invoices", "invoices[0]", "invoices[1]"]
    assert [asked["node"] for asked in found["interrupts"]] == ["invoices[1]"]
