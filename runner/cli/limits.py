"""`runner limits`: show the limits on nodes, and change and pause them while workers run."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

import click

from runner.cli.arguments import add_options, by_option, paged, to_seconds
from runner.cli.context import CommandContext, common_options, with_context
from runner.cli.output import short_time
from runner.records.json_form import stamp
from runner.records.validation import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.limits.concurrency import QueuedKey, RunOfKey
    from runner.limits.control import LimitView
    from runner.limits.setting import LimitPause

MOST_FAIR_KEYS = 1_000
"""Maximum number of keys that are read, the longest waiting first."""

COLUMNS = ("LIMIT", "CODE", "SET", "STATUS", "WAITING")

_change = add_options(
    click.argument("name", metavar="LIMIT"),
    click.option(
        "--reason",
        default="",
        help="Why, shown to all; the audit keeps its hash (default: none).",
    ),
    by_option,
)


@click.group()
@common_options
def limits() -> None:
    """Show limits, change them, pause and resume them.

    A change applies to all workers at once, and overrides the code until it is reset. The audit records it.
    """


@limits.command("list")
@with_context
def list_limits(context: CommandContext) -> None:
    """List the limits that graphs declare.

    Without a terminal: name, numbers in the code, numbers set, status, and how many nodes wait for slots
    or start times, separated by tabs.
    """
    page = context.installation.limits.all()
    context.output.listing(
        {"limits": page},
        COLUMNS,
        [_row(limit) for limit in page],
        "No limits. `limits=[Limit(...)]` of a node declares one.",
    )


@limits.command()
@click.argument("name", metavar="LIMIT")
@with_context
def show(context: CommandContext, name: str) -> None:
    """Show a limit, its waiting keys, and the nodes in their slots.

    Without a terminal: key, how many nodes wait, since when, the nodes that have slots, and the end of its
    pause or the time when its rate lets the last node start, separated by tabs.
    """
    limit = context.installation.limits.get(name)
    pauses = {pause.key: pause for pause in limit.setting.pauses} if limit.setting else {}
    rows: list[tuple[object, ...]] = [
        (
            *(key.key, key.nodes, stamp(key.since)),
            *(
                " ".join(key.holders),
                _pause(pauses.pop(key.key, None)) or _last(key.last_start_at),
            ),
        )
        for key in limit.waiting
    ]
    rows += [(key, "", "", "", _pause(pause)) for key, pause in pauses.items() if key != name]
    context.output.write(limit, rows or [_row(limit)])


@limits.command()
@with_context
def fairness(context: CommandContext) -> None:
    """List the keys of fair graphs whose nodes wait.

    Without a terminal: queue, priority, key, how many nodes wait, and since when the first does, separated
    by tabs. The key is empty for runs without the tag.
    """
    page = context.installation.fair_keys(MOST_FAIR_KEYS)
    context.output.listing(
        {"fairness": page},
        ("QUEUE", "PRIORITY", "KEY", "WAITING", "SINCE"),
        [(*astuple(key)[:-1], stamp(key.since)) for key in page],
        "No node waits for others' keys. `fairness=` of a graph divides its slots between keys.",
    )


@limits.command()
@click.option("--graph", default="", help="Filter by graph (default: any).")
@paged
@with_context
def queued(context: CommandContext, graph: str, limit: int, cursor: str | None) -> None:
    """List the concurrency keys of graphs that runs wait for.

    The longest waiting come first. Without a terminal: graph, key, how many runs wait, since when the first
    does, the first of them, and the open runs that they wait for, each with its status and since when it is
    open, separated by tabs. A run that can't be read has the status "gone". If there are more, stderr has
    the cursor of the next page.
    """
    page = context.installation.queued_keys(graph, limit, cursor)
    context.output.listing(
        {"queued": list(page), "next": page.next},
        ("RUN", "STATUS", "SINCE", "KEY", "GRAPH"),
        [row for key in page for row in _runs(key)],
        "No run waits for others of its key. `concurrency=` of a graph bounds its open runs.",
        lines=[
            (
                *(key.graph, key.key, key.runs, stamp(key.since)),
                " ".join(run.run_id for run in key.waiting),
                ", ".join(
                    f"{run.run_id} {_status(run)} {stamp(run.since)}" for run in key.open
                ),
            )
            for key in page
        ],
    )


@limits.command("set")
@_change
@click.option("--concurrency", type=int, help="Executions at a time (default: unchanged).")
@click.option(
    "--rate", type=float, help="Executions that start per --per (default: unchanged)."
)
@click.option("--per", default="1s", show_default=True, callback=to_seconds, help="For --rate.")
@with_context
def set_limit(
    context: CommandContext,
    name: str,
    reason: str,
    by: str,
    *,
    concurrency: int | None,
    rate: float | None,
    per: float,
) -> None:
    """Change the numbers of a limit.

    Running executions go on, even if fewer may run now.

    Exit codes: 0 changed; 2 a number can't be used; 4 no graph has this limit.

    \b
    Examples:
      runner limits set model --concurrency 5 --reason 'the provider is slow today'
      runner limits set shop --rate 100 --per 1m
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    by = by or context.user
    control = context.installation.limits
    _write(
        context,
        control.set(name, concurrency=concurrency, rate=rate, per=per, reason=reason, by=by),
    )


