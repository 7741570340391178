"""Routes about the deployment: probes, metrics, the caller, API keys, audit, workers, letters, sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from runner.audit.files import audit_of
from runner.errors import NotFoundError
from runner.immutable import immutable
from runner.operations.api_keys import ApiKey, list_keys
from runner.operations.backlog import Backlog, read_backlog
from runner.operations.dead_letters import Replayed, replay
from runner.operations.metrics import prometheus
from runner.operations.views import WorkerView, read_workers
from runner.records.codec import JSONMapping, JSONObject
from runner.records.dead_letters import DeadLetter
from runner.records.listings import Page, SessionSummary
from runner.records.run import existing
from runner.server.access import OPEN, SEE, Administers, Known, Operates, Reads, Seen
from runner.server.answers import record_router
from runner.server.api.documents import ONE_PAGE, PAGE, Cursor, Limit
from runner.server.auth import ApiKeys
from runner.server.parameters import QueryText
from runner.server.problems import prefix
from runner.server.services import Served

operations = record_router("", "operations")
audit = record_router("/v1/audit", "audit")
workers = record_router("/v1", "workers")
dead = record_router("/v1/dead", "dead letters")
sessions = record_router("/v1/sessions", "sessions")


@immutable
class Probe:
    """The answer of a server that can work."""

    status: Literal["ok"] = "ok"


@operations.head("/healthz", dependencies=[Depends(OPEN)], include_in_schema=False)
@operations.get(
    "/healthz",
    dependencies=[Depends(OPEN)],
    summary="Check that this process answers",
    operation_id="health_healthy",
)
async def healthy() -> Probe | JSONResponse:
    """Answer as long as the process lives, whatever else is down."""
    # A record is written in a thread, and all threads may be waiting for the store.
    return JSONResponse({"status": "ok"})


@operations.get(
    "/readyz",
    dependencies=[Depends(OPEN)],
    summary="Check that the store can be reached",
    operation_id="health_ready",
)
def ready(services: Served) -> Probe:
    """Answer 503 while the store can't be reached."""
    services.workers.now()  # open to all callers, so it costs the store one short command
    return Probe()


@operations.get(
    "/metrics",
    dependencies=[Depends(SEE)],
    response_class=PlainTextResponse,
    summary="Metrics",
    operation_id="health_metrics",
)
def metrics(services: Served) -> PlainTextResponse:
    """Return metrics of runs, questions and workers, in the text format of Prometheus."""
    return PlainTextResponse(
        prometheus(services.metrics()), media_type="text/plain; version=0.0.4"
    )


@operations.get(
    "/openapi.json",
    dependencies=[Depends(OPEN)],
    summary="This document",
    include_in_schema=False,
)
def openapi(request: Request) -> JSONResponse:
    """Return the OpenAPI document."""
    schema: JSONObject = request.app.openapi()
    return JSONResponse({**schema, "servers": [{"url": prefix(request) or "/"}]})


@immutable
class CallerView:
    """The caller with their roles, groups and permissions, and the token of their forms."""

    principal: str
    name: str
    roles: list[str]
    groups: list[str]
    permissions: list[str]
    form_token: str


@operations.get("/v1/me", summary="Show the caller", operation_id="me_show")
def show_caller(request: Request, person: Known) -> CallerView:
    """Show the caller with their roles, groups and permissions, and the token of their forms.

    A page of this origin sends the token in `X-Form-Token` with each request that changes something; it is
    valid for twelve hours. Requests with an API key need none.
    """
    return CallerView(
        person.principal.key,
        person.principal.name or person.principal.sub,
        sorted(person.roles),
        sorted(person.groups),
        sorted(person.permissions),
        request.app.state.form_tokens.issue(person),
    )


@operations.get(
    "/v1/keys",
    operation_id="keys_list_api_keys",
    summary="List API keys",
    dependencies=[ONE_PAGE],
)
def list_api_keys(request: Request, _: Administers, services: Served) -> Page[ApiKey]:
    """List the API keys of programs, and when each was last used, to the minute."""
    auth = request.app.state.auth
    return Page(list_keys(auth.path, services) if isinstance(auth, ApiKeys) else [])


@immutable
class AuditHead:
    """The size of a partition's audit, how much of it a checkpoint signs, and the problem with it or ""."""

    partition: int
    size: int
    signed: int
    signed_at: int
    checkpoint: str
    problem: str


