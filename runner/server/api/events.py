"""`/v1/events`: the events of all runs, or of some of them, as a stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from runner.immutable import immutable
from runner.operations.exports import event_of, view_of
from runner.operations.questions import QuestionView, read_questions
from runner.operations.views import RunView, read_run
from runner.records.listings import Page
from runner.records.run import existing
from runner.server import streams
from runner.server.access import Hears, Person
from runner.server.api.documents import PAGE
from runner.server.problems import Problem
from runner.server.services import Served, Services
from runner.store.interface import Event

router = APIRouter(prefix="/v1/events", tags=["events"])

POSITION = r"^(\d{1,18}(-\d{1,18})?(_\d{1,18}(-\d{1,18})?)*)?$"


@router.get(
    "",
    summary="Follow the questions and ends of all runs, or all events of some",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
def events(
    request: Request,
    person: Hears,
    services: Served,
    graph: Annotated[str | None, Query(description="Only of runs of this graph.")] = None,
    kind: Annotated[
        list[str] | None, Query(description="A kind, such as run.ended; may be repeated.")
    ] = None,
    run: Annotated[
        list[str] | None,
        Query(
            max_length=streams.MOST_RUNS,
            description="All events of this run and its nodes; may be repeated.",
        ),
    ] = None,
    after: Annotated[str, Query(pattern=POSITION)] = "",
    last_event_id: Annotated[str, Header(pattern=POSITION)] = "",
) -> StreamingResponse:
    """Stream a `snapshot` of the first open questions, or the runs that `run` names, and then events.

    Without `run` there is one event for each notice. A client that returns with `Last-Event-ID` or `after`
    continues there; if the events it missed are gone, or `run` names other runs, it gets a `reset` and a new
    snapshot. The stream is for display, not for work that must be done for each event.
    """
    after = last_event_id or after
    kinds = {*(kind or ())}
    if run:
        if graph:
            raise Problem(422, "Name runs or a graph, not both: each run is of one graph.")
        return _of_runs(request, services, person, [*dict.fromkeys(run)], kinds, after)

    graph = graph or None

    def snapshot() -> Page[QuestionView]:
        page = services.client.interrupts(graph=graph, limit=PAGE)
        return Page(read_questions(services.store, page), page.next)

    def wanted(run_id: str, event: Event) -> bool:
        if kinds and event.kind not in kinds:
            return False
        if graph is None:
            return True
        run = services.store.peek(run_id)
        root = (
            services.store.peek(run.root) if run is not None and run.root != run.run_id else run
        )
        return root is not None and root.graph_id == graph

    services.ticker.now()  # 503 if the store is away: a stream that has begun can't report it
    lines = streams.ticker_stream(request, person, services.ticker, after, snapshot, wanted)
    return streams.Stream(request, lines, services.hub, person)


@immutable
class RunEvent(Event):
    """An event with its run."""

    run_id: str = ""


def _of_runs(
    request: Request,
    services: Services,
    person: Person,
    run_ids: list[str],
    kinds: set[str],
    after: str,
) -> StreamingResponse:
    store = services.store
    hub = services.hub

    def snapshot() -> tuple[Page[RunView], dict[str, int]]:
        # Read the positions first: a change between the two reads comes again as an event.
        numbers = {run_id: existing(store.read(run_id), run_id).events for run_id in run_ids}
        return Page([read_run(store, run_id) for run_id in run_ids]), numbers

    def show(run_id: str, event: Event) -> RunEvent | None:
        if kinds and event.kind not in kinds:
            return None
        return view_of(RunEvent, event_of(event), run_id=run_id)

    for run_id in run_ids:
        existing(store.peek(run_id), run_id)
    lines = streams.runs_stream(request, person, hub, store, run_ids, after, snapshot, show)
    return streams.Stream(request, lines, hub, person, runs=len(run_ids))
