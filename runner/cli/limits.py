"""`runner limits`: show the limits on nodes, and change and pause them while workers run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from runner.cli.arguments import add_options, by_option, flag, option, to_seconds
from runner.cli.context import CommandContext, command, group
from runner.records.json_form import stamp
from runner.records.validation import one_line

if TYPE_CHECKING:
    from runner.limits.control import LimitView
    from runner.limits.setting import LimitPause

COLUMNS = ("LIMIT", "CODE", "SET", "STATUS", "WAITING")


@group
def limits() -> None:
    """Show limits, change them, pause and resume them.

    A change applies to all workers at once, and overrides the code until it is reset. The audit records it.
    """


@command(limits, "list")
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


@command(limits)
@click.argument("name", metavar="LIMIT")
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


def _change(name: str, text: str, *options: Callable[[Any], Any]) -> None:
    """Add a command that calls the method of this name of `Limits`, and writes the changed limit."""

    @command(limits, name, help=text)
    @click.argument("limit", metavar="LIMIT")
    @option(
        "--reason", "Why, shown to all; the audit keeps its hash (default: none).", default=""
    )
    @by_option
    @add_options(*options)
    def change(context: CommandContext, limit: str, **changes: Any) -> None:
        if name == "pause" and changes.pop("until_resumed") != (changes["seconds"] is None):
            raise click.UsageError(
                "say how long: --for 10m, or --until-resumed for a pause without an end."
            )
        view = getattr(context.installation.limits, name)(limit, **changes)
        context.output.write(view, [_row(view)])


_change(
    "set",
    """Change the numbers of a limit.

    Running executions go on, even if fewer may run now.

    Exit codes: 0 changed; 2 a number can't be used; 4 no graph has this limit.

    \b
    Examples:
      runner limits set model --concurrency 5 --reason 'the provider is slow today'
      runner limits set shop --rate 100 --per 1m
    """,
    option("--concurrency", "Executions at a time (default: unchanged).", type=int),
    option("--rate", "Executions that start per --per (default: unchanged).", type=float),
    option("--per", "For --rate.", default="1s", callback=to_seconds),
)
_change(
    "pause",
    """Pause a limit, or one of its keys.

    No node starts under it; running nodes go on. `show` lists the keys.

    Exit codes: 0 paused; 2 neither --for nor --until-resumed; 4 no graph has this limit.

    \b
    Examples:
      runner limits pause model --for 10m --reason 'incident 7'
      runner limits pause model:tag:tenant:acme --until-resumed
    """,
    option(
        "--for TIME",
        "seconds",
        "How long: 90s, 30m, 2h, 7d (default: see --until-resumed).",
        callback=to_seconds,
    ),
    flag("--until-resumed", "Pause without an end, instead of --for."),
)
_change(
    "resume",
    """End the pause of a limit, or of one of its keys.

    The pauses of a limit's keys end with its own. Waiting nodes start.
    """,
)
_change("reset", "Return to the numbers in the code, and end all pauses of a limit.")


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


def _last(starts_at: int) -> str:
    return f"the last starts {stamp(starts_at)}" if starts_at else ""


def _pause(pause: LimitPause | None) -> str:
    if pause is None:
        return ""
    why = f" ({one_line(pause.reason)})" if pause.reason else ""
    return (
        f"paused {f'until {stamp(pause.ends_at)}' if pause.ends_at else 'without an end'}{why}"
    )
