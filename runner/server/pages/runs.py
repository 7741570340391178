"""The pages of runs: the list, and one run with its live graph."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from runner.approvals.rule_text import deciders
from runner.approvals.rules import plain_name
from runner.audit.files import audit_of
from runner.definition.model import HIDDEN, UNDO, map_of
from runner.immutable import immutable
from runner.operations.backlog import with_waits
from runner.operations.decided import DecisionView
from runner.operations.exports import Question, all_events
from runner.operations.views import NodeView, RunView, archived_run, read_run, spendings
from runner.records.codec import without_empty
from runner.records.listings import grouped
from runner.records.run import FINAL, Status, existing
from runner.server.access import Lists, Seen
from runner.server.answers import seen_by
from runner.server.pages.node_drawer import QUIET, drawer
from runner.server.pages.question import line_of
from runner.server.pages.rendering import page
from runner.server.pages.run_actions import actions
from runner.server.pages.run_graph import (
    GRAPH,
    Level,
    PageState,
    activity,
    drawing,
    find,
    levels,
    waiting_in,
)
from runner.server.pages.timeline import phases, rows
from runner.server.parameters import QueryText
from runner.server.problems import Problem
from runner.server.services import Served, Services
from runner.store.interface import Event

router = APIRouter(include_in_schema=False)

ROWS = 50

NODES = 300
"""Maximum rows of nodes: those that need attention, then the others; the graph leads to every node."""

ITEMS, LOUD = 10, ("failed", "retrying", "running")
"""Maximum items of a map that have rows, and their states in order; the map's row counts all items, and items
that wait for people are on its line above the graph."""

TABS = {
    GRAPH: "Graph",
    "nodes": "Nodes and time",
    "events": "Events",
    "task": "Task",
    "audit": "Audit",
}


def filters_of(request: Request) -> Any:
    """Return a function that writes the filters of the address with changes, for a link."""

    def filters(**changes: str | None) -> str:
        text = urlencode(without_empty({**dict(request.query_params), **changes}))
        return f"{text}&" if text and changes.get("cursor", "") is None else text

    return filters


@router.get("/runs")
def list_runs(
    request: Request,
    person: Lists,
    services: Served,
    status: QueryText = "",
    graph: QueryText = "",
    tag: QueryText = "",
    text: QueryText = "",
    cursor: QueryText = "",
) -> HTMLResponse:
    """List runs, newest first."""
    if status and status not in set(Status):
        raise Problem(422, f"{status!r:.40} is not a status of a run.")
    name, _, value = tag.partition("=")
    runs_page = services.client.runs(
        status or None,
        graph=graph or None,
        tags={name: value} if name else {},
        text=text,
        limit=ROWS,
        cursor=cursor or None,
    )
    return page(
        request,
        "runs.html",
        person,
        runs=runs_page.items,
        next=runs_page.next,
        filters=filters_of(request),
    )


@router.get("/runs/{run_id}")
def show(request: Request, run_id: str, person: Seen, services: Served) -> HTMLResponse:
    """Show a tab of a run; the address also names the node shown, and the nodes open in the graph."""
    address = PageState.of(request)
    tabs = [tab for tab in TABS if tab != "audit" or person.may("read")]
    if address.tab not in tabs:
        raise Problem(404, f"A run has no tab {address.tab!r:.40} for you: {', '.join(tabs)}.")
    store = services.store
    record = store.peek(run_id)
    if (
        record is None
        and services.archive is not None
        and (export := services.archive.read(run_id)) is not None
    ):
        run = archived_run(export)
        position = 0
        events = []
    else:
        position = existing(store.read(run_id), run_id).events
        run = with_waits(services, read_run(store, run_id))
        events = all_events(store, run_id) if address.tab in {"nodes", "events"} else []
    run = seen_by(person, run)
    events = [seen_by(person, event) for event in events]
    shown = list(levels(services, run))
    now = round(time.time() * 1000)
    chosen = find(shown, address.node)
    final = run.status in FINAL
    asks = _asks(run.interrupts, {level.run.run_id: level.path for level in shown})
    picture = drawing(services, shown, address) if address.tab == GRAPH else ""
    return page(
        request,
        "run.html",
        person,
        run=run,
        position=position,
        tabs={tab: TABS[tab] for tab in tabs},
        drawing=picture,
        waiting=waiting_in(picture, [ask.path for ask in asks]),
        place=address,
        drawer=drawer(*chosen, person, services) if chosen is not None else None,
        **_nodes(run, shown, events, address.node, run.ended_at or now),
        events=events,
        described=_described,
        decided=_decided(run.decided),
        asks=asks,
        people_of=lambda question: deciders(question.rule, question.assignees),
        activity=activity,
        final=final,
        spent=list(spendings(run.spent)),
        actions=actions(run, final=final, changed=_changed(services, shown[0])),
        audit=audit_of(services, run_id) if address.tab == "audit" else None,
    )


def _nodes(
    run: RunView, shown: Sequence[Level], events: list[Event], node: str, ended_at: int
) -> dict[str, Any]:
    """Return the rows of nodes, the number of nodes without rows, and the phases of each node's time."""
    sources = {
        level.path + node.id: [level.path + name for name in level.before(node.id)]
        for level in shown
        for node in level.run.nodes
    }
    paths = list(_paths(run))
    if len(paths) > NODES:
        paths.sort(key=lambda one: one[0] != node and one[1].status in QUIET)
    spent = phases(events, run.created_at, ended_at, lambda node: sources.get(node, []))
    times, gaps = rows(spent, run.created_at, ended_at)
    return {
        "nodes": paths[:NODES],
        "hidden_nodes": Counter(node.status for _, node in paths[NODES:]),
        "failures": [
            (path, node)
            for path, node in paths
            if not map_of(node.id)
            if node.error or any(item.status == Status.FAILED for item in node.items)
        ],
        "times": times,
        "shortened": gaps,
        "ended": ended_at,
    }


