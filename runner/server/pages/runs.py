"""The pages of runs: the list, and one run with its live graph."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from runner.authoring.drawing import draw, outline
from runner.operations.exports import all_events
from runner.operations.views import NodeView, RunView, archived_run, read_run, with_items
from runner.records.run import FINAL, Status, existing
from runner.server.access import OPERATE, READ, SEE, Person
from runner.server.api.audit import audit_of
from runner.server.api.documents import bare_event, without_payloads
from runner.server.deciding import start_for
from runner.server.pages.rendering import back, page, span
from runner.server.problems import Problem
from runner.server.services import Services, services
from runner.store.interface import Event

router = APIRouter(include_in_schema=False)

Served = Annotated[Services, Depends(services)]
Seen = Annotated[Person, Depends(SEE)]
Operates = Annotated[Person, Depends(OPERATE)]

ROWS = 50

LINES = 200
"""Events of a timeline at most, the newest; the API has them all."""


def filters_of(request: Request) -> Any:
    """Return a function that writes the filters of the address, with changes, for a link."""

    def filters(**changes: str | None) -> str:
        values = {**dict(request.query_params), **changes}
        text = urlencode({name: value for name, value in values.items() if value})
        return f"{text}&" if text and changes.get("cursor", "") is None else text

    return filters


@router.get("/runs")
def list_runs(
    request: Request,
    person: Seen,
    served: Served,
    status: Annotated[str, Query()] = "",
    graph: Annotated[str, Query()] = "",
    tag: Annotated[str, Query()] = "",
    cursor: Annotated[str, Query()] = "",
) -> HTMLResponse:
    """List runs, newest first."""
    if status and status not in set(Status):
        raise Problem(422, f"{status!r:.40} is no status of a run.")
    name, _, value = tag.partition("=")
    listed = served.client.runs(
        status or None,
        graph=graph or None,
        tags={name: value} if name else {},
        limit=ROWS,
        cursor=cursor or None,
    )
    return page(
        request,
        "runs.html",
        person,
        runs=listed.items,
        next=listed.next,
        statuses=["executing", "interrupted", "needs_migration", "completed", "failed", "cancelled"],
        graphs=[name for name in sorted(served.store.graphs()) if "/" not in name],
        start_key=secrets.token_hex(16),
        filters=filters_of(request),
    )


@router.post("/runs")
def start(
    request: Request,
    person: Operates,
    served: Served,
    graph: Annotated[str, Form()],
    task: Annotated[str, Form()] = "null",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Start a run, and show it; a form that is sent twice starts one, by the key of its page."""
    try:
        value = json.loads(task)
    except ValueError as error:
        raise Problem(422, f"The task is not JSON: {error}.") from error
    return back(request, f"/runs/{start_for(served, person, graph, value, key=key or None).id}")


@router.get("/runs/{run_id}")
def show(request: Request, run_id: str, person: Seen, served: Served) -> HTMLResponse:
    """Show a run."""
    store = served.store
    record = store.peek(run_id)
    if record is None and served.archive is not None and (export := served.archive.read(run_id)) is not None:
        run, position, events = archived_run(export), "0", []
    else:
        position = str(existing(store.read(run_id), run_id).events)
        run, events = read_run(store, run_id), all_events(store, run_id)
    if not person.may("read"):
        run, events = without_payloads(run), [bare_event(event) for event in events]
    return page(
        request,
        "run.html",
        person,
        run=run,
        position=position,
        nodes=list(_paths(run)),
        drawing=_drawing(served, run),
        timeline=list(_timeline(events, run.created_at)),
        final=run.status in set(map(str, FINAL)),
        forkable=[node.id for node in run.nodes if node.visit],
    )


def _paths(run: RunView, prefix: str = "") -> Iterator[tuple[str, NodeView]]:
    for node in run.nodes:
        yield prefix + node.id, node
        if node.run is not None:
            yield from _paths(node.run, f"{prefix}{node.id}/")
        for item in with_items([node]):
            if item is not node and item.status in {"waiting", "failed", "running", "retrying"}:
                yield prefix + item.id, item


def _states(run: RunView, prefix: str = "") -> dict[str, str]:
    states: dict[str, str] = {}
    for node in run.nodes:
        states[prefix + node.id] = node.status
        if node.run is not None:
            states |= _states(node.run, f"{prefix}{node.id}/")
    return states


def _drawing(served: Services, run: RunView) -> Markup:
    """Draw the graph with the run's states: from its code, or from its shape in the store."""
    plan = served.plan(run.graph)
    record = served.store.peek(run.run_id)
    fits = record is None or (plan is not None and plan.topology.fingerprint == record.fingerprint)
    if plan is not None and fits:
        return Markup(draw(plan.definition, "svg", _states(run)))  # noqa: S704 - our own, escaped
    topology = served.store.topology(run.graph, record.fingerprint) if record else None
    text = outline(topology, _states(run)) if topology else ""
    return Markup(text)  # noqa: S704 - as above


def _timeline(events: list[Event], start: int) -> Iterator[dict[str, str]]:
    for event in events[-LINES:]:
        exact = datetime.fromtimestamp(event.at / 1000, UTC).isoformat(timespec="milliseconds")
        detail = event.detail if not event.kind.startswith("interrupt.") else ""
        yield {
            "exact": exact,
            "offset": "+" + span(event.at - start),
            "kind": event.kind,
            "node": event.node,
            "detail": detail,
        }


@router.get("/runs/{run_id}/audit")
def audit(
    request: Request, run_id: str, person: Annotated[Person, Depends(READ)], served: Served
) -> HTMLResponse:
    """Show what was recorded of the run's approvals, verified now."""
    record = existing(served.store.peek(run_id), run_id)
    return page(
        request, "audit.html", person, run_id=run_id, graph=record.graph_id, audit=audit_of(served, run_id)
    )


@router.post("/runs/{run_id}/cancel")
def cancel(
    request: Request, run_id: str, person: Operates, served: Served, reason: Annotated[str, Form()] = ""
) -> Response:
    """Stop a run."""
    if not served.client.run(run_id).cancel(reason or f"cancelled by {person.principal.sub}"):
        raise Problem(409, "The run has ended or is stopping already; nothing was changed.")
    return back(request, f"/runs/{quote(run_id)}")


@router.post("/runs/{run_id}/retry")
def retry(request: Request, run_id: str, _: Operates, served: Served) -> Response:
    """Run failed nodes again."""
    served.client.run(run_id).retry()
    return back(request, f"/runs/{quote(run_id)}")


@router.post("/runs/{run_id}/again")
def again(request: Request, run_id: str, _: Operates, served: Served) -> Response:
    """Start a run like this one."""
    return back(request, f"/runs/{served.client.run(run_id).again().id}")


@router.post("/runs/{run_id}/fork")
def fork(
    request: Request, run_id: str, _: Operates, served: Served, node: Annotated[str, Form()]
) -> Response:
    """Start a new run from a node of this one."""
    return back(request, f"/runs/{served.client.run(run_id).fork(node).id}")
