"""Routes about the deployment: probes, metrics, the caller, API keys, audit, workers, letters, sessions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from runner.audit.files import audit_of
from runner.errors import NotFoundError, StoreError
from runner.operations.api_keys import list_keys
from runner.operations.dead import replay
from runner.operations.metrics import prometheus
from runner.operations.views import read_backlog, read_workers
from runner.records.json_form import document, stamp
from runner.records.run import existing
from runner.server.access import OPEN, SEE, Administers, Known, Operates, Reads, Seen
from runner.server.api.documents import (
    ONE_PAGE,
    PAGE,
    Cursor,
    Limit,
    page_document,
    seen_document,
)
from runner.server.auth import ApiKeys
from runner.server.parameters import QueryText
from runner.server.problems import Problem, prefix
from runner.server.services import Served

operations = APIRouter(tags=["operations"])
audit = APIRouter(prefix="/v1/audit", tags=["audit"])
workers = APIRouter(prefix="/v1", tags=["workers"])
dead = APIRouter(prefix="/v1/dead", tags=["dead letters"])
sessions = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@operations.head("/healthz", dependencies=[Depends(OPEN)], include_in_schema=False)
@operations.get(
    "/healthz",
    dependencies=[Depends(OPEN)],
    summary="Check that this process answers",
    operation_id="health_healthy",
)
async def healthy() -> dict[str, str]:
    """Answer as long as the process lives, whatever else is down."""
    # It needs no thread: all threads may be waiting for the store.
    return {"status": "ok"}


@operations.get(
    "/readyz",
    dependencies=[Depends(OPEN)],
    summary="Check that the store can be reached",
    operation_id="health_ready",
)
def ready(services: Served) -> dict[str, str]:
    """Answer 503 while the store can't be reached."""
    try:
        services.workers.now()  # open to all callers, so it costs the store one short command
    except StoreError as error:
        raise Problem(
            503, "The store can't be reached.", headers={"Retry-After": "5"}
        ) from error
    return {"status": "ok"}


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
def openapi(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document."""
    schema: dict[str, Any] = request.app.openapi()
    base = prefix(request)
    return {**schema, "servers": [{"url": base or "/"}]}


@operations.get("/v1/me", summary="Show the caller", operation_id="me_show")
def show_caller(request: Request, person: Known) -> dict[str, Any]:
    """Show the caller with their roles, groups and permissions, and the token of their forms.

    A page of this origin sends the token in `X-Form-Token` with each request that changes something; it is
    valid for twelve hours. Requests with an API key need none.
    """
    return {
        "principal": person.principal.key,
        "name": person.principal.name or person.principal.sub,
        "roles": sorted(person.roles),
        "groups": sorted(person.groups),
        "permissions": sorted(person.permissions),
        "form_token": request.app.state.form_tokens.issue(person),
    }


@operations.get(
    "/v1/keys",
    operation_id="keys_list_api_keys",
    summary="List API keys",
    dependencies=[ONE_PAGE],
)
def list_api_keys(request: Request, _: Administers, services: Served) -> dict[str, Any]:
    """List the API keys of programs, and when each was last used, to the minute."""
    auth = request.app.state.auth
    keys = list_keys(auth.path, services) if isinstance(auth, ApiKeys) else []
    return {"items": document(keys), "next": None}


@audit.get("", summary="Show how far the audit is sealed and signed", dependencies=[ONE_PAGE])
def heads(person: Reads, services: Served) -> dict[str, Any]:
    """Show each partition's tree: its entries, those signed, and the checkpoint that signs them."""
    items = []
    for partition, log in enumerate(services.store.audit_logs):
        head = log.head()
        items.append(
            {
                "partition": partition,
                "size": head.size,
                "signed": head.signed,
                "signed_at": stamp(head.signed_at),
                "checkpoint": head.note,
                "problem": head.problem,
            }
        )
    return page_document(items, person)


@audit.get("/{run_id}", summary="Show the audit of a run, verified", name="show")
def show_audit(run_id: str, person: Reads, services: Served) -> Any:
    """Show the audit entries of a run's approvals, and whether they verify with this server's key."""
    existing(services.store.peek(run_id), run_id)
    shown = audit_of(services, run_id)
    return page_document(shown.entries, person) | {
        "result": shown.result,
        "detail": shown.detail,
    }


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
    text = "".join(audit_of(services, run_id).lines)
    return Response(text, media_type="application/jsonl")


@workers.get("/workers", summary="List workers and keepers", dependencies=[ONE_PAGE])
def list_workers(person: Seen, services: Served) -> dict[str, Any]:
    """List the workers with their queues, graphs and state: alive, stopping, hangs or gone."""
    return page_document(read_workers(services), person)


@workers.get("/backlog", summary="Count the nodes of queues")
def backlog(
    _: Seen, services: Served, queue: Annotated[list[str], Query(min_length=1, max_length=100)]
) -> dict[str, int]:
    """Count the nodes of these queues that are ready or run, for autoscalers: both need a worker."""
    counts: dict[str, int] = document(read_backlog(services, queue))
    return counts


@dead.get("", summary="List dead letters, newest first", dependencies=[ONE_PAGE])
def list_letters(person: Seen, services: Served, limit: Limit = PAGE) -> dict[str, Any]:
    """List messages that could not be used and nodes given up; readers see the reason and the message."""
    return page_document(services.dead_letters.all(limit), person)


@dead.get("/{letter_id}", summary="Show one dead letter", name="show")
def show_letter(letter_id: str, person: Seen, services: Served) -> Any:
    """Show a dead letter, to readers with the message as it was received."""
    return seen_document(services.dead_letters.get(letter_id), person)


@dead.post("/{letter_id}:replay", summary="Send a message again, or retry a node")
def replay_letter(letter_id: str, person: Operates, services: Served) -> dict[str, str]:
    """Send a message to its stream again, or retry the run of a node, and delete the letter."""
    letters, by = services.dead_letters, person.principal.key
    return {
        "id": letter_id,
        "sent": replay(services.client.engine, letters, letters.get(letter_id), set(), by),
    }


@dead.delete("/{letter_id}", status_code=204, summary="Delete a dead letter", name="drop")
def drop_letter(letter_id: str, _: Operates, services: Served) -> None:
    """Delete a dead letter permanently."""
    services.dead_letters.get(letter_id)
    services.dead_letters.drop(letter_id)


@sessions.get("", summary="List the sessions of agents")
def list_sessions(
    person: Administers, services: Served, limit: Limit = PAGE, cursor: Cursor = None
) -> dict[str, Any]:
    """List sessions with their numbers of messages; one that all graphs share has no graph.

    There is no index: a page searches the keys of the store, so the pages are in no order, and one may be
    empty although `next` has more.
    """
    page = services.sessions(limit, cursor)
    return page_document(page, person, page.next)


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
