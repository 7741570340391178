"""Options and arguments that several commands share, and how their values are read.

A unique prefix of an id is enough. A run's id begins with its partition and
the time of its creation, so a prefix means a span of time, and only the runs of that span are read.
A question's id begins with its run's id.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.cli.exits import CommandError, Exit
from runner.records.listings import Page, RunSummary, id_span
from runner.records.run import no_such_run

if TYPE_CHECKING:
    from runner.client import Client
    from runner.records.interrupts import Interrupt

Command = TypeVar("Command", bound=Callable[..., Any])
Item = TypeVar("Item")

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

MAX_PAGES = 100
"""Pages that one command reads at most if few items match; then it prints a cursor to continue from."""


def option(
    declaration: str, *names_and_help: str, **settings: Any
) -> Callable[[Command], Command]:
    """Make an option from its name and value as the help shows them: `option("--run RUN", "Its id.")`.

    Names other than the first come before the help. A default is shown unless it is empty.
    """
    name, _, metavar = declaration.partition(" ")
    *names, text = names_and_help
    shown = bool(settings.get("default"))
    return click.option(
        name, *names, metavar=metavar or None, help=text, show_default=shown, **settings
    )


flag = functools.partial(option, is_flag=True)
"""Make an option without a value."""


def add_options(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator that adds these options, the last one first."""
    return lambda command: functools.reduce(
        lambda added, option: option(added), decorators, command
    )


# -- JSON --------------------------------------------------------------------------------------------


def read_json(text: str, option: str) -> Any:
    """Read JSON from the text itself, from `@file`, or from standard input for `-`.

    Raises:
        CommandError: the file can't be read, or its content is not JSON.
    """
    from runner.errors import CorruptDocument
    from runner.records import codec

    try:
        return codec.load_json(
            _content(text, option), *[codec.exact] * (option == "--response")
        )
    except CorruptDocument as error:
        is_text = isinstance(error.__cause__, json.JSONDecodeError) and "\n" not in text
        quoted = f"{option} {quote(json.dumps(text, ensure_ascii=False))}"
        lacks_quotes = is_text and text[:1] not in [*'@-{["']
        hint = f"Text needs its own quotes: {quoted}" if lacks_quotes else ""
        raise CommandError(Exit.USAGE, f"{option} is {error}.", hint) from error


