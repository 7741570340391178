"""The home page: what runs, what waits, and what is wrong."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from runner.cli.doctor import PASS, examine, read_facts
from runner.operations.exports import question_of
from runner.operations.views import read_workers
from runner.server.access import SEE, Person
from runner.server.pages.rendering import page
from runner.server.services import Services, services
from runner.store.redis.server_info import read_metrics

router = APIRouter(include_in_schema=False)


@router.get("/")
def home(
    request: Request, person: Annotated[Person, Depends(SEE)], served: Annotated[Services, Depends(services)]
) -> HTMLResponse:
    """Show counts by state, the oldest question, workers and the doctor's findings."""
    settings = served.settings
    numbers = read_metrics(settings.redis_url, settings.namespace, settings.partitions)
    runs = {number.labels["status"]: int(number.value) for number in numbers if number.name == "runner_runs"}
    opened = sum(int(number.value) for number in numbers if number.name == "runner_questions_open")
    oldest = served.client.interrupts(limit=1)
    return page(
        request,
        "home.html",
        person,
        runs=runs,
        open=opened,
        oldest=question_of(oldest[0]) if oldest else None,
        workers=[worker for worker in read_workers(settings) if worker.state == "alive"],
        freezes=list(served.store.frozen().values()),
        letters=served.dead_letters.count(),
        checks=[check for check in examine(read_facts(settings)) if check.result != PASS],
    )
