"""`/v1/events`: what happens to the questions and ends of all runs, as a stream."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse

from runner.operations.questions import read_questions
from runner.server import streams
from runner.server.access import SEE, Person
from runner.server.api.documents import PAGE, question_document
from runner.server.services import Services, services
from runner.store.interface import Event

router = APIRouter(prefix="/v1/events", tags=["events"])


@router.get(
    "",
    summary="Follow the questions and ends of all runs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
def events(
    request: Request,
    person: Annotated[Person, Depends(SEE)],
    served: Annotated[Services, Depends(services)],
    graph: Annotated[str | None, Query(description="Of runs of this graph only.")] = None,
    kind: Annotated[list[str] | None, Query(description="Such as run.ended; may be repeated.")] = None,
) -> StreamingResponse:
    """Begin with a `snapshot`, the first open questions; then one event for each notice.

    It is for showing what happens: a client that was away gets a new snapshot, and not what it missed.
    """

    def snapshot() -> Any:
        page = served.client.interrupts(graph=graph, limit=PAGE)
        views = read_questions(served.store, page)
        return {"items": [question_document(view, person) for view in views], "next": page.next}

    def wanted(event: Event) -> bool:
        if kind and event.kind not in kind:
            return False
        if graph is None:
            return True
        run = served.store.peek(str(event.data))
        root = served.store.peek(run.root) if run is not None and run.root != run.run_id else run
        return root is not None and root.graph_id == graph

    lines = streams.ticker_stream(request, served.ticker, snapshot, wanted)
    return streams.stream_response(served.hub.seated(person, lines))
