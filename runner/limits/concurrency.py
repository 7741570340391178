"""Bounds of open runs: whether a start is admitted, waits, or replaces another run.

A run is open from its start to its end, also while it waits for a person. Nested runs are not
counted: they belong to the outermost one. The store keeps two lists of runs per key: the open ones,
and those that wait to begin, in the order in which they were accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from runner.errors import DefinitionError
from runner.immutable import immutable
from runner.limits.limit import TAG
from runner.records.run import FINAL, Status
from runner.records.validation import is_number

WhenFull = Literal["queue", "refuse", "replace", "skip"]

MOST_RUNS, LONGEST_DEBOUNCE = 1_000_000_000, 366 * 86_400
"""The largest bound of open runs; the longest time in seconds that a start may be put off."""


@immutable
class Concurrency:
    """Bound of `at_most` open runs of a graph, or of a graph for each value of a tag (`by="tag:account"`).

    Runs without the tag share one key. A start beyond the bound is accepted and waits ("queue"), is
    refused ("refuse"), cancels the open run and begins after its end ("replace"), or returns the
    open run ("skip"). With `while_waiting=False` a run that only waits for people does not count;
    it continues with its answer at once, and counts again.
    """

    at_most: int
    by: str = "graph"
    when_full: WhenFull = "queue"
    while_waiting: bool = True

    def __post_init__(self) -> None:
        """Refuse invalid values at the declaration."""
        _check_count("Concurrency: at_most", self.at_most)
        _check_by("Concurrency", self.by)
        if self.when_full not in get_args(WhenFull):
            ways = ", ".join(get_args(WhenFull))
            raise DefinitionError(
                f"Concurrency: when_full is one of {ways}, not {self.when_full!r}."
            )
        if not isinstance(self.while_waiting, bool):
            raise DefinitionError(
                f"Concurrency: while_waiting is True or False, not {self.while_waiting!r}."
            )

    def counts(self, status: Status) -> bool:
        """Return whether a run with this status takes one of its key's places."""
        return status is Status.EXECUTING or (self.while_waiting and status not in FINAL)

    def refusal(self, label: str, count: int, run_id: str) -> str:
        """Say why a run of a key may not begin; `run_id` is the run that has been open the longest."""
        return (
            f"{label} has {count:,} open run{'s' * (count != 1)}, {run_id} first, and its graph allows "
            f"{self.at_most:,}; nothing was started. Start again when it has ended."
        )


@immutable
class Debounce:
    """Delay of a run of a graph, or of one value of a tag: it begins `seconds` after the last of its starts.

    Each start until then gets the same run, and replaces its task and invocation state. It begins
    at most `at_most` seconds after the first start, by default ten times `seconds`.
    """

    seconds: float
    by: str = "graph"
    at_most: float | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values at the declaration."""
        _check_by("Debounce", self.by)
        for number in (self.seconds, self.seconds if self.at_most is None else self.at_most):
            if not (is_number(number) and 0 < number <= LONGEST_DEBOUNCE):
                raise DefinitionError(
                    "Debounce: seconds and at_most are numbers above 0, up to a year, not "
                    f"{number!r:.40}."
                )

    def due(self, created_at: int, now: int) -> int:
        """Return when a run that was just started again begins, in ms."""
        longest = 10 * self.seconds if self.at_most is None else self.at_most
        return min(now + round(self.seconds * 1000), created_at + round(longest * 1000))


@immutable
class RunOfKey:
    """A run that waits since its start (ms), or is open since it began; `status` is None if it is gone."""

    run_id: str
    since: int
    status: Status | None


@immutable
class QueuedKey:
    """A key of a graph's concurrency: how many runs wait, since when (ms), and for which open ones.

    `key` is "account=7", or "graph" if all runs of the graph share one. Both lists name only the
    first runs.
    """

    graph: str
    key: str
    runs: int
    since: int
    waiting: list[RunOfKey]
    open: list[RunOfKey]


def label(by: str, tag: Callable[[str], str]) -> str:
    """Name the key of a run for people: `account=7`."""
    name = by.removeprefix(TAG)
    return by if by == "graph" else f"{name}={tag(name)}"


def key_of(graph_id: str, by: str, tag: Callable[[str], str]) -> str:
    """Name the key of a run by its graph and tags."""
    return of_graph(graph_id, label(by, tag))


def of_graph(graph_id: str, name: str) -> str:
    """Prefix a name with its graph so that no other pair gets the same name: graph names have no "//"."""
    return f"{graph_id.replace(':', '//')}:{name}"


@immutable
class Admission:
    """The rules of a graph for the starts of its runs; `max_open_runs` is 0 without a bound."""

    max_open_runs: int = 0
    concurrency: Concurrency | None = None
    debounce: Debounce | None = None

    @property
    def by(self) -> str:
        """The key that makes starts depend on each other; "" if they don't."""
        rule = self.concurrency or self.debounce
        return rule.by if rule else ""

    @property
    def returns_open_runs(self) -> bool:
        """Return whether a start may get a run that another start began."""
        skips = self.concurrency is not None and self.concurrency.when_full == "skip"
        return skips or self.debounce is not None

    @classmethod
    def load(cls, values: Sequence[Any]) -> Admission:
        """Read the values written by `dataclasses.astuple`."""
        bound, concurrency, debounce = values
        return cls(
            bound,
            Concurrency(*concurrency) if concurrency else None,
            Debounce(*debounce) if debounce else None,
        )


