"""Controls for operators: `runner dead`, `limits`, `freeze` and `thaw`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from runner.cli.arguments import (
    add_options,
    by_option,
    flag,
    limit_option,
    operator_options,
    option,
    to_seconds,
)
from runner.cli.context import CommandContext, command, group
from runner.cli.output import clock_time, short
from runner.immutable import immutable
from runner.limits.setting import LimitPause
from runner.records.dead_letters import DeadLetter
from runner.records.json_form import stamp
from runner.records.validation import one_line

if TYPE_CHECKING:
    from runner.limits.control import LimitView

# -- dead letters -----------------------------------------------------------------------------------


@group
def dead() -> None:
    """List dead letters, and send them again.

    A dead letter is a message that could not be read or applied, or a node that failed because every
    worker that ran it died. It is stored with the reason.
    """


@command(dead, "list")
@limit_option
def list_letters(context: CommandContext, limit: int) -> None:
    """List dead letters, newest first.

    With --json each has the message as it was received, too. Without a terminal: id, time (UTC), source and
    reason, separated by tabs. To delete one: `runner api DELETE /v1/dead/LETTER`.
    """
    letters = context.installation.dead_letters.all(limit)
    context.output.listing(
        {"letters": letters},
        ("LETTER", "TIME", "SOURCE", "REASON"),
        [
            (item.id, clock_time(item.at), _origin(item), short(item.reason, 500))
            for item in letters
        ],
        "No dead letters.",
        lines=((item.id, stamp(item.at), _origin(item), item.reason) for item in letters),
    )


@command(dead)
@click.argument("letter_ids", metavar="LETTER...", nargs=-1, required=True)
def replay(context: CommandContext, letter_ids: tuple[str, ...]) -> None:
    """Send messages again and retry nodes.

    Do this after fixing the cause. A message is sent to the stream that it came from. For a node, its
    run is retried, as `runner runs retry` does. Both cease to be dead letters. For each: letter and
    its new position or run, separated by a tab. Exit codes: 0 all were sent; 2 a message can't be sent;
    4 no such letter or run; 5 the run is not over or has completed. If a letter fails, those after it
    are not replayed.
    """
    from runner.operations.dead_letters import Replayed
    from runner.operations.dead_letters import replay as resend

    letters = context.installation.dead_letters
    # All are read first, so that a mistyped id sends nothing.
    dead_letters = [letters.get(letter_id) for letter_id in letter_ids]
    replays: list[Replayed] = []
    run_ids: set[str] = set()
    try:
        for letter in dead_letters:
            target = resend(context.client.engine, letters, letter, run_ids, context.user)
            replays.append(Replayed(letter.id, target))
    finally:
        # Even if one fails, list the letters that were sent before it.
        context.output.write({"replayed": replays}, ((item.id, item.sent) for item in replays))


def _origin(letter: DeadLetter) -> str:
    return f"{letter.run_id} {letter.node}" if letter.kind == "node" else letter.source


# -- limits -----------------------------------------------------------------------------------------


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
        ("LIMIT", "CODE", "SET", "STATUS", "WAITING"),
        [_limit_row(limit) for limit in page],
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
            key.key,
            key.nodes,
            stamp(key.since),
            " ".join(key.holders),
            _pause(pauses.pop(key.key, None))
            or (f"the last starts {stamp(key.last_start_at)}" if key.last_start_at else ""),
        )
        for key in limit.waiting
    ]
    rows += [(key, "", "", "", _pause(pause)) for key, pause in pauses.items() if key != name]
    context.output.write(limit, rows or [_limit_row(limit)])


def _change_limit(name: str, text: str, *options: Callable[[Any], Any]) -> None:
    """Add a command that calls the method of this name of `Limits`, and writes the changed limit."""

    @command(limits, name, help=text)
    @click.argument("limit", metavar="LIMIT")
    @operator_options
    @add_options(*options)
    def change(context: CommandContext, limit: str, **changes: Any) -> None:
        if name == "pause" and changes.pop("until_resumed") != (changes["seconds"] is None):
            raise click.UsageError(
                "say how long: --for 10m, or --until-resumed for a pause without an end."
            )
        view = getattr(context.installation.limits, name)(limit, **changes)
        context.output.write(view, [_limit_row(view)])


_change_limit(
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
_change_limit(
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
_change_limit(
    "resume",
    """End the pause of a limit, or of one of its keys.

    The pauses of a limit's keys end with its own. Waiting nodes start.
    """,
)
_change_limit("reset", "Return to the numbers in the code, and end all pauses of a limit.")


def _limit_row(limit: LimitView) -> tuple[object, ...]:
    from runner.limits.control import words

    setting = limit.setting
    code = " / ".join(words(each.concurrency, each.interval) for each in limit.declarations)
    changed = words(setting.concurrency, setting.interval) if setting else ""
    pauses = {pause.key: pause for pause in setting.pauses} if setting else {}
    status = _pause(pauses.pop(limit.name, None)) or "active"
    if pauses:
        status += f", {len(pauses)} of its keys paused"
    return limit.name, code, changed, status, sum(key.nodes for key in limit.waiting)


def _pause(pause: LimitPause | None) -> str:
    if pause is None:
        return ""
    why = f" ({one_line(pause.reason)})" if pause.reason else ""
    return (
        f"paused {f'until {stamp(pause.ends_at)}' if pause.ends_at else 'without an end'}{why}"
    )


# -- freezes ----------------------------------------------------------------------------------------


@immutable
class Frozen:
    """A freeze in force or just ended; `scope` is all, graph:GRAPH or tool:TOOL, `by` who did it."""

    scope: str
    status: str
    reason: str
    by: str


def _change_of_effects(
    name: str, status: str, text: str, *options: Callable[[Any], Any]
) -> click.Command:
    """Make a command that calls the function of this name of `approvals.freezing` for one scope."""

    @command(None, name, help=text)
    @option("--graph GRAPH", "The nodes of this graph (default: none).", default="")
    @option("--tool TOOL", "The calls of this tool (default: none).", default="")
    @flag("--all", "everything", "Every graph.")
    @option("--reason", "Why; it is shown, and the audit keeps its hash.", required=True)
    @by_option
    @add_options(*options)
    def change(
        context: CommandContext,
        *,
        graph: str,
        tool: str,
        everything: bool,
        reason: str,
        by: str,
        **extra: bool,
    ) -> None:
        from runner.approvals import freezing
        from runner.approvals.freezes import scope_of

        scope = scope_of(graph, tool, everything=everything)
        getattr(freezing, name)(context.client.engine, scope, reason, by, **extra)
        context.output.write(Frozen(scope, status, reason, by))

    return change


freeze = _change_of_effects(
    "freeze",
    "frozen",
    """Stop all effects of a graph, of a tool, or everything.

    No node of a frozen graph starts, even if the graph is a node of another one, and its running nodes call
    no tools. A frozen tool is not called, and the node that would call it waits. Workers obey within
    five seconds. Nothing is lost: questions can be answered meanwhile, and everything resumes after `runner
    thaw`. `runner doctor`, `runner metrics`, `runner runs show`, notices and receipts of answers show it.

    A name that no graph or tool has is refused. Tools are looked up in the agents of the graphs that this
    program imports; a tool of a framework's agent, such as Strands, needs --force.

    Without a terminal: scope, status, reason and who did it, separated by tabs. Exit codes: 0 frozen;
    4 nothing has this name; 5 it is frozen already.
    """,
    flag("--force", "Even if nothing here has this name."),
)
thaw = _change_of_effects(
    "thaw",
    "thawed",
    """End a freeze, with the option that began it.

    Waiting nodes start with the next sweep, or within fifteen seconds if they met a frozen tool. Without a
    terminal: scope, status, reason and who did it, separated by tabs.

    Exit codes: 0 thawed; 4 it is not frozen.
    """,
)
