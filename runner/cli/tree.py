"""A run drawn for a person: a line for each node, and below it what it asks and of whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from runner.cli.output import one_line, short, span, style
from runner.cli.view import shown
from runner.drawing.picture import SIGNS

if TYPE_CHECKING:
    from runner.cli.view import NodeView, RunView
    from runner.interrupts import Interrupt

QUIET = ("completed", "skipped", "pending", "ready", "cancelled")
"""What is left out first, as a count, when there are more nodes than lines."""

BUSY = frozenset({"ready", "running", "retrying"})

ITEMS = 20
"""How many waiting or failed items of a map are shown; more are counted."""


def draw(run: RunView, now: int, lines: int = 0) -> Tree:
    """Draw a run. `now` is in milliseconds; with `lines` set, quiet nodes are counted, not shown."""
    tree = Tree(_heading(run, now), guide_style="dim")
    _branches(tree, run, now, lines)
    return tree


def _heading(run: RunView, now: int) -> Text:
    spent = span((run.ended_at or now) - run.created_at)
    heading = Text.assemble(
        (one_line(run.graph), "bold"), "  ", (run.status, style(run.status)), f"  {spent}  ", (run.id, "dim")
    )
    if run.reason:
        heading.append(f"  {one_line(run.reason)}", style="red")
    return heading


def _branches(tree: Tree, run: RunView, now: int, lines: int) -> None:
    shown_nodes, left_out = _fitting(run, lines)
    width = min(32, max((len(node.id) for node in shown_nodes), default=0))
    for node in shown_nodes:
        branch = tree.add(_line(node, now, width))
        for asked in node.questions:
            branch.add(_question(asked, now))
        if node.inner is not None:
            _branches(branch, node.inner, now, 0)
        _items(branch, node, now)
    if left_out:
        counted = ", ".join(f"{number} {status}" for status, number in left_out.items())
        tree.add(Text(f"… and {counted}", style="dim"))


def _items(branch: Tree, node: NodeView, now: int) -> None:
    """Below a map: the items that people may want to look at, the others only count."""
    shown_items = [item for item in node.items if item.status != "completed" and _is_worth(item)]
    for item in shown_items[:ITEMS]:
        line = branch.add(_line(item, now, 0))
        for asked in item.questions:
            line.add(_question(asked, now))
        if item.inner is not None and item.inner.status != "completed":
            _branches(line, item.inner, now, 0)
    if len(shown_items) > ITEMS:
        branch.add(Text(f"… and {len(shown_items) - ITEMS} more", style="dim"))


def _is_worth(item: NodeView) -> bool:
    return bool(item.questions) or item.inner is not None or item.status == "failed"


def _counts(node: NodeView) -> str:
    """Say how far a map is: "3 of 5 items done, 1 waiting"."""
    counted = Counter(_word(item) for item in node.items)
    rest = [
        f"{counted[word]} {word}" for word in ("running", "waiting", "retrying", "failed") if counted[word]
    ]
    return ", ".join([f"{counted['completed']} of {node.total} items done", *rest])


def _fitting(run: RunView, lines: int) -> tuple[list[NodeView], dict[str, int]]:
    needed = len(run.nodes) + sum(1 for _ in run.questions())
    if not lines or needed <= lines:
        return list(run.nodes), {}
    kept = [node for node in run.nodes if node.status not in QUIET][: max(1, lines - 1)]
    left_out: dict[str, int] = {}
    for node in run.nodes:
        if node not in kept:
            left_out[node.status] = left_out.get(node.status, 0) + 1
    return kept, left_out


def _line(node: NodeView, now: int, width: int) -> Text:
    status = _word(node)
    sign = SIGNS.get(status, "·")
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{sign} ", style=style(status)).append(f"{one_line(node.id):<{width}}  ")
    line.append(f"{status:<9}", style=style(status))
    for part in _remarks(node, now):
        line.append(f"  {part}")
    if node.error is not None:
        line.append(f"  {short(str(node.error), 90)}", style="red")
    elif node.status == "completed" and node.output is not None:
        line.append(f"  {short(node.output)}", style="dim")
    return line


def _word(node: NodeView) -> str:
    """A node that waits for a graph inside it or for items runs, as far as people can see, while they do."""
    busy = node.inner is not None and node.inner.status == "executing"
    busy = busy or any(_word(item) in BUSY for item in node.items)
    return "running" if node.status == "waiting" and busy else node.status


def _remarks(node: NodeView, now: int) -> Iterator[str]:
    if node.status in {"running", "waiting", "retrying"}:
        yield span(now - node.since)
    elif node.status in {"completed", "failed"}:
        yield span(node.ms)
    if node.total:
        yield _counts(node)
    if node.visit > 1:
        yield f"visit {node.visit}"
    if node.attempts > 1:
        yield f"attempt {node.attempts}"
    if node.status == "running" and node.progress:
        yield one_line(node.progress)


def _question(asked: Interrupt, now: int) -> Group:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"asks {one_line(asked.name)}", style="yellow").append(f" of {people(asked)}")
    line.append(f"  {short(shown(asked.reason), 50)}", style="dim")
    if asked.expires_in:
        left = asked.asked_at + asked.expires_in * 1000 - now
        line.append(f"  expires in {span(left)}" if left > 0 else "  expires now")
    if asked.reminded:
        line.append(f"  reminded {times(asked.reminded)}")
    # The id is there to be copied, so it is never cut.
    return Group(line, Text(asked.id, style="dim", overflow="fold"))


def times(number: int) -> str:
    """Say how often."""
    return "once" if number == 1 else f"{number} times"


def people(asked: Interrupt) -> str:
    """Say whom a question waits for."""
    return one_line(", ".join(asked.assignees)) or "anybody"