def admission(
    graph_id: str,
    max_open_runs: int | None,
    concurrency: Concurrency | None,
    debounce: Debounce | None = None,
) -> Admission | None:
    """Check the rules of a graph for the starts of its runs; return None if it has none.

    Raises:
        DefinitionError: a value can't be used.
    """
    if max_open_runs is not None:
        _check_count(f"graph {graph_id!r}: max_open_runs", max_open_runs)
    if concurrency is not None and not isinstance(concurrency, Concurrency):
        raise DefinitionError(
            f"graph {graph_id!r}: concurrency is a Concurrency, not {concurrency!r}."
        )
    if debounce is not None and not isinstance(debounce, Debounce):
        raise DefinitionError(f"graph {graph_id!r}: debounce is a Debounce, not {debounce!r}.")
    if (
        concurrency
        and debounce
        and (concurrency.by, "queue") != (debounce.by, concurrency.when_full)
    ):
        raise DefinitionError(
            f"graph {graph_id!r}: beside a debounce, concurrency is by the same key and queues."
        )
    rules = Admission(max_open_runs or 0, concurrency, debounce)
    return None if rules == Admission() else rules


def _check_by(name: str, by: str) -> None:
    if by != "graph" and not (isinstance(by, str) and by.startswith(TAG) and by != TAG):
        raise DefinitionError(f"{name}: by is 'graph' or 'tag:<name>', not {by!r}.")


def _check_count(name: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_RUNS:
        raise DefinitionError(
            f"{name} is a whole number from 1 to {MOST_RUNS:,}, not {count!r:.40}."
        )


def tag_of(tags: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that looks a tag up; a missing tag is ""."""
    return lambda name: tags.get(name, "")


def share(bound: int, partition: int, partitions: int) -> int:
    """Return a partition's share of a bound; the shares of all partitions add up to it."""
    return bound // partitions + (partition < bound % partitions)


def bound_refusal(graph_id: str, open_runs: int, bound: int) -> str:
    """Say why a start is refused; `graph_id` is "" for the bound of the namespace."""
    owner, source = (
        (f"graph {graph_id!r}", "its max_open_runs")
        if graph_id
        else ("the namespace", "RUNNER_MAX_OPEN_RUNS")
    )
    return (
        f"{owner} has {open_runs:,} open run{'s' * (open_runs != 1)}, and {source} allows {bound:,} here; "
        "nothing was started. Start again when some of them have ended, or raise the bound."
    )
