"""How large what is stored may be. The limits are the store's `Bounded`; what is larger is refused.

A result or a checkpoint beyond its limit fails its node; a task, a state or an answer is refused at the
door. Either way nothing of it was stored. The store itself counts what a run has, and refuses more than
its limit: see docs/decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from runner import codec
from runner.bounds import Bounded
from runner.errors import PayloadTooLarge
from runner.interrupts import Interrupt
from runner.outcomes import Delegated, Expanded, Failed, Interrupted, Outcome, Saved, Succeeded

JSON = Any

MAX_RESULT = 10_000_000
"""Bytes of one value, unless RUNNER_MAX_RESULT says else."""

MAX_STATE = 2_000_000
"""Bytes of what a node keeps to go on with, unless RUNNER_MAX_STATE says else: every checkpoint writes it."""

MAX_RUN = 50_000_000
"""Bytes of a run with all runs inside it, unless RUNNER_MAX_RUN says else."""

MAX_ANSWER = 262_144
"""Bytes of one answer: a person's word, or a reference to what is larger."""

MAX_MESSAGE = 4 * MAX_ANSWER
"""Bytes of a message at a door, besides what a start carries: JSON with escapes is longer than its value."""

LARGE_STATE = 262_144
"""Bytes of what a node keeps from which on it is said in the log: every checkpoint writes it."""

MAX_EVENT = 16_384
"""Bytes of what a node tells in one event: a run keeps thousands of them."""

WIDEST = 6
"""Bytes that one character of a text takes at most as JSON."""


def check(what: str, packed: JSON, most: int) -> None:
    """Refuse a packed value that is too large; `what` names it in the error.

    Raises:
        PayloadTooLarge: it is.
    """
    if packed is None or isinstance(packed, (bool, int, float)):
        return
    if isinstance(packed, str) and len(packed) * WIDEST < most:
        return
    _compare(what, len(codec.dump_json(packed)), most)


def no_room(size: int, more: int, most: int) -> PayloadTooLarge:
    """Make the error of a store that had no room in a run for so many bytes more."""
    return PayloadTooLarge(
        f"the run has {size:,} bytes with the runs inside it; {more:,} more are beyond RUNNER_MAX_RUN "
        f"({most:,}). They were not stored. Keep the data where it belongs and pass references to it, or "
        "raise the limit for every worker and client."
    )


def check_answer(packed: JSON, most: int) -> None:
    """Refuse an answer that is too large.

    Raises:
        PayloadTooLarge: it is.
    """
    size, most = len(codec.dump_json(packed)), min(most, MAX_ANSWER)
    if size > most:
        raise PayloadTooLarge(
            f"the answer has {size:,} bytes, more than an answer may have ({most:,}). It was not "
            "stored, and the question stays open. Answer with a reference to the data."
        )


def check_message(body: bytes, most: int) -> None:
    """Refuse a message of a door before it is read.

    Raises:
        PayloadTooLarge: it is too large.
    """
    if len(body) > most:
        raise PayloadTooLarge(
            f"the message has {len(body):,} bytes, more than one may have here ({most:,}). It was not read."
        )


def check_saved(node: str, saved: Saved | None, bounds: Bounded) -> int:
    """Refuse a checkpoint of which something is too large; return the bytes of its document.

    A message is written once, as a result is; the document is written at every checkpoint, so its bound is
    another one.

    Raises:
        PayloadTooLarge: something is.
    """
    if saved is None:
        return 0
    for message in saved.messages:
        check(f"a message of node {node!r}", message, bounds.max_bytes)
    size = len(codec.dump_json(saved.document))
    _compare(f"the state that node {node!r} keeps", size, bounds.max_state, "RUNNER_MAX_STATE")
    return size


def check_outcome(node: str, outcome: Outcome, bounds: Bounded) -> None:
    """Refuse an outcome of which something is too large.

    Raises:
        PayloadTooLarge: something is.
    """
    for what, packed in _values(node, outcome):
        check(what, packed, bounds.max_bytes)
    if isinstance(outcome, (Succeeded, Failed, Interrupted)):
        check_saved(node, outcome.saved, bounds)


def check_questions(questions: Iterable[Interrupt], most: int) -> None:
    """Refuse questions of which something is too large.

    Raises:
        PayloadTooLarge: something is.
    """
    for what, packed in _of_questions(questions):
        check(what, packed, most)


def _of_questions(questions: Iterable[Interrupt]) -> Iterator[tuple[str, JSON]]:
    for each in questions:
        yield f"the reason of interrupt {each.name!r}", each.reason
        yield f"the response_schema of interrupt {each.name!r}", each.response_schema
        yield f"on_expire of interrupt {each.name!r}", each.on_expire
        yield f"the list of assignees of interrupt {each.name!r}", each.assignees


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


def _compare(what: str, size: int, most: int, setting: str = "RUNNER_MAX_RESULT") -> None:
    if size > most:
        raise PayloadTooLarge(
            f"{what} has {size:,} bytes, more than {setting} allows ({most:,}). Nothing of it was "
            "stored. Keep the data where it belongs and pass a reference to it, or raise the limit for "
            "every worker and client."
        )
