"""Ids of runs and questions on the command line: a unique prefix is enough, and the shell completes it.

A run's id begins with its partition and the time at which it was made, so a prefix means a span of time,
and only the runs of that span are read. A question's id begins with that of its run.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from runner.cli.exits import CommandError, Exit
from runner.cli.options import read_pages
from runner.records.validation import one_line

if TYPE_CHECKING:
    from runner.client import Client
    from runner.records.interrupts import Interrupt
    from runner.records.listings import RunSummary

DIGITS = 26
"""Letters and digits of a run's id behind the two of its partition: 128 bits, the first 48 are ms."""

SKEW = 3_600_000
"""Ms by which the clock that made an id may differ from that of the store, which has the run's start."""

LIMIT = 2_000
"""Runs of a span that are compared with a prefix."""

OFFERED = 30
"""How many ids the shell offers."""

NAMED = 5
"""How many ids an error names when a prefix fits several."""


def full_run_id(client: Client, text: str) -> str:
    """Return the id that begins with this text, or the text itself where no run or only it fits.

    Raises:
        CommandError: several runs fit.
    """
    if client.engine.store.peek(text) is not None:
        return text
    return _only([run.run_id for run in _runs(client, text, LIMIT)], text, "runs")


def full_interrupt_id(client: Client, text: str) -> str:
    """Return the id of the question that begins with this text; of several, of the only open one.

    Raises:
        CommandError: several questions fit.
    """
    if client.engine.store.interrupts([text])[0] is not None:
        return text
    questions = _questions(client, text)
    names = [question.id for question in questions if question.is_open]
    return _only(names or [question.id for question in questions], text, "questions")


def complete_run(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the newest runs whose ids begin so, each with its graph and status."""
    try:
        runs = _runs(context.obj.client, incomplete, OFFERED)
        return [CompletionItem(run.run_id, help=one_line(f"{run.graph_id} {run.status}")) for run in runs]
    except Exception:  # noqa: BLE001 - a shell that completes shows no errors
        return []


def complete_interrupt(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the open questions whose ids begin so, each with its name and node."""
    try:
        client = context.obj.client
        asked = read_pages(lambda number, after: client.interrupts(limit=number, cursor=after), LIMIT, None)
        questions = [question for question in asked if question.id.startswith(incomplete)]
        return [
            CompletionItem(question.id, help=one_line(f"{question.name} of {question.node_id}"))
            for question in questions[:OFFERED]
        ]
    except Exception:  # noqa: BLE001 - as above
        return []


def _only(names: Sequence[str], text: str, kind: str) -> str:
    if len(names) > 1:
        shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        raise CommandError(
            Exit.USAGE,
            f"{text!r} fits several {kind}: {shown}.",
            "Write more of the id; nothing was changed.",
        )
    # Where nothing fits, the command itself says so.
    return names[0] if names else text


def _runs(client: Client, prefix: str, limit: int) -> list[RunSummary]:
    span = _span(prefix)
    if span is None:
        return []
    since, until = span
    filters: dict[str, Any] = {"since": since, "until": until} if prefix[2:] else {}
    runs: list[RunSummary] = []
    page = read_pages(lambda number, after: client.runs(**filters, limit=number, cursor=after), LIMIT, None)
    for run in page:
        if run.run_id.startswith(prefix):
            runs.append(run)
            if len(runs) >= limit:
                break
    return runs


def _span(prefix: str) -> tuple[int, int] | None:
    """Return the ms between which a run was started whose id begins so; None where no id does."""
    digits = prefix[2:]
    if len(digits) > DIGITS or not (prefix[:2].isdecimal() or not prefix[:2]):
        return None
    try:
        first, last = (
            int.from_bytes(base64.b32hexdecode(digits.ljust(DIGITS, filler).upper() + "======")[:6])
            for filler in "0v"
        )
    except ValueError:
        return None
    return max(0, first - SKEW), last + SKEW


def _questions(client: Client, prefix: str) -> list[Interrupt]:
    """Read the questions that this can mean, of the runs whose ids it can be.

    These are the questions, open and closed, whose ids begin so, and what the child runs of such a run ask.
    """
    run, dot, _ = prefix.partition(".")
    names = [run] if dot else [summary.run_id for summary in _runs(client, run, NAMED + 1)]
    questions: dict[str, Interrupt] = {}
    for name in names:
        snapshot = client.engine.store.read(name)
        own = snapshot.interrupts if snapshot is not None else ()
        family = () if dot else client.interrupts(run=name)
        questions |= {question.id: question for question in (*own, *family)}
    return [question for question in questions.values() if not dot or question.id.startswith(prefix)]
