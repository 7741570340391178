"""One action on many runs: each run is handled separately, and each gets a result."""

from __future__ import annotations

from collections.abc import Sequence

from runner.errors import NotFoundError, RunnerError, StoreError
from runner.execution.engine import Engine
from runner.operations import recovery
from runner.records.jobs import Job, JobAction
from runner.store.requests import new_nonce
from runner.store.shared import Jobs

SLICE = 100
"""Runs that a sweep handles before it goes on with other due work."""


def begin(jobs: Jobs, action: JobAction, reason: str, by: str, run_ids: Sequence[str]) -> Job:
    """Store a job for `carry_on`; if no process calls that, sweeps do."""
    job = Job(new_nonce(), action, reason, by, jobs.now(), list(run_ids))
    jobs.add(job)
    return job


def carry_on(engine: Engine, jobs: Jobs, job_id: str, most: int | None = None) -> None:
    """Handle the runs of a job that have no result yet, at most `most` of them.

    If two processes do this, both may handle a run; its first result is kept.
    """
    try:
        job = jobs.get(job_id)
    except NotFoundError:
        jobs.forget(job_id)
        return
    missing = [run_id for run_id in job.run_ids if run_id not in job.results]
    for run_id in missing[:most]:
        jobs.record(job_id, run_id, _result(engine, job, run_id))
    if most is not None and len(missing) > most:
        jobs.leave(job_id)
    else:
        jobs.end(job_id)


def _result(engine: Engine, job: Job, run_id: str) -> str:
    try:
        if job.action == "cancel":
            is_cancelled = engine.cancel(run_id, job.reason) == "cancelled"
            return "cancelled" if is_cancelled else "had ended, or was stopping"
        if job.action == "retry":
            recovery.retry(engine, run_id, None, job.by)
            return "retried"
        recovery.remove(engine.store, run_id)
    except StoreError:
        raise
    except RunnerError as error:
        return str(error)
    return "removed"
