"""`/v1/graphs`: the graphs that workers have published, and their drawings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from runner.authoring.drawing import draw
from runner.errors import NotFoundError
from runner.server.access import Seen
from runner.server.api.documents import ONE_PAGE
from runner.server.services import Served

router = APIRouter(prefix="/v1/graphs", tags=["graphs"])


@router.get("", summary="List the graphs in the store", dependencies=[ONE_PAGE])
def list_graphs(_: Seen, served: Served) -> dict[str, Any]:
    """List the graphs that workers have published; those inside others are not listed."""
    graphs = served.graphs().items()
    return {"items": [{"name": name, "fingerprint": version} for name, version in graphs], "next": None}


@router.get("/{name}.svg", summary="Draw a graph", response_class=Response)
def drawing(name: str, _: Seen, served: Served) -> Response:
    """Draw a graph of RUNNER_GRAPHS as SVG."""
    plan = served.plan(name)
    if plan is None:
        raise NotFoundError(f"this server lacks the graph {name!r}; name its module in RUNNER_GRAPHS.")
    return Response(draw(plan.definition, "svg"), media_type="image/svg+xml")
