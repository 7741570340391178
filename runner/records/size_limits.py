"""Size limits of stored values. The limits are the store's `Bounded`; a larger value is refused.

A result or a checkpoint beyond its limit fails its node; a task, a state or an answer is refused
when it arrives. In either case no part of it is stored. The Redis store also limits the bytes of a
whole run: see docs/decisions/0015-run-size.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from runner.errors import PayloadTooLarge
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.codec import JSON
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Delegated, Expanded, Failed, Interrupted, Outcome, Succeeded

MAX_RESULT = 10_000_000
"""Bytes of one value, unless RUNNER_MAX_RESULT sets another limit."""

MAX_STATE = 2_000_000
"""Bytes of a node's stored document, which every checkpoint writes; RUNNER_MAX_STATE sets another limit."""

MAX_RUN = 50_000_000
"""Bytes of a run with all runs inside it, unless RUNNER_MAX_RUN sets another limit."""

MAX_DEAD, MAX_DEAD_BYTES = 100_000, 100_000_000
"""The number and the total bytes of messages' dead letters at which the older half is deleted."""

MAX_ANSWER = 262_144
"""Bytes of one answer: a person's input, or a reference to a larger document."""

MAX_MESSAGE = 4 * MAX_ANSWER
"""Bytes of a message, besides a start's task: JSON with escapes is longer than its value."""

LARGE_STATE = 262_144
"""Bytes of a node's stored document above which a warning is logged: every checkpoint writes it."""

MAX_EVENT = 16_384
"""Bytes of one event of a node: a run keeps thousands of events."""

WIDEST = 6
"""The most bytes that one character of a text takes as JSON."""


def check(field: str, json_value: JSON, most: int) -> None:
    """Refuse a packed value of more than `most` bytes; `field` names it in the error.

    Raises:
        PayloadTooLarge: it has more.
    """
    if json_value is None or isinstance(json_value, (bool, int, float, codec.LazyValue)):
        return  # a lazy value is already stored
    if isinstance(json_value, str) and len(json_value) * WIDEST < most:
        return
    _compare(field, len(codec.dump_json(json_value)), most)


def no_room(size: int, excess: int, most: int) -> PayloadTooLarge:
    """Build the error of a store whose limit for a run would be exceeded by `excess` bytes."""
    return PayloadTooLarge(
        f"the run has {size:,} bytes with the runs inside it; {excess:,} more are beyond RUNNER_MAX_RUN "
        f"({most:,}). They were not stored. Keep the data where it belongs and pass references to it, or "
        "raise the limit for every worker and client."
    )


def check_saved(node: str, checkpoint: Saved | None, bounds: Bounded) -> int:
    """Refuse a checkpoint with a part that is too large; return the bytes of its document.

    A message is written once, like a result; the document is written at every checkpoint, so its
    limit is smaller.

    Raises:
        PayloadTooLarge: a part is too large.
    """
    if checkpoint is None:
        return 0
    for message in checkpoint.messages:
        check(f"a message of node {node!r}", message, bounds.max_bytes)
    size = len(codec.dump_json(checkpoint.document))
    _compare(f"the state that node {node!r} keeps", size, bounds.max_state, "RUNNER_MAX_STATE")
    return size


def check_outcome(node: str, outcome: Outcome, bounds: Bounded) -> None:
    """Refuse an outcome with a part that is too large.

    Raises:
        PayloadTooLarge: a part is too large.
    """
    for field, json_value in _values(node, outcome):
        check(field, json_value, bounds.max_bytes)
    if isinstance(outcome, (Succeeded, Failed, Interrupted)) and outcome.saved:
        check_saved(node, outcome.saved, bounds)


def check_questions(questions: Iterable[Interrupt], most: int) -> None:
    """Refuse questions with a part that is too large.

    Raises:
        PayloadTooLarge: a part is too large.
    """
    for field, json_value in _of_questions(questions):
        check(field, json_value, most)


def _of_questions(questions: Iterable[Interrupt]) -> Iterator[tuple[str, JSON]]:
    for question in questions:
        yield f"the reason of interrupt {question.name!r}", question.reason
        yield f"the response_schema of interrupt {question.name!r}", question.response_schema
        yield f"on_expire of interrupt {question.name!r}", question.on_expire
        yield f"the list of assignees of interrupt {question.name!r}", question.assignees


def _values(node: str, outcome: Outcome) -> Iterator[tuple[str, JSON]]:
    match outcome:
        case Succeeded():
            yield f"the output of node {node!r}", outcome.output
            if outcome.result is not outcome.output:
                yield f"the result of node {node!r}", outcome.result
        case Interrupted():
            yield from _of_questions(outcome.interrupts)
        case Delegated():
            yield f"the task of the graph in node {node!r}", outcome.task
        case Expanded():
            yield from ((f"an item of map {node!r}", item) for item in outcome.items or ())


def _compare(field: str, size: int, most: int, setting: str = "RUNNER_MAX_RESULT") -> None:
    if size > most:
        raise PayloadTooLarge(
            f"{field} has {size:,} bytes, more than {setting} allows ({most:,}). Nothing of it was "
            "stored. Keep the data where it belongs and pass a reference to it, or raise the limit for "
            "every worker and client."
        )


class Bounded(Protocol):
    """The limits of a store. Sizes are bytes of JSON.

    `lease_ms` is how long a worker may be silent before its node runs again. `max_bytes` limits one
    value, `max_state` the stored document of a node. A store may also limit a whole run, as the
    Redis store does, and raise PayloadTooLarge for a value that exceeds this limit.
    """

    lease_ms: int
    max_bytes: int
    max_state: int
