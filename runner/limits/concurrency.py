"""Bounds of open runs: whether a start is admitted.

A run is open from its start to its end, also while it waits for a person. Runs inside others are not counted:
they belong to the outermost one.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of a graph for the starts of its runs; `max_open_runs` is 0 where there is no bound."""

    max_open_runs: int = 0


def admission(graph_id: str, *, max_open_runs: int | None = None) -> Admission | None:
    """Check what a graph declares about its starts; None where that is nothing.

    Raises:
        DefinitionError: a value can't be used.
    """
    if max_open_runs is None:
        return None
    if isinstance(max_open_runs, bool) or not isinstance(max_open_runs, int) or max_open_runs < 1:
        raise DefinitionError(
            f"graph {graph_id!r}: max_open_runs is a whole number above 0, not {max_open_runs!r}."
        )
    return Admission(max_open_runs)


def share(bound: int, partition: int, partitions: int) -> int:
    """Return a partition's share of a bound: the shares of all of them add up to it."""
    return bound // partitions + (partition < bound % partitions)


def refusal(graph_id: str, open_runs: int, bound: int) -> str:
    """Say why a start is refused; `graph_id` is "" where the bound is that of the namespace."""
    owner, source = (
        (f"graph {graph_id!r}", "its max_open_runs")
        if graph_id
        else ("the namespace", "RUNNER_MAX_OPEN_RUNS")
    )
    return (
        f"{owner} has {open_runs:,} open run{'s' * (open_runs != 1)}, and {source} allows {bound:,} here; "
        "nothing was started. Start again when some of them have ended, or raise the bound."
    )
