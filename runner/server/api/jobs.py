"""`/v1/runs:batch` and `/v1/jobs`: one action on many runs, and its progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence

from fastapi import BackgroundTasks, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, StrictBool

from runner.errors import StoreError
from runner.immutable import immutable
from runner.operations.jobs import begin, carry_on
from runner.records import validation
from runner.records.jobs import JobAction, JobView, RunOfJob, job_view
from runner.records.listings import Page
from runner.records.run import Status
from runner.server import streams
from runner.server.access import Operates, Person, Starts
from runner.server.answers import record_router
from runner.server.api.documents import RequestBody
from runner.server.deciding import cancelled_by
from runner.server.problems import Problem, prefix
from runner.server.services import Served, Services

log = logging.getLogger(__name__)

router = record_router("/v1", "runs")


MOST_RUNS = 1_000
"""Maximum runs of one batch; if more match, a client sends another batch."""


class BatchFilter(RequestBody):
    """The runs of a batch: those that match all of these fields, or those that `run_ids` names."""

    run_ids: list[str] | None = Field(default=None, max_length=MOST_RUNS)
    status: Status | None = None
    graph: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)


class Batch(RequestBody):
    """An action on many runs."""

    action: JobAction
    filter: BatchFilter
    reason: str = ""
    dry_run: StrictBool = True


@immutable
class BatchPlan(Page[RunOfJob]):
    """The runs that an action would change; `more` is true if more match than one batch takes."""

    items: Sequence[RunOfJob]
    dry_run: bool = True
    total: int = 0
    more: bool = False


@immutable
class BegunBatch:
    """The job that does an action; `more` is true if more runs match than one batch takes."""

    job_id: str
    dry_run: bool
    total: int
    more: bool


@router.post(
    "/runs:batch",
    operation_id="jobs_batch",
    summary="Cancel, retry or remove many runs",
    responses={202: {"description": "The job", "model": BegunBatch}},
)
def batch(
    request: Request,
    body: Batch,
    person: Starts,
    services: Served,
    response: Response,
    background: BackgroundTasks,
) -> BatchPlan | BegunBatch:
    """List the matching runs; with `dry_run` false, begin a job that does the action, run by run (202).

    `more` is true if more runs match than one batch takes: repeat it when the job has ended. This process
    does the job; if it dies, a worker carries on.
    """
    ids, has_more = _matching(services, body.filter)
    if body.dry_run:
        items = [RunOfJob(run_id, f"would {body.action}") for run_id in ids]
        return BatchPlan(items, total=len(ids), more=has_more)
    actor = person.principal.name or person.principal.sub
    reason = cancelled_by(person, body.reason) if body.action == "cancel" else body.reason
    reason = validation.reason(reason or f"{body.action} by {actor}")
    job = begin(services.jobs, body.action, reason, person.principal.key, ids)
    background.add_task(_carry_on, services, job.job_id)
    response.status_code = 202
    response.headers["location"] = f"{prefix(request)}/v1/jobs/{job.job_id}"
    return BegunBatch(job.job_id, dry_run=False, total=len(ids), more=has_more)


def _matching(services: Services, query: BatchFilter) -> tuple[list[str], bool]:
    if query.run_ids is not None:
        return list(dict.fromkeys(query.run_ids)), False
    if query.status is None and query.graph is None and not query.tags:
        raise Problem(422, "A batch needs a filter: run_ids, status, graph or tags.")
    page = services.client.runs(
        query.status, graph=query.graph, tags=query.tags, limit=MOST_RUNS
    )
    return [run.run_id for run in page if not run.parent], page.next is not None


def _carry_on(services: Services, job_id: str) -> None:
    try:
        carry_on(services.client.engine, services.jobs, job_id)
    except StoreError as error:
        log.warning("job.left: %s A worker carries on with job %s.", error, job_id)


@router.get(
    "/jobs/{job_id}",
    operation_id="jobs_show",
    summary="Show a job, or follow it",
    responses={200: {"content": {"text/event-stream": {}, "application/json": {}}}},
)
async def show(
    request: Request, job_id: str, person: Operates, services: Served
) -> JobView | streams.Stream:
    """Show a job with the result for each run.

    With `Accept: text/event-stream` it is a stream: a `snapshot`, `progress` with how many runs are `done`,
    and `ended` with the whole job. A job is kept for seven days.
    """
    job = await run_in_threadpool(services.jobs.get, job_id)
    if "text/event-stream" in request.headers.get("accept", ""):
        return streams.Stream(
            request, _progress(request, person, services, job_id), services.hub, person
        )
    return job_view(job)


async def _progress(
    request: Request, person: Person, services: Services, job_id: str
) -> AsyncGenerator[str]:
    yield streams.RETRY
    done_count = -1
    kind = "snapshot"
    idle = 0.0
    while not await request.is_disconnected():
        job = await run_in_threadpool(services.jobs.get, job_id)
        view = job_view(job)
        if kind == "snapshot":
            yield streams.frame(person, kind, view)
        elif view.done != done_count and not job.ended_at:
            yield streams.frame(person, kind, {"done": view.done, "total": view.total})
            idle = 0.0
        if job.ended_at:
            yield streams.frame(person, "ended", view)
            return
        done_count = view.done
        kind = "progress"
        await asyncio.sleep(streams.INTERVAL)
        idle += streams.INTERVAL
        if idle >= streams.COMMENT:
            yield ": nothing new\n\n"
            idle = 0.0
