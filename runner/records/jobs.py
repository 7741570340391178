"""Jobs: one action on many runs, one by one, with a result for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from runner.immutable import immutable

JobAction = Literal["cancel", "retry", "remove"]


@immutable
class Job:
    """A job; `by` is the person who asked for it, `results` has the results of runs it reached."""

    job_id: str
    action: JobAction
    reason: str
    by: str
    created_at: int
    run_ids: Sequence[str]
    results: Mapping[str, str] = field(default_factory=dict)
    ended_at: int = 0


@immutable
class RunOfJob:
    """Outcome of a run, real or planned; `result` is null until the job reaches it."""

    run_id: str
    result: str | None


@immutable
class JobView:
    """A job as people see it; `done` of `total` runs have their result."""

    job_id: str
    action: JobAction
    reason: str
    by: str
    created_at: int
    ended_at: int
    total: int
    done: int
    items: tuple[RunOfJob, ...]


def job_view(job: Job) -> JobView:
    items = tuple(RunOfJob(run_id, job.results.get(run_id)) for run_id in job.run_ids)
    return JobView(
        job.job_id,
        job.action,
        job.reason,
        job.by,
        job.created_at,
        job.ended_at,
        len(job.run_ids),
        len(job.results),
        items,
    )
