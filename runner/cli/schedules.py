"""`runner schedules`: start graphs at times, by cron expressions or intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.cli.arguments import (
    input_option,
    read_json,
    read_tags,
    requester_option,
    tag_option,
    to_seconds,
)
from runner.cli.context import CommandContext, common_options, with_context
from runner.cli.output import clock_time
from runner.records.json_form import milliseconds, span, stamp
from runner.records.validation import one_line

if TYPE_CHECKING:
    from runner.schedules.schedule import Schedule
    from runner.schedules.scheduler import Scheduler

COLUMNS = ("SCHEDULE", "GRAPH", "WHEN", "NEXT", "LAST RUN", "OVERLAP")

SCHEDULE = click.argument("schedule_id", metavar="SCHEDULE")


@click.group()
@common_options
def schedules() -> None:
    """Start graphs at times, by cron expressions or intervals.

    The sweeps of any worker or keeper start the runs. Each time gets one run, whichever process dies.
    Times that passed while no worker ran get one run together, for the latest of them.
    """


@schedules.command("list")
@with_context
def list_schedules(context: CommandContext) -> None:
    """List the schedules.

    Without a terminal: id, graph, when, next time (UTC), last run or error, and overlap, separated by tabs.
    """
    page = _scheduler(context).schedules.all()
    context.output.listing(
        {"schedules": page},
        COLUMNS,
        [_row(item, _next(item)) for item in page],
        "No schedules. `runner schedules add` makes one.",
        lines=(_row(item, stamp(item.next_at) or "") for item in page),
    )


def _row(item: Schedule, next_time: str) -> tuple[object, ...]:
    last = f"failed: {one_line(item.error)}" if item.error else item.last_run
    return item.id, item.graph, when(item), next_time, last, item.overlap


def when(schedule: Schedule) -> str:
    """Return when a schedule starts runs, in words."""
    if schedule.interval is not None:
        return f"every {span(schedule.interval * 1000)}"
    return f"{schedule.cron} {schedule.timezone}"


def _next(schedule: Schedule) -> str:
    return "paused" if schedule.paused else clock_time(schedule.next_at)


@schedules.command()
@SCHEDULE
@click.argument("graph")
@input_option("The task of each run", "null")
@click.option(
    "--cron",
    metavar="TEXT",
    help="Minute, hour, day, month, weekday: '0 9 * * 1-5' (default: --every).",
)
@click.option(
    "--every",
    metavar="TIME",
    callback=to_seconds,
    help="An interval: 90s, 30m, 2h, 7d (default: --cron).",
)
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The zone of --cron, such as Europe/Rome.",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "buffer", "all"]),
    default="skip",
    show_default=True,
    help="If the last run still runs: skip a time, start it afterwards, or start it at once.",
)
@tag_option("A tag of each run")
@requester_option
@with_context
def add(
    context: CommandContext,
    *,
    schedule_id: str,
    graph: str,
    input_text: str | None,
    cron: str | None,
    every: float | None,
    timezone: str,
    overlap: Any,
    tags: tuple[str, ...],
    requester: str,
) -> None:
    """Make a schedule that starts GRAPH.

    Exit codes: 0 made; 2 a value can't be used; 4 no worker has published the graph; 5 the name is
    taken.

    \b
    Examples:
      runner schedules add nightly report --cron '0 3 * * *' --timezone Europe/Rome
      runner schedules add poll inbox --every 5m --overlap skip
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from runner.approvals.rules import Principal
    from runner.schedules.schedule import Schedule

    task = read_json(input_text, "--input") if input_text is not None else None
    schedule = Schedule(
        schedule_id,
        graph,
        task,
        every,
        cron or "",
        timezone,
        overlap,
        tags=dict(read_tags(tags)),
        requester=Principal.read(name).key if (name := requester or context.user) else "",
    )
    _write(context, _scheduler(context).add(schedule))


@schedules.command()
@SCHEDULE
@with_context
def pause(context: CommandContext, schedule_id: str) -> None:
    """Pause a schedule: it starts nothing until it is resumed."""
    _write(context, _scheduler(context).pause(schedule_id))


@schedules.command()
@SCHEDULE
@with_context
def resume(context: CommandContext, schedule_id: str) -> None:
    """Resume a schedule at its next time.

    Times that passed meanwhile are skipped.
    """
    _write(context, _scheduler(context).resume(schedule_id))


@schedules.command()
@SCHEDULE
@with_context
def remove(context: CommandContext, schedule_id: str) -> None:
    """Delete a schedule; its runs go on."""
    _scheduler(context).remove(schedule_id)
    context.output.removed(schedule_id)


@schedules.command()
@SCHEDULE
@click.option(
    "--from", "first", metavar="TIME", required=True, help="The first time, as RFC 3339."
)
@click.option("--to", "last", metavar="TIME", required=True, help="The last time, as RFC 3339.")
@with_context
def backfill(context: CommandContext, schedule_id: str, first: str, last: str) -> None:
    """Start a run for each time of a range, at once.

    A time that already has a run gets no second one.
    """
    try:
        span_of = milliseconds(first), milliseconds(last)
    except ValueError as error:
        raise click.UsageError(
            "--from and --to are times such as 2026-03-01T00:00:00Z."
        ) from error
    from runner.operations.views import BackfilledRun

    runs = [
        BackfilledRun(run_id) for run_id in _scheduler(context).backfill(schedule_id, *span_of)
    ]
    context.output.write({"runs": runs}, [(run.run_id,) for run in runs])


def _write(context: CommandContext, schedule: Schedule) -> None:
    cells = (
        schedule.id,
        "paused" if schedule.paused else "active",
        stamp(schedule.next_at) or "",
    )
    context.output.write(schedule, [cells])


def _scheduler(context: CommandContext) -> Scheduler:
    return context.installation.scheduler(context.client.engine)
