"""`/v1/workers`: the processes that run nodes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from runner.operations.views import read_workers
from runner.records.json_form import document
from runner.server.access import Seen
from runner.server.api.documents import ONE_PAGE
from runner.server.services import Served

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("", summary="List workers and keepers", dependencies=[ONE_PAGE])
def list_workers(_: Seen, served: Served) -> dict[str, Any]:
    """List the workers with their queues, graphs and state: alive, stopping, hangs or gone."""
    return {"items": document(read_workers(served.settings)), "next": None}
