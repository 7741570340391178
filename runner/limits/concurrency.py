"""Bounds of open runs: whether a start is admitted, waits, or replaces another run.

A run is open from its start to its end, also while it waits for a person. Runs inside others are not counted:
they belong to the outermost one. The runs of a key are in two lists of the store: those that are open, and
those that wait to begin, in the order in which they were accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from runner.errors import DefinitionError
from runner.limits.limit import TAG
from runner.records.run import FINAL, Status

WhenFull = Literal["queue", "refuse", "replace", "skip"]


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `at_most` open runs of a graph, or of a graph for each value of a tag (`by="tag:account"`).

    Runs without the tag count as one value. A start that finds no room is accepted and waits ("queue"), is
    refused ("refuse"), cancels the open run and begins when that has ended ("replace"), or returns the open
    run ("skip"). With `while_waiting=False` a run that only waits for people does not count; it continues
    with its answer at once, and counts again.
    """

    at_most: int
    by: str = "graph"
    when_full: WhenFull = "queue"
    while_waiting: bool = True

    def __post_init__(self) -> None:
        """Refuse invalid values where they are written."""
        _check_count("Concurrency: at_most", self.at_most)
        if self.by != "graph" and not (self.by.startswith(TAG) and self.by != TAG):
            raise DefinitionError(f"Concurrency: by is 'graph' or 'tag:<name>', not {self.by!r}.")
        if self.when_full not in get_args(WhenFull):
            ways = ", ".join(get_args(WhenFull))
            raise DefinitionError(
                f"Concurrency: when_full is one of {ways}, not {self.when_full!r}."
            )

    def key(self, graph_id: str, tag: Callable[[str], str]) -> str:
        """Name the key of a run by its tags; no graph has "//" in its name."""
        return f"{graph_id.replace(':', '//')}:{self.label(tag)}"

    def counts(self, status: Status) -> bool:
        """Return whether a run of a status takes one of the places of its key."""
        return status is Status.EXECUTING or (self.while_waiting and status not in FINAL)

    def refusal(self, label: str, count: int, run_id: str) -> str:
        """Say why a run of a key may not begin; `run_id` is the one that has been open for longest."""
        return (
            f"{label} has {count:,} open run{'s' * (count != 1)}, {run_id} first, and its graph allows "
            f"{self.at_most:,}; nothing was started. Start again when it has ended."
        )

    def label(self, tag: Callable[[str], str]) -> str:
        """Name the key for people: `account=7`."""
        name = self.by.removeprefix(TAG)
        return self.by if self.by == "graph" else f"{name}={tag(name)}"


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of a graph for the starts of its runs; `max_open_runs` is 0 where there is no bound."""

    max_open_runs: int = 0
    concurrency: Concurrency | None = None

    @property
    def returns_open_runs(self) -> bool:
        """Return whether a start may get a run that another start began."""
        return self.concurrency is not None and self.concurrency.when_full == "skip"

    @classmethod
    def load(cls, values: Sequence[Any]) -> Admission:
        """Read what `dataclasses.astuple` wrote."""
        bound, concurrency = values
        return cls(bound, Concurrency(*concurrency) if concurrency else None)


def admission(
    graph_id: str, max_open_runs: int | None, concurrency: Concurrency | None
) -> Admission | None:
    """Check the rules of a graph for the starts of its runs; None where there are none.

    Raises:
        DefinitionError: a value can't be used.
    """
    if max_open_runs is not None:
        _check_count(f"graph {graph_id!r}: max_open_runs", max_open_runs)
    if concurrency is not None and not isinstance(concurrency, Concurrency):
        raise DefinitionError(
            f"graph {graph_id!r}: concurrency is a Concurrency, not {concurrency!r}."
        )
    rules = Admission(max_open_runs or 0, concurrency)
    return None if rules == Admission() else rules


def _check_count(name: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise DefinitionError(f"{name} is a whole number above 0, not {count!r}.")


def tag_of(tags: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that looks a tag up; one that is missing is empty."""
    return lambda name: tags.get(name, "")


def share(bound: int, partition: int, partitions: int) -> int:
    """Return a partition's share of a bound: the shares of all of them add up to it."""
    return bound // partitions + (partition < bound % partitions)


def bound_refusal(graph_id: str, open_runs: int, bound: int) -> str:
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
