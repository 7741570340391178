"""The home page, with running and waiting work and problems; and the files of all pages."""

from __future__ import annotations

import mimetypes
import time
from collections import Counter

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse

from runner.approvals.rules import DAY
from runner.operations.backlog import read_queues
from runner.operations.exports import question_of
from runner.records.listings import InterruptQuery
from runner.server.access import OPEN, Seen
from runner.server.deciding import count_mine
from runner.server.pages.charts import charts_of
from runner.server.pages.rendering import STATIC, page
from runner.server.parameters import QueryText
from runner.server.problems import Problem
from runner.server.services import Served

router = APIRouter(include_in_schema=False)

YEAR = 31_536_000

MOST_ENDING = 50
"""Number up to which the questions that end within a day are counted."""


@router.get("/")
def home(
    request: Request, person: Seen, services: Served, span: QueryText = ""
) -> HTMLResponse:
    """Show counts by state, the oldest question, workers and the doctor's findings."""
    metrics = services.metrics()
    sums = Counter[str]()
    for metric in metrics:
        sums[metric.name] += metric.value  # type: ignore[assignment] # a float
    oldest = services.client.interrupts(limit=1)
    frozen = services.store.frozen()
    day = InterruptQuery(due=round((time.time() + DAY) * 1000), urgent=True)
    ending = services.store.open_interrupts(day, MOST_ENDING)
    return page(
        request,
        "home.html",
        person,
        all=metrics,
        metrics=sums,
        mine=count_mine(services, person, InterruptQuery(urgent=True))[0],
        oldest=question_of(oldest[0]) if oldest else None,
        ending=ending,
        backlog=read_queues(services),
        charts=charts_of(services, span),
        freezes=frozen.values(),
        checks=services.findings(frozen),
    )


@router.get("/static/{name}", dependencies=[Depends(OPEN)])
def static(name: str) -> Response:
    """Return a file, which browsers keep for a year."""
    if name not in STATIC:
        raise Problem(404, f"There is no file {name!r:.80}.")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"cache-control": f"public, max-age={YEAR}, immutable"}
    return Response(STATIC[name], media_type=kind, headers=headers)
