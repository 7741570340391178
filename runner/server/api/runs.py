"""`/v1/runs`: start, list, show and change runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Body, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, StrictBool

from runner.client import Run
from runner.operations.backlog import with_waits
from runner.operations.exports import event_of
from runner.operations.interventions import Action, intervene
from runner.operations.migration import MigrationResult
from runner.operations.views import (
    RetriedRun,
    RunStatus,
    RunView,
    StartedRun,
    archived_run,
    read_run,
)
from runner.records import codec
from runner.records.codec import JSONObject, plain
from runner.records.listings import Page, RunSummary
from runner.records.messages import MOST_BEHALF, key_of
from runner.records.run import Status, existing
from runner.server import streams
from runner.server.access import Lists, Operates, Person, Seen, Starts
from runner.server.answers import record_router
from runner.server.api.documents import (
    PAGE,
    Cursor,
    Limit,
    Moment,
    RequestBody,
)
from runner.server.deciding import cancelled_by, requested_by, start_for
from runner.server.parameters import OptionalQueryText
from runner.server.problems import Problem, prefix
from runner.server.services import Served, Services
from runner.store.interface import Event

router = record_router("/v1/runs", "runs")


MOST_WAIT = 60
"""Maximum seconds that a request waits; proxies end requests that are silent for longer."""


class NewRun(RequestBody):
    """A run to start."""

    graph: str = Field(min_length=1)
    task: Any = None
    invocation_state: JSONObject | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    on_behalf_of: list[str] = Field(
        default_factory=list,
        max_length=MOST_BEHALF,
        description="Principals for whom a service starts it.",
    )
    proof: JSONObject | None = Field(
        default=None, description="The caller's own signature of the message that starts it."
    )


class Reason(RequestBody):
    """The caller's reason."""

    reason: str = ""


class NodeChange(Reason):
    """A node to hold, release or skip; `output` is for a node that is skipped."""

    node: str
    output: Any = None


class RetryRequest(RequestBody):
    """The failed node to run again; by default all failed nodes."""

    node: str | None = None


class ForkRequest(RequestBody):
    """The node and visit where a new run begins; `input` is another task for the node."""

    node: str
    visit: int | None = Field(default=None, ge=1)
    input: Any = None
    tags: dict[str, str] = Field(default_factory=dict)


class AgainRequest(RequestBody):
    """A new run like another; omitted fields are as in that run."""

    task: Any = None


class MigrateRequest(RequestBody):
    """New names of the nodes of a waiting run, and the nodes to remove."""

    mapping: dict[str, str] = Field(default_factory=dict)
    drop: list[str] = Field(default_factory=list)
    dry_run: StrictBool = True


@router.post("", status_code=201, summary="Start a run")
def start(
    request: Request,
    body: NewRun,
    person: Starts,
    services: Served,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=500)] = None,
) -> StartedRun:
    """Start a run of a graph; with an Idempotency-Key a repeat of the request returns the same run."""
    run = start_for(
        services,
        person,
        body.graph,
        body.task,
        key=idempotency_key,
        invocation_state=body.invocation_state,
        tags=body.tags,
        on_behalf_of=[key_of(name) for name in body.on_behalf_of],
        proof=body.proof,
    )
    if idempotency_key is not None:
        _check_same(services, run, body, person)
    return StartedRun(run.id, body.graph, _located(run, request, response))


def _located(run: Run, request: Request, response: Response) -> Status:
    """Set the path of a new run as the location of the response, and return its status."""
    response.headers["location"] = f"{prefix(request)}/v1/runs/{run.id}"
    return run.status


