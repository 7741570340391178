"""`/healthz`, `/readyz`, `/metrics` and `/openapi.json`: for probes, Prometheus and other programs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse

from runner.errors import StoreError
from runner.operations.metrics import prometheus
from runner.server.access import OPEN, SEE
from runner.server.problems import Problem, prefix
from runner.server.services import Served

router = APIRouter(tags=["operations"])


@router.head("/healthz", dependencies=[Depends(OPEN)], include_in_schema=False)
@router.get("/healthz", dependencies=[Depends(OPEN)], summary="Whether this process answers")
async def healthy() -> dict[str, str]:
    """Answer as long as the process lives, whatever else is down."""
    # Without a thread: those that wait for the store may be all there are.
    return {"status": "ok"}


@router.get("/readyz", dependencies=[Depends(OPEN)], summary="Whether the store can be reached")
def ready(services: Served) -> dict[str, str]:
    """Answer 503 while the store can't be reached."""
    try:
        services.workers.now()  # open to all callers, so it costs the store one short command
    except StoreError as error:
        raise Problem(
            503, "The store can't be reached.", headers={"Retry-After": "5"}
        ) from error
    return {"status": "ok"}


@router.get(
    "/metrics", dependencies=[Depends(SEE)], response_class=PlainTextResponse, summary="Metrics"
)
def metrics(services: Served) -> PlainTextResponse:
    """Metrics of runs, questions and workers, in the text format of Prometheus."""
    return PlainTextResponse(
        prometheus(services.metrics()), media_type="text/plain; version=0.0.4"
    )


@router.get(
    "/openapi.json",
    dependencies=[Depends(OPEN)],
    summary="This document",
    include_in_schema=False,
)
def openapi(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document."""
    document: dict[str, Any] = request.app.openapi()
    base = prefix(request)
    return {**document, "servers": [{"url": base or "/"}]}
