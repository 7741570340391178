"""Removing a run that has ended, before its retention is over."""

from __future__ import annotations

from runner.errors import ConflictError, UsageError
from runner.records.run import no_such_run
from runner.store.interface import Store


def remove(store: Store, run_id: str) -> None:
    """Remove a run that has ended, and the runs nested in it.

    Raises:
        NotFoundError: there is no such run. UsageError: it is nested in another run.
        ConflictError: it has not ended, or its `on_end` task is still to be called.
    """
    word = store.remove(run_id).word
    if word == "unknown":
        raise no_such_run(run_id)
    if word == "inside":
        raise UsageError(f"run {run_id} is inside another one; nothing was removed. Remove the outermost.")
    if word == "goes_on":
        raise ConflictError(
            f"run {run_id} has not ended, or its on_end task was not called yet; nothing was removed. Cancel "
            "it first, or try again later."
        )
