"""`/v1/events`: what happens to the questions and ends of all runs, as a stream."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from runner.operations.questions import read_questions
from runner.server import streams
from runner.server.access import Lists
from runner.server.api.documents import PAGE, page_document
from runner.server.services import Served
from runner.store.interface import Event

router = APIRouter(prefix="/v1/events", tags=["events"])

POSITION = r"^(\d{1,18}-\d{1,18}(_\d{1,18}-\d{1,18})*)?$"


@router.get(
    "",
    summary="Follow the questions and ends of all runs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
def events(
    request: Request,
    person: Lists,
    services: Served,
    graph: Annotated[str | None, Query(description="Of runs of this graph only.")] = None,
    kind: Annotated[
        list[str] | None, Query(description="Such as run.ended; may be repeated.")
    ] = None,
    after: Annotated[str, Query(pattern=POSITION)] = "",
    last_event_id: Annotated[str, Header(pattern=POSITION)] = "",
) -> StreamingResponse:
    """Begin with a `snapshot`, the first open questions; then one event for each notice.

    A client that comes back with `Last-Event-ID` or `after` goes on; where what it missed is gone, it gets a
    `reset` and a new snapshot. It is for showing what happens, not for work that must be done for each.
    """

    def snapshot() -> Any:
        page = services.client.interrupts(graph=graph, limit=PAGE)
        return page_document(read_questions(services.store, page), person, page.next)

    def wanted(event: Event) -> bool:
        if kind and event.kind not in kind:
            return False
        if graph is None:
            return True
        run = services.store.peek(str(event.data))
        root = services.store.peek(run.root) if run is not None and run.root != run.run_id else run
        return root is not None and root.graph_id == graph

    services.ticker.now()  # 503 where the store is away: a stream that has begun can't say so
    lines = streams.ticker_stream(
        request, services.ticker, last_event_id or after, snapshot, wanted
    )
    return streams.Stream(request, lines, services.hub, person)
