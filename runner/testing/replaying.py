"""A check before a deploy: can today's graph continue a run that began with yesterday's?

The rule is the same as on workers: a node continues if its kind, version, join and edges are
unchanged. Code is not compared, and nothing is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.definition.model import HIDDEN, shape_name
from runner.definition.registry import CompiledGraph, Registry
from runner.errors import UsageError
from runner.immutable import immutable
from runner.local import Graph
from runner.records.run import FINAL, SETTLED, EventKind
from runner.testing.in_process import built

VERSION = 1


@immutable
class ChangedNode:
    """A node that today's graph can't continue, the reason, and the names of its open questions."""

    run_id: str
    node: str
    reason: str
    questions: tuple[str, ...] = ()


@immutable
class ReplayResult:
    """The effect on the run; `held` is empty if it can continue to its end."""

    run_id: str
    held: tuple[ChangedNode, ...] = ()

    @property
    def goes_on(self) -> bool:
        """True if every node that the run has not completed is unchanged."""
        return not self.held

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that need a migration."""
        return [node.node for node in self.held]

    @property
    def questions(self) -> list[str]:
        """The names of the open questions whose answers would be kept but not acted on."""
        return [name for question in self.held for name in question.questions]

    def __str__(self) -> str:
        """Return a description, for the message of an assert."""
        if self.goes_on:
            return f"run {self.run_id} goes on: unchanged"
        changes = "; ".join(f"{node.node} {node.reason}" for node in self.held)
        return f"run {self.run_id} needs migration: {changes}"


def replay(
    export: Mapping[str, Any] | str | Path, graph: Graph | Callable[[], Graph]
) -> ReplayResult:
    """Check whether a graph can continue a run that `runner runs export` has exported.

    `export` is the document, or the path of a file that holds it.

    Raises:
        UsageError: it isn't a document of `runner runs export`.
    """
    document = _read(export) if isinstance(export, (str, Path)) else export
    if (
        not isinstance(document, Mapping)
        or document.get("v") != VERSION
        or "graph" not in document
    ):
        raise UsageError(
            "this isn't a document of `runner runs export`, so nothing was compared."
        )
    registry = Registry()
    # An inner graph is found by its path, which begins with the name of its root run's graph.
    registry.add(document["graph"].split("/")[0], lambda: built(graph))
    return ReplayResult(document["run_id"], tuple(_held(document, registry)))


def _read(file: str | Path) -> Any:
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} holds no JSON, so nothing was compared: {error}.") from error


def _held(document: Mapping[str, Any], registry: Registry) -> Iterator[ChangedNode]:
    if document["status"] in FINAL:
        return
    plan = registry.find(document["graph"])
    if plan is None or plan.topology.fingerprint != document["fingerprint"]:
        for node in sorted(_ahead(document)):
            if reason := _change(document, plan, node):
                yield ChangedNode(document["run_id"], node, reason, _questions(document, node))
    for inside in document["runs"]:
        yield from _held(inside, registry)


def _ahead(document: Mapping[str, Any]) -> set[str]:
    """Return the nodes that have not ended, including nodes that the run has not reached."""
    latest = {visit["node"]: visit["status"] for visit in document["visits"]}
    over = {node for node, status in latest.items() if status in SETTLED}
    over |= {
        event["node"] for event in document["events"] if event["kind"] == EventKind.NODE_SKIPPED
    }
    declared = {node for node in document["signatures"] if not node.endswith("[]")}
    return {node for node in {*latest, *declared} - over if not node.startswith(HIDDEN)}


def _change(document: Mapping[str, Any], plan: CompiledGraph | None, node: str) -> str:
    shape = plan.topology.nodes.get(shape_name(node)) if plan else None
    if shape is None:
        return "is gone"
    return (
        "" if document["signatures"].get(shape_name(node)) == shape.signature else "has changed"
    )


def _questions(document: Mapping[str, Any], node: str) -> tuple[str, ...]:
    return tuple(
        question["name"]
        for question in document["interrupts"]
        if question["node"] == node and question["status"] == "open"
    )
