"""The declaration of a limit of concurrency or rate, and the form in which scheduling uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from runner.errors import DataMismatch, DefinitionError, UsageError
from runner.immutable import immutable
from runner.limits.setting import DeclaredNumbers, LimitSetting
from runner.records import codec
from runner.records.codec import JSON, LazyValue
from runner.records.validation import is_number

TAG, INPUT = "tag:", "input:"

MOST_KEY_BYTES = 200
"""Maximum size in bytes of a tag's or input's value by which runs or executions are counted."""

MOST_NAME, MOST_SLOTS = 200, 1_000_000

FASTEST, SLOWEST = 1000.0, 1 / (366 * 86_400)
"""Bounds of a rate in executions per second: times are whole milliseconds, and the slowest is one a year."""


@immutable
class Limit:
    """Limit of `concurrency` executions at a time, or of `rate` executions begun per `per` seconds, or both.

    Nodes with a limit of the same name share it: with `by="all"` all of them, with "graph" or
    "node" only the nodes of one graph or only one node, with "tag:<name>" the nodes of runs with
    the same value of that tag (at most 200 bytes; runs without it count as one). A nested run has
    the outermost run's tags. With "input:<path>", as "input:customer.id", executions count together
    if they have the same value in their run's task, or in their item of a map: a text of at most
    200 bytes or a number. A node without that value fails.
    """

    name: str
    concurrency: int | None = None
    rate: float | None = None
    per: float = 1.0
    by: str = "all"

    def __post_init__(self) -> None:
        """Refuse invalid values at the declaration."""
        name = self.name if isinstance(self.name, str) else ""
        if not (name.isprintable() and name.strip() and len(name) <= MOST_NAME):
            raise DefinitionError(
                f"a limit needs a name of at most {MOST_NAME} printable characters, not {self.name!r:.80}."
            )
        if ":" in self.name:
            raise DefinitionError(f"the name of a limit has no colon: {self.name!r}.")
        by = str(self.by)
        path = by.removeprefix(INPUT).split(".") if by.startswith(INPUT) else ()
        has_key = all(path) if path else by.startswith(TAG) and by != TAG
        if by not in ("all", "graph", "node") and not has_key:
            raise DefinitionError(
                f"limit {self.name!r}: by is 'all', 'graph', 'node', 'tag:<name>' or 'input:<path>' "
                f"(names with dots between them), not {self.by!r}."
            )
        if self.concurrency is None and self.rate is None:
            raise DefinitionError(
                f"limit {self.name!r} limits nothing: give it a concurrency or a rate."
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        count = self.concurrency
        if count is not None and (
            isinstance(count, bool)
            or not isinstance(count, int)
            or not 1 <= count <= MOST_SLOTS
        ):
            raise DefinitionError(
                f"limit {self.name!r}: concurrency is a whole number from 1 to {MOST_SLOTS:,}, "
                f"not {count!r:.40}."
            )
        rate = FASTEST if self.rate is None else self.rate
        if not (
            _is_positive(rate)
            and _is_positive(self.per)
            and SLOWEST <= rate / self.per <= FASTEST
        ):
            raise DefinitionError(
                f"limit {self.name!r}: rate and per are numbers above 0 that come to at most {FASTEST:g} "
                f"executions per second and at least one per year, not {self.rate!r} per {self.per!r} s."
            )

    def shape(self, graph_id: str, node: str) -> LimitShape:
        """Return the form of this limit that scheduling uses for one node."""
        keys = {"all": "", "graph": f":graph:{graph_id}", "node": f":node:{graph_id}/{node}"}
        interval = 0 if self.rate is None else math.ceil(self.per * 1000 / self.rate)
        by = "" if self.by in keys else self.by
        return LimitShape(
            self.name + keys.get(self.by, f":{by}:"), by, self.concurrency or 0, interval
        )

    def check_input(self, task: JSON | LazyValue) -> None:
        """Refuse a task that lacks the value by which the limit counts.

        Raises:
            DataMismatch: it is missing, too long, or neither text nor a number.
        """
        if not self.by.startswith(INPUT):
            return
        path = self.by.removeprefix(INPUT)
        problem = _value_at(task, path)[1]
        if problem:
            raise DataMismatch(
                f"limit {self.name!r} counts by {path!r} of the input, and {problem}. The node was not run "
                "and is not tried again; start the run with such a value, or change the limit."
            )


def check_tags(names: Iterable[str], tag: Callable[[str], str]) -> None:
    """Refuse a run's tags that are too long to count the run or its nodes by.

    Raises:
        UsageError: a value is too long.
    """
    for name in names:
        size = len(tag(name).encode())
        if size > MOST_KEY_BYTES:
            raise UsageError(
                f"the graph counts nodes or runs by the tag {name!r:.80}, whose value has {size:,} bytes, "
                f"over {MOST_KEY_BYTES}; nothing was started."
            )


def input_key(task: JSON | LazyValue, path: str) -> str | None:
    """Return the value of a task by which a limit counts; None if it has no usable value."""
    key, problem = _value_at(task, path)
    return None if problem else key


def _value_at(task: JSON | LazyValue, path: str) -> tuple[str, str]:
    """Return the value at a path as a key, and its problem or ""."""
    value = codec.plain(codec.unpack(codec.read(task)))
    names = path.split(".")
    for depth, name in enumerate(names):
        if not isinstance(value, dict) or name not in value:
            return "", f"{'.'.join(names[: depth + 1])!r} is missing"
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return "", "the value is neither text nor a number"
    key = str(value)
    size = len(key.encode())
    return (
        key,
        f"the value has {size:,} bytes, over {MOST_KEY_BYTES}" if size > MOST_KEY_BYTES else "",
    )


def _is_positive(value: object) -> bool:
    return is_number(value) and 0 < value < 1e300


def name_of(key: str) -> str:
    """Return the name of the limit that a key belongs to: no name has a colon."""
    return key.partition(":")[0]


class Keyed(Protocol):
    """The values of a run by which limits count, and the operators' settings for limits."""

    def limit_setting(self, name: str) -> LimitSetting | None:
        """Return the operators' setting for a limit; None without one."""

    def tag(self, name: str) -> str:
        """Return the value of a tag of the outermost run; "" without one."""

    def input_key(self, node: str, visit: int, path: str) -> str | None:
        """Return `input_key` for the input of a visit."""