def _content(text: str, option: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(
            Exit.USAGE, f"{option}: the file {text[1:]} can't be read: {reason}."
        ) from error


# -- tags and times ----------------------------------------------------------------------------------


def _or_user(context: click.Context, _: click.Parameter, name: str) -> str:
    return name or str(context.obj.user)


by_option = option(
    "--by NAME", "Who does it (default: the user's login name).", default="", callback=_or_user
)
requester_option = option(
    "--requester NAME",
    "Who asks for it; a rule may exclude them from deciding (default: the user's login name).",
    default="",
    callback=_or_user,
)


operator_options = add_options(
    by_option,
    option(
        "--reason",
        "Why; shown with the change (default: none).",
        default="",
    ),
)
"""Who changes something, and why."""


def tag_option(text: str) -> Callable[[Command], Command]:
    """Make the option --tag."""
    return option(
        "--tag KEY=VALUE", "tags", f"{text}; may be repeated.", multiple=True, callback=to_pairs
    )


def to_pairs(
    _: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Read the values of an option that have the form KEY=VALUE.

    Raises:
        UsageError: a value has another form, or two have one key.
    """
    pairs: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        key, equals, value = text.partition("=")
        # A tag may be empty, the new name of a node may not.
        if not (key and equals and (value or option.name == "tags")) or key in pairs:
            problem = "repeats a key" if key in pairs else f"is not {option.metavar}"
            raise click.BadParameter(f"{text!r} {problem}.", param=option)
        pairs[key] = value
    return pairs


def to_ms(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Read a time as ms: a duration before now such as 90s, 30m, 2h or 7d, or RFC 3339.

    Raises:
        UsageError: the text is neither.
    """
    if text is None:
        return None
    seconds = read_duration(text)
    if seconds is not None:
        return time.time_ns() // 1_000_000 - round(seconds * 1000)
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as error:
        advice = "use a duration before now (2h), a day (2026-01-31) or an RFC 3339 time"
        raise click.BadParameter(f"{text!r} is not a time; {advice}.", param=option) from error


def to_seconds(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Read a duration such as 90s, 30m, 2h or 7d as seconds.

    Raises:
        UsageError: the text isn't a duration.
    """
    seconds = None if text is None else read_duration(text)
    if text is not None and seconds is None:
        raise click.UsageError(
            f"{option.opts[0]} {text!r} is not a duration; use 90s, 30m, 2h or 7d."
        )
    return seconds


def read_duration(text: str) -> float | None:
    """Read a duration such as 90s, 30m, 2h or 7d as seconds; None if the text isn't one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    return float(match[1]) * UNITS[match[2]] if match else None


# -- lists -------------------------------------------------------------------------------------------


limit_option = option("--limit", "Maximum number.", type=click.IntRange(1, 10_000), default=50)

paged = add_options(
    option(
        "--cursor CURSOR",
        "Continue from this cursor, printed by the previous page (default: from the beginning).",
    ),
    limit_option,
)


def read_pages(
    fetch: Callable[[int, str], Page[Item]], limit: int, cursor: str | None
) -> Page[Item]:
    """Read pages until there are `limit` items, or no more."""
    items: list[Item] = []
    for _ in range(MAX_PAGES):
        page = fetch(limit - len(items), cursor or "")
        items += page
        cursor = page.next
        if cursor is None or len(items) >= limit:
            break
    return Page(tuple(items), cursor)


# -- ids of runs and questions ------------------------------------------------------------------------

LIMIT = 2_000
"""Maximum number of runs of a span that are compared with a prefix."""

NAMED = 5
"""The number of ids that an error names when a prefix fits several."""


def full_run_id(client: Client, text: str) -> str:
    """Return the id of the run that begins with this text; the text itself if it is an id or fits no run.

    Raises:
        CommandError: several runs fit. NotFoundError: it can't be the id of a run.
    """
    if ":" in text:
        raise no_such_run(text)
    if client.engine.store.peek(text) is not None:
        return text
    return _only([run.run_id for run in _runs(client, text, LIMIT)], text, "runs")


def full_interrupt_id(client: Client, text: str) -> str:
    """Return the id of the question that begins with this text; among several, the only open one's.

    Raises:
        CommandError: several questions fit.
    """
    if client.engine.store.interrupts([text])[0] is not None:
        return text
    questions = _questions(client, text)
    names = [question.id for question in questions if question.is_open]
    return _only(names or [question.id for question in questions], text, "questions")


run_argument = click.argument("run_id", metavar="RUN")
interrupt_argument = click.argument("interrupt_id", metavar="INTERRUPT")
graph_argument = click.argument("name", metavar="GRAPH")


def _only(names: Sequence[str], text: str, kind: str) -> str:
    if len(names) > 1:
        shown = ", ".join(names[:NAMED]) + (
            f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        )
        raise CommandError(
            Exit.USAGE,
            f"{text!r} fits several {kind}: {shown}.",
            "Write more of the id; nothing was changed.",
        )
    # If nothing fits, the command itself reports it.
    return names[0] if names else text


def _runs(client: Client, prefix: str, limit: int) -> list[RunSummary]:
    span = id_span(prefix)
    if span is None:
        return []
    since, until = span
    filters: dict[str, Any] = {"since": since, "until": until} if prefix[2:] else {}
    runs: list[RunSummary] = []
    for run in read_pages(
        lambda number, after: client.runs(**filters, limit=number, cursor=after), LIMIT, None
    ):
        if run.run_id.startswith(prefix):
            runs.append(run)
            if len(runs) >= limit:
                break
    return runs


def _questions(client: Client, prefix: str) -> list[Interrupt]:
    """Read the questions that a prefix of a question's or a run's id can mean.

    They are the questions, open and closed, whose ids begin with it. If the prefix names runs, those that
    their child runs ask are included.
    """
    run, dot, _ = prefix.partition(".")
    names = [run] if dot else [summary.run_id for summary in _runs(client, run, NAMED + 1)]
    questions: dict[str, Interrupt] = {}
    for name in names:
        snapshot = client.engine.store.read(name)
        run_questions = snapshot.interrupts if snapshot is not None else ()
        family = () if dot else client.interrupts(run=name)
        questions |= {question.id: question for question in (*run_questions, *family)}
    return [
        question for question in questions.values() if not dot or question.id.startswith(prefix)
    ]
