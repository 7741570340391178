"""`runner absences`: who is away, and who votes for them until they are back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from runner.cli.arguments import by_option
from runner.cli.context import CommandContext, common_options, with_context
from runner.cli.output import short_time
from runner.records.validation import one_line


@click.group()
@common_options
def absences() -> None:
    """Show who is away, begin an absence, and end it.

    While somebody is away, the person they named may vote in their place, as far as each rule allows.
    """


@absences.command("list")
@with_context
def list_absences(context: CommandContext) -> None:
    """List who is away or will be.

    Without a terminal: who is away, who votes instead, for what, and until when, separated by tabs.
    """
    from runner.operations.questions import away_view

    views = [away_view(one) for one in context.client.absences()]
    context.output.listing(
        {"absences": views},
        ("AWAY", "VOTES INSTEAD", "FOR", "UNTIL"),
        [
            (
                one_line(view.by),
                one_line(view.to),
                one_line(" ".join(view.only)),
                short_time(view.until),
            )
            for view in views
        ],
        "Nobody is away.",
    )


@absences.command()
@click.option("--to", required=True, metavar="WHO", help="Who votes instead.")
@click.option(
    "--until", required=True, metavar="TIME", help="A day (to its end), or an RFC 3339 time."
)
@click.option("--since", metavar="TIME", help="From when (default: now).")
@click.option(
    "--only",
    multiple=True,
    metavar="SELECTOR",
    help="For what you may decide by it, as group:finance; may be repeated (default: everything).",
)
@by_option
@with_context
def begin(
    context: CommandContext,
    *,
    to: str,
    until: str,
    since: str | None,
    only: tuple[str, ...],
    by: str,
) -> None:
    """Let another person vote in your place for some time.

    It replaces an earlier absence of yours.
    """
    from runner.operations.questions import away_view

    absence = context.client.begin_absence(
        by=by or context.user,
        to=to,
        until=_time("--until", until, end=True),
        since=_time("--since", since) if since else None,
        only=only,
    )
    lines = [("votes instead", absence.to), ("until", short_time(absence.until))]
    context.output.write(away_view(absence), lines)


def _time(option: str, text: str, *, end: bool = False) -> datetime:
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise click.UsageError(
            f"{option} {text!r} is not a time; use a day (2026-01-31) or an RFC 3339 time."
        ) from error
    is_day = len(text) == len("2026-01-31")
    return moment + timedelta(days=1) if end and is_day else moment


@dataclass(frozen=True, slots=True)
class Back:
    """Somebody who is back."""

    who: str
    status: str = "back"


@absences.command()
@click.argument("who", required=False, metavar="WHO")
@by_option
@with_context
def end(context: CommandContext, *, who: str | None, by: str) -> None:
    """End an absence, by default your own.

    Exit codes: 0 ended; 4 they are not away.
    """
    by = by or context.user
    context.client.end_absence(who or by, by=by)
    context.output.write(Back(who or by), [("back", who or by)])