@limits.command()
@_change
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    callback=to_seconds,
    help="How long: 90s, 30m, 2h, 7d (default: see --until-resumed).",
)
@click.option("--until-resumed", is_flag=True, help="Pause without an end, instead of --for.")
@with_context
def pause(
    context: CommandContext,
    name: str,
    reason: str,
    by: str,
    *,
    seconds: float | None,
    until_resumed: bool,
) -> None:
    """Pause a limit, or one of its keys.

    No node starts under it; running nodes go on. `show` lists the keys.

    Exit codes: 0 paused; 2 neither --for nor --until-resumed; 4 no graph has this limit.

    \b
    Examples:
      runner limits pause model --for 10m --reason 'incident 7'
      runner limits pause model:tag:tenant:acme --until-resumed
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    if (seconds is None) != until_resumed:
        raise click.UsageError(
            "say how long: --for 10m, or --until-resumed for a pause without an end."
        )
    _write(
        context, context.installation.limits.pause(name, seconds, reason, by or context.user)
    )


@limits.command()
@_change
@with_context
def resume(context: CommandContext, name: str, reason: str, by: str) -> None:
    """End the pause of a limit, or of one of its keys.

    The pauses of a limit's keys end with its own. Waiting nodes start.
    """
    _write(context, context.installation.limits.resume(name, reason, by or context.user))


@limits.command()
@_change
@with_context
def reset(context: CommandContext, name: str, reason: str, by: str) -> None:
    """Return to the numbers in the code, and end all pauses of a limit."""
    _write(context, context.installation.limits.reset(name, reason, by or context.user))


def _write(context: CommandContext, limit: LimitView) -> None:
    context.output.write(limit, [_row(limit)])


def _row(limit: LimitView) -> tuple[object, ...]:
    from runner.limits.control import words

    setting = limit.setting
    code = " / ".join(words(each.concurrency, each.interval) for each in limit.declarations)
    changed = words(setting.concurrency, setting.interval) if setting else ""
    pauses = {pause.key: pause for pause in setting.pauses} if setting else {}
    status = _pause(pauses.pop(limit.name, None)) or "active"
    if pauses:
        status += f", {len(pauses)} of its keys paused"
    return limit.name, code, changed, status, sum(key.nodes for key in limit.waiting)


def _runs(key: QueuedKey) -> Iterator[tuple[object, ...]]:
    """Yield a row for each run that a key lists: the open ones, then the waiting ones."""
    for run in key.open:
        yield run.run_id, _status(run), short_time(run.since), key.key, key.graph
    for run in key.waiting:
        yield run.run_id, "waiting", short_time(run.since), key.key, key.graph
    if others := key.runs - len(key.waiting):
        yield f"{others} more", "waiting", "", key.key, key.graph


def _status(run: RunOfKey) -> str:
    return run.status.shown if run.status else "gone"


def _last(starts_at: int) -> str:
    return f"the last starts {stamp(starts_at)}" if starts_at else ""


def _pause(pause: LimitPause | None) -> str:
    if pause is None:
        return ""
    why = f" ({one_line(pause.reason)})" if pause.reason else ""
    return (
        f"paused {f'until {stamp(pause.ends_at)}' if pause.ends_at else 'without an end'}{why}"
    )