def _changed(services: Services, outer: Level) -> bool:
    """Return whether a run began with another shape of its graph than workers have now."""
    current = services.store.graphs().get(outer.run.graph)
    return outer.snapshot is not None and current not in (
        None,
        outer.snapshot.record.fingerprint,
    )


def _paths(run: RunView, prefix: str = "") -> Iterator[tuple[str, NodeView]]:
    for node in run.nodes:
        if node.id.startswith(HIDDEN) and not (node.id.startswith(UNDO) and node.visit):
            continue
        yield prefix + node.id, node
        if node.run is not None:
            yield from _paths(node.run, f"{prefix}{node.id}/")
        items = [item for item in node.items if item.status in LOUD]
        for item in sorted(items, key=lambda item: LOUD.index(item.status))[:ITEMS]:
            yield prefix + item.id, item


@immutable
class Asked:
    """Open questions of one node, or of all items of one map: the first, its node's path, their number."""

    question: Question
    path: str
    number: int


def _asks(questions: Sequence[Question], paths: Mapping[str, str]) -> list[Asked]:
    """List open questions, each map's as one line; `paths` has the paths of inner runs."""

    def path_of(question: Question) -> str:
        return paths.get(question.run_id, "") + (map_of(question.node_id) or question.node_id)

    def key_of(question: Question) -> tuple[str, ...]:
        is_item = map_of(question.node_id)
        return (path_of(question), question.name) if is_item else (question.id,)

    return [
        Asked(group[0], path_of(group[0]), len(group))
        for group in grouped(questions, key_of).values()
    ]


def _decided(decisions: Sequence[DecisionView]) -> list[tuple[DecisionView, int]]:
    """List decisions, newest first; equal ones of one map are one entry, with their number."""

    def key_of(decision: DecisionView) -> tuple[object, ...]:
        same = map_of(decision.node_id)
        return (
            (decision.run_id, same, decision.name, decision.sentence)
            if same
            else (decision.id,)
        )

    return [(group[0], len(group)) for group in grouped(reversed(decisions), key_of).values()]


def _described(event: Event) -> str:
    """Describe an event: of a question by the person's action, with the comment."""
    if not event.kind.startswith("interrupt."):
        return plain_name(event.detail)
    line = line_of(event)
    text = f"{line.who} {line.what}".strip()
    return f"{text}: {line.text}" if line.text else text
