"""`/v1/graphs`: the graphs that workers have published, and their drawings."""

from __future__ import annotations

from fastapi import Response

from runner.authoring.drawing import draw
from runner.errors import NotFoundError
from runner.immutable import immutable
from runner.records.listings import Page
from runner.server.access import Known, Seen
from runner.server.answers import record_router
from runner.server.api.documents import ONE_PAGE
from runner.server.services import Served

router = record_router("/v1/graphs", "graphs")


@immutable
class PublishedGraph:
    """A graph that workers have published, and the fingerprint of its shape."""

    name: str
    fingerprint: str


@router.get("", summary="List the graphs in the store", dependencies=[ONE_PAGE])
def list_graphs(person: Known, services: Served) -> Page[PublishedGraph]:
    """List the graphs that workers have published; those inside others are not listed."""
    return Page(
        [
            PublishedGraph(name, fingerprint)
            for name, fingerprint in services.graphs().items()
            if person.within(name).may("see")
        ]
    )


@router.get(
    "/{graph}.svg",
    summary="Draw a graph",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {}}}},
)
def drawing(graph: str, _: Seen, services: Served) -> Response:
    """Draw a graph of RUNNER_GRAPHS as SVG."""
    plan = services.plan(graph)
    if plan is None:
        raise NotFoundError(
            f"this server lacks the graph {graph!r:.80}; name its module in RUNNER_GRAPHS."
        )
    return Response(draw(plan.definition, "svg"), media_type="image/svg+xml")
