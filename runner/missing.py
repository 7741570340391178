"""What is said of a run that a store doesn't have: it never had it, or it has ended and expired. Pure."""

from __future__ import annotations

from typing import TypeVar

from runner.errors import NotFoundError

Found = TypeVar("Found")


def no_such_run(run_id: str) -> NotFoundError:
    """Make the error for a run that is not there."""
    return NotFoundError(f"there is no run {run_id!r} in this store; finished runs expire.")


def known(found: Found | None, run_id: str) -> Found:
    """Return what a store found of a run.

    Raises:
        NotFoundError: it found nothing.
    """
    if found is None:
        raise no_such_run(run_id)
    return found
