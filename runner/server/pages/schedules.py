"""The page of schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from runner.errors import CorruptDocument
from runner.records import codec
from runner.schedules.schedule import Schedule, in_words
from runner.schedules.scheduler import trouble
from runner.server.access import Operates, Seen
from runner.server.pages.rendering import back, page
from runner.server.problems import Problem
from runner.server.services import Served

router = APIRouter(include_in_schema=False)


@router.get("/schedules")
def show(request: Request, person: Seen, services: Served) -> HTMLResponse:
    """Show the schedules, and a form for a new one."""
    schedules = services.schedules.schedules
    return page(
        request,
        "schedules.html",
        person,
        schedules=[
            (schedule, in_words(schedule), *trouble(services.store, schedule, schedules.now()))
            for schedule in schedules.all()
        ],
        graphs=list(services.graphs()),
    )


@router.post("/schedules")
def add(
    request: Request,
    person: Operates,
    services: Served,
    name: Annotated[str, Form()],
    graph: Annotated[str, Form()],
    cron: Annotated[str, Form()] = "",
    interval: Annotated[str, Form()] = "",
    timezone: Annotated[str, Form()] = "UTC",
    overlap: Annotated[str, Form()] = "skip",
    task: Annotated[str, Form()] = "null",
) -> Response:
    """Make a schedule."""
    try:
        value, seconds = codec.load_json(task), float(interval) if interval else None
    except (CorruptDocument, ValueError) as error:
        raise Problem(
            422, f"The task is JSON, the interval a number of seconds: {error}."
        ) from error
    schedule = Schedule(
        name,
        graph,
        value,
        seconds,
        cron,
        timezone,
        overlap,  # type: ignore[arg-type] # checked by add
        requester=person.principal.key,
    )
    services.schedules.add(schedule)
    return back(request, "/schedules")


@router.post("/schedules/{schedule_id}/backfill")
def backfill(
    request: Request,
    schedule_id: str,
    _: Operates,
    services: Served,
    first: Annotated[datetime, Form()],
    last: Annotated[datetime, Form()],
) -> Response:
    """Start a run for each time of a range in UTC, and show them."""
    span = (round(moment.replace(tzinfo=UTC).timestamp() * 1000) for moment in (first, last))
    services.schedules.backfill(schedule_id, *span)
    return back(request, f"/runs?tag={quote(f'schedule={schedule_id}')}")


@router.post("/schedules/{schedule_id}/{action}")
def change(
    request: Request, schedule_id: str, action: str, _: Operates, services: Served
) -> Response:
    """Pause, resume or remove a schedule."""
    actions = {
        name: getattr(services.schedules, name) for name in ("pause", "resume", "remove")
    }
    if action not in actions:
        raise Problem(404, f"There is no action {action!r:.40}.")
    actions[action](schedule_id)
    return back(request, "/schedules")