@audit.get("", summary="Show how far the audit is sealed and signed", dependencies=[ONE_PAGE])
def heads(_: Reads, services: Served) -> Page[AuditHead]:
    """Show each partition's tree: its entries, those signed, and the checkpoint that signs them."""
    heads = enumerate(log.head() for log in services.store.audit_logs)
    return Page(
        [
            AuditHead(number, head.size, head.signed, head.signed_at, head.note, head.problem)
            for number, head in heads
        ]
    )


@immutable
class AuditOfRun(Page[JSONMapping]):
    """The audit entries of a run, whether they verify, and the reason."""

    items: Sequence[JSONMapping]
    result: str = ""
    detail: str = ""


@audit.get("/{run_id}", summary="Show the audit of a run, verified", name="show")
def show_audit(run_id: str, _: Reads, services: Served) -> AuditOfRun:
    """Show the audit entries of a run's approvals, and whether they verify with this server's key."""
    existing(services.store.peek(run_id), run_id)
    shown = audit_of(services, run_id)
    return AuditOfRun(shown.entries, result=shown.result, detail=shown.detail)


@audit.get(
    "/{run_id}/export",
    summary="Export the audit of a run",
    response_class=Response,
    responses={200: {"content": {"application/jsonl": {}}}},
    name="export",
)
def export_audit(run_id: str, _: Reads, services: Served) -> Response:
    """Write the file that `runner audit verify` checks without a store: JSON lines."""
    existing(services.store.peek(run_id), run_id)
    return Response("".join(audit_of(services, run_id).lines), media_type="application/jsonl")


@workers.get("/workers", summary="List workers and keepers", dependencies=[ONE_PAGE])
def list_workers(_: Seen, services: Served) -> Page[WorkerView]:
    """List the workers with their queues, graphs and state: alive, stopping, hangs or gone."""
    return Page(read_workers(services))


@workers.get("/backlog", summary="Count the nodes of queues")
def backlog(
    _: Seen, services: Served, queue: Annotated[list[str] | None, Query(max_length=100)] = None
) -> Backlog:
    """Count the nodes of these queues that are ready or run, for autoscalers: both need a worker.

    Without `queue` it counts all queues; each also has how long its first node waits.
    """
    return read_backlog(services, queue or ())


@dead.get("", summary="List dead letters, newest first", dependencies=[ONE_PAGE])
def list_letters(_: Seen, services: Served, limit: Limit = PAGE) -> Page[DeadLetter]:
    """List messages that could not be used and nodes given up; readers see the reason and the message."""
    return Page(services.dead_letters.all(limit))


@dead.get("/{letter_id}", summary="Show one dead letter", name="show")
def show_letter(letter_id: str, _: Seen, services: Served) -> DeadLetter:
    """Show a dead letter, to readers with the message as it was received."""
    return services.dead_letters.get(letter_id)


@dead.post("/{letter_id}:replay", summary="Send a message again, or retry a node")
def replay_letter(letter_id: str, person: Operates, services: Served) -> Replayed:
    """Send a message to its stream again, or retry the run of a node, and delete the letter."""
    letters = services.dead_letters
    by = person.principal.key
    letter = letters.get(letter_id)
    return Replayed(letter_id, replay(services.client.engine, letters, letter, set(), by))


@dead.delete("/{letter_id}", status_code=204, summary="Delete a dead letter", name="drop")
def drop_letter(letter_id: str, _: Operates, services: Served) -> None:
    """Delete a dead letter permanently."""
    services.dead_letters.get(letter_id)
    services.dead_letters.drop(letter_id)


@sessions.get("", summary="List the sessions of agents")
def list_sessions(
    _: Administers, services: Served, limit: Limit = PAGE, cursor: Cursor = None
) -> Page[SessionSummary]:
    """List sessions with their numbers of messages; one that all graphs share has no graph.

    There is no index: a page searches the keys of the store, so the pages are in no order, and one may be
    empty although `next` has more.
    """
    return services.sessions(limit, cursor)


@sessions.delete(
    "/{session_id:key}", status_code=204, summary="Delete a session", name="forget"
)
def forget_session(
    session_id: str, _: Administers, services: Served, graph: QueryText = ""
) -> None:
    """Delete a session of a graph, without one a session that all share; a run in it adds to a new one."""
    if not services.client.forget_session(session_id, graph=graph):
        raise NotFoundError(
            f"there is no session {session_id!r} of the graph {graph!r}, so nothing was deleted; "
            "GET /v1/sessions has the graph of each, empty where all graphs share it."
        )
