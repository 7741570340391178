"""`runner dead`: the dead letters, their reasons, and how to send them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.arguments import limit_option
from runner.cli.context import CommandContext, command, group
from runner.cli.output import clock_time, short
from runner.records.json_form import stamp

if TYPE_CHECKING:
    from runner.records.dead_letters import DeadLetter


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
            (item.id, clock_time(item.at), _source(item), short(item.reason, 500))
            for item in letters
        ],
        "No dead letters.",
        lines=((item.id, stamp(item.at), _source(item), item.reason) for item in letters),
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
    from runner.operations.dead import Replayed
    from runner.operations.dead import replay as resend

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


def _source(letter: DeadLetter) -> str:
    return f"{letter.run_id} {letter.node}" if letter.kind == "node" else letter.source