def _check_same(services: Services, run: Run, body: NewRun, person: Person) -> None:
    snapshot = services.store.read(run.id)
    if snapshot is None:
        return
    inputs = (snapshot.task, snapshot.invocation_state or {})
    earlier = (*(plain(codec.unpack(value)) for value in inputs), dict(snapshot.tags))
    # The requester, and the people they act for, determine who may answer.
    requester = services.store.requester(run.id) or {}
    asked = (requester.get("principal"), list(requester.get("on_behalf_of", ())))
    names = [key_of(name) for name in body.on_behalf_of]
    if (*earlier, *asked) != (
        body.task,
        body.invocation_state or {},
        body.tags,
        person.principal.key,
        names,
    ):
        record = snapshot.record
        topology = services.store.topology(record.graph_id, record.fingerprint)
        if topology and topology.admission and topology.admission.returns_open_runs:
            return
        raise Problem(
            422,
            f"The Idempotency-Key belongs to run {run.id}, which has another body or requester.",
            run_id=run.id,
        )


@router.get("", summary="List runs, newest first")
def list_runs(
    _: Lists,
    services: Served,
    status: Annotated[Status | None, Query()] = None,
    graph: OptionalQueryText = None,
    tag: Annotated[list[str] | None, Query(description="name=value; may be repeated.")] = None,
    since: Moment = None,
    until: Moment = None,
    text: Annotated[
        str, Query(max_length=500, description="A text in the value of a tag.")
    ] = "",
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Page[RunSummary]:
    """List the runs that match all filters."""
    tags = dict(_pair(text) for text in tag or ())
    return services.client.runs(
        status,
        graph=graph or None,
        tags=tags,
        since=since,
        until=until,
        text=text,
        limit=limit,
        cursor=cursor,
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Problem(422, f"The tag {text!r:.80} is not name=value.")
    return name, value


@router.get("/{run_id}", summary="Show a run with its nodes")
async def show(
    run_id: str,
    _: Seen,
    services: Served,
    wait: Annotated[
        float,
        Query(
            ge=0, le=MOST_WAIT, description="Seconds to wait for the run to end or need people."
        ),
    ] = 0,
) -> RunView:
    """Show a run with its output; an expired run comes from the archive.

    With `wait` the answer comes when the run has ended or waits only for people, or when the time is over.
    """
    if wait:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await settled(services, run_id)
    return await run_in_threadpool(shown_run, services, run_id)


async def settled(services: Services, run_id: str) -> None:
    """Wait, without blocking a thread, until a run does not execute."""
    snapshot = await run_in_threadpool(services.store.read, run_id)
    if snapshot is None:
        return
    with services.hub.subscribed({run_id: snapshot.events}) as subscriber:
        run = services.client.run(run_id)
        while await run_in_threadpool(lambda: run.status) is Status.EXECUTING:
            await subscriber.queue.get()


def shown_run(services: Services, run_id: str) -> RunView:
    """Return a run, from the archive if it is not in the store."""
    if services.archive is not None and services.store.peek(run_id) is None:
        export = services.archive.read(run_id)
        if export is not None:
            return archived_run(export)
    return with_waits(services, read_run(services.store, run_id))


@router.delete("/{run_id}", status_code=204, summary="Remove a run that has ended")
def remove(run_id: str, _: Operates, services: Served) -> None:
    """Remove all data of a run before its retention is over."""
    services.client.run(run_id).remove()


@router.get(
    "/{run_id}/events",
    summary="List the events of a run, or follow them",
    responses={200: {"content": {"text/event-stream": {}, "application/json": {}}}},
)
async def events(
    request: Request,
    run_id: str,
    person: Seen,
    services: Served,
    after: Annotated[str, Query(pattern=r"^\d{0,18}$")] = "",
    limit: Limit = PAGE,
    last_event_id: Annotated[str, Header(pattern=r"^\d{0,18}$")] = "",
) -> Page[Event] | streams.Stream:
    """List events after a position; `next` is the position to continue from, null after the last page.

    With `Accept: text/event-stream` it is a stream that begins with a `snapshot` of the run, unless `after`
    or `Last-Event-ID` names a position. If events after that have expired, it begins with `reset`.
    """
    await run_in_threadpool(lambda: existing(services.store.peek(run_id), run_id))
    if "text/event-stream" in request.headers.get("accept", ""):
        return _stream(request, services, person, run_id, last_event_id or after)
    events_page = await run_in_threadpool(services.store.events, run_id, after, limit)
    following = events_page[-1].position if len(events_page) == limit else None
    return Page([*map(event_of, events_page)], following)


def _stream(
    request: Request, services: Services, person: Person, run_id: str, after: str
) -> streams.Stream:
    def snapshot() -> tuple[RunView, dict[str, int]]:
        # Read the position first: a change between the two reads comes again as an event.
        number = existing(services.store.read(run_id), run_id).events
        return read_run(services.store, run_id), {run_id: number}

    def show(_: str, event: Event) -> Event:
        return event_of(event)

    hub = services.hub
    lines = streams.runs_stream(
        request, person, hub, services.store, [run_id], after, snapshot, show
    )
    return streams.Stream(request, lines, hub, person)


@router.post("/{run_id}:cancel", summary="Stop a run and its child runs")
def cancel(
    run_id: str,
    person: Operates,
    services: Served,
    body: Annotated[Reason, Body(default_factory=Reason)],
) -> RunStatus:
    """Stop a run: running nodes may finish, no other starts, open questions are withdrawn."""
    run = services.client.run(run_id)
    if not run.cancel(cancelled_by(person, body.reason)):
        raise Problem(
            409, f"Run {run_id} has ended or is stopping already; nothing was changed."
        )
    return RunStatus(run_id, run.status)


@router.post("/{run_id}:retry", summary="Resume a failed or cancelled run")
def retry(
    run_id: str,
    person: Operates,
    services: Served,
    body: Annotated[RetryRequest, Body(default_factory=RetryRequest)],
) -> RetriedRun:
    """Run failed and cancelled nodes again; completed nodes stay."""
    return RetriedRun(run_id, services.client.run(run_id).retry(body.node, by=person.principal))


@router.post(
    "/{run_id}:fork", status_code=201, summary="Start a new run from a node of this one"
)
def fork(
    request: Request,
    run_id: str,
    body: ForkRequest,
    person: Operates,
    services: Served,
    response: Response,
) -> RunStatus:
    """Start a new run that keeps nodes independent of this one; the caller becomes a requester, too."""
    options = requested_by(services, person, **body.model_dump(exclude_unset=True))
    run = services.client.run(run_id).fork(**options)
    return RunStatus(run.id, _located(run, request, response))


@router.post("/{run_id}:again", status_code=201, summary="Start a new run like this one")
def again(
    request: Request,
    run_id: str,
    person: Operates,
    services: Served,
    response: Response,
    body: Annotated[AgainRequest, Body(default_factory=AgainRequest)],
) -> RunStatus:
    """Start a new run of the same graph from its beginning; the caller becomes a requester, too."""
    options = requested_by(services, person, **body.model_dump(exclude_unset=True))
    run = services.client.run(run_id).again(**options)
    return RunStatus(run.id, _located(run, request, response))


@router.post(
    "/{run_id}:migrate", summary="Move a waiting run to the present version of its graph"
)
def migrate(
    run_id: str,
    _: Operates,
    services: Served,
    body: Annotated[MigrateRequest, Body(default_factory=MigrateRequest)],
) -> MigrationResult:
    """Show the outcome for each node; with `dry_run` false, migrate the run."""
    return services.client.run(run_id).migrate(
        body.mapping, drop=body.drop, dry_run=body.dry_run
    )


@router.post("/{run_id}:{action}", summary="Hold, release or skip a node")
def change_node(
    run_id: str, action: Action, body: NodeChange, person: Operates, services: Served
) -> RunStatus:
    """Keep a node from running, end that, or let it end with an output instead of running."""
    outputs = [body.output] if "output" in body.model_fields_set else []
    if len(outputs) != (action == "skip"):
        raise Problem(
            422, "A skip needs an output, and only a skip has one; nothing was changed."
        )
    client = services.client
    by = person.principal
    intervene(client.engine, run_id, body.node, action, *outputs, by=by, reason=body.reason)
    return RunStatus(run_id, client.run(run_id).status)
