"""`/v1/schedules`: runs that are started at times."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from runner.schedules.schedule import Schedule
from runner.server.access import Operates, Seen
from runner.server.api.documents import (
    ONE_PAGE,
    RequestBody,
    Time,
    page_document,
    seen_document,
)
from runner.server.services import Served

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])


class NewSchedule(RequestBody):
    """A schedule to make: an interval in seconds, or a cron expression with its time zone."""

    id: str
    graph: str
    task: Any = None
    interval: float | None = None
    cron: str = ""
    timezone: str = "UTC"
    overlap: Literal["skip", "buffer", "all"] = "skip"
    tags: dict[str, str] = Field(default_factory=dict)


class Range(RequestBody):
    """The times of a backfill, both included."""

    first: Time
    last: Time


@router.get("", summary="List schedules", dependencies=[ONE_PAGE])
def list_schedules(person: Seen, services: Served) -> dict[str, Any]:
    """List the schedules by their ids; their tasks are shown to readers only."""
    return page_document(services.schedules.schedules.all(), person)


@router.get("/{schedule_id}", summary="Show a schedule")
def show(schedule_id: str, person: Seen, services: Served) -> Any:
    """Show a schedule with its next time and its last run."""
    return seen_document(services.schedules.schedules.get(schedule_id), person)


@router.post("", status_code=201, summary="Make a schedule")
def add(body: NewSchedule, person: Operates, services: Served) -> Any:
    """Make a schedule; its first run starts at its next time, and its maker asks for each."""
    made = services.schedules.add(Schedule(**body.model_dump(), requester=person.principal.key))
    return seen_document(made, person)


@router.delete("/{schedule_id}", status_code=204, summary="Remove a schedule")
def remove(schedule_id: str, _: Operates, services: Served) -> None:
    """Remove a schedule; its runs go on."""
    services.schedules.remove(schedule_id)


@router.post("/{schedule_id}:pause", summary="Pause a schedule")
def pause(schedule_id: str, person: Operates, services: Served) -> Any:
    """Start nothing until it is resumed."""
    return seen_document(services.schedules.pause(schedule_id), person)


@router.post("/{schedule_id}:resume", summary="Resume a schedule")
def resume(schedule_id: str, person: Operates, services: Served) -> Any:
    """Go on with the next time; those that passed are left out."""
    return seen_document(services.schedules.resume(schedule_id), person)


@router.post("/{schedule_id}:backfill", summary="Start runs for times that have passed")
def backfill(
    schedule_id: str, body: Range, person: Operates, services: Served
) -> dict[str, Any]:
    """Start a run for each time of a range; a time that has had its run gets no other."""
    first, last = (round(moment.timestamp() * 1000) for moment in (body.first, body.last))
    runs = services.schedules.backfill(schedule_id, first, last)
    return page_document(({"run_id": run_id} for run_id in runs), person)