@dataclass(frozen=True, slots=True, order=True)
class LimitShape:
    """One limit of one node: `by` is "tag:..." or "input:..." if a value ends the key; 0 means no limit.

    `interval` is the time between two executions in ms, rounded up: the rate is never exceeded.
    """

    start: str
    by: str
    concurrency: int
    interval: int

    @property
    def name(self) -> str:
        """Name of the limit."""
        return name_of(self.start)

    @property
    def numbers(self) -> DeclaredNumbers:
        """The declared numbers, with the start of the keys that they apply to."""
        return self.start, self.concurrency, self.interval

    @property
    def scope(self) -> str:
        """The `by` of its `Limit`."""
        return self.by or (*self.start.split(":")[1:2], "all")[0]

    def key(self, view: Keyed, node: str, visit: int) -> str | None:
        """Return the key under which a visit is counted; None if its input lacks the value."""
        value: str | None = ""
        if self.by.startswith(TAG):
            value = view.tag(self.by.removeprefix(TAG))
        elif self.by:
            value = view.input_key(node, visit, self.by.removeprefix(INPUT))
        return None if value is None else self.start + value


def check_limits(owner: str, limits: Iterable[object]) -> tuple[Limit, ...]:
    """Check the limits of a node or graph.

    Raises:
        DefinitionError: an item isn't a Limit, or two have the same name and `by`.
    """
    declared = tuple(limits)
    valid = tuple(limit for limit in declared if isinstance(limit, Limit))
    if len(valid) < len(declared):
        raise DefinitionError(
            f"the limits of {owner} must be a list of Limit objects, not {declared!r}."
        )
    if len({(limit.name, limit.by) for limit in valid}) < len(valid):
        raise DefinitionError(
            f"{owner} has the same limit twice; give each limit another name."
        )
    return valid


def shapes(limits: Iterable[Limit], graph_id: str, node: str) -> tuple[LimitShape, ...]:
    """Return the limits of a node, in the order in which slots are taken."""
    return tuple(sorted(limit.shape(graph_id, node) for limit in limits))
