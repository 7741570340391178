"""`/v1/workers`: the processes that run nodes; `/v1/backlog`: how many nodes of some queues want them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from runner.operations.views import read_backlog, read_workers
from runner.records.json_form import document
from runner.server.access import Seen
from runner.server.api.documents import ONE_PAGE, page_document
from runner.server.services import Served

router = APIRouter(prefix="/v1", tags=["workers"])


@router.get("/workers", summary="List workers and keepers", dependencies=[ONE_PAGE])
def list_workers(person: Seen, services: Served) -> dict[str, Any]:
    """List the workers with their queues, graphs and state: alive, stopping, hangs or gone."""
    return page_document(read_workers(services), person)


@router.get("/backlog", summary="Count the nodes of queues")
def backlog(
    _: Seen, services: Served, queue: Annotated[list[str], Query(min_length=1, max_length=100)]
) -> dict[str, int]:
    """Count the nodes of these queues that are ready or run, for autoscalers: both need a worker."""
    counts: dict[str, int] = document(read_backlog(services, queue))
    return counts
