"""`runner dead`: what could not be used, why, and what to do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.exits import CommandError, Exit
from runner.cli.output import clock_time, short, stamp, visible
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.cli.documents import LetterDocument
    from runner.store.letters import Letter, Letters


@click.group()
@shared
def dead() -> None:
    """Look at dead letters, and send them again or drop them.

    A dead letter is what could not be used and is kept with the reason: a message that nobody could read
    or apply, or a node that was given up because each worker that took it died.
    """


@dead.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most."
)
@shared
@pass_session
def list_letters(session: Session, limit: int) -> None:
    """List dead letters, the newest first.

    Without a terminal: id, time (UTC), where from and reason, separated by tabs.
    """
    found, output = _letters(session).all(limit), session.output
    if output.as_json:
        output.data({"letters": [_document(letter) for letter in found]})
        return
    if output.is_terminal:
        rows = [(each.id, clock_time(each.at), _source(each), short(each.reason, 90)) for each in found]
        output.table(("LETTER", "SINCE", "FROM", "REASON"), rows, "No dead letters.")
        return
    output.lines([(each.id, stamp(each.at), _source(each), each.reason) for each in found])


@dead.command()
@click.argument("letter_id", metavar="LETTER")
@shared
@pass_session
def show(session: Session, letter_id: str) -> None:
    """Show one dead letter, with the message as it came.

    Without a terminal: the name and the value of each part, separated by a tab.
    """
    letter, output = _letters(session).get(letter_id), session.output
    document = _document(letter)
    if output.as_json:
        output.data(document)
    elif output.is_terminal:
        from rich.text import Text

        lines = [f"{name}  {visible(str(value))}" for name, value in document.items() if value]
        output.show(Text("\n".join(lines)))
    else:
        output.lines([(name, value) for name, value in document.items() if value])


@dead.command()
@click.argument("letter_ids", metavar="LETTER...", nargs=-1, required=True)
@shared
@pass_session
def replay(session: Session, letter_ids: tuple[str, ...]) -> None:
    """Send messages again and retry nodes.

    Do so when what was wrong is mended. A message goes back to the stream that it came from. Of a node,
    the run is retried, as `runner runs retry` does. Neither is a dead letter any more. For each: letter
    and its new place or run, separated by a tab. Exit codes: 0 all were sent; 2 a message can't be; 4
    no such letter or run; 5 the run goes on or has completed. What comes after a letter that fails is
    left as it is.
    """
    letters = _letters(session)
    # All are looked up first, so that a typing error sends nothing.
    found = [letters.get(each) for each in letter_ids]
    sent: list[tuple[str, str]] = []
    retried: set[str] = set()
    try:
        for letter in found:
            place = _retry(session, letter, retried) if letter.kind == "node" else letters.replay(letter)
            letters.drop(letter.id)
            sent.append((letter.id, place))
    finally:
        # Also when one fails: what was sent before it was sent.
        if session.output.as_json:
            session.output.data({"replayed": [{"id": old, "sent": new} for old, new in sent]})
        else:
            session.output.lines(sent)


def _retry(session: Session, letter: Letter, retried: set[str]) -> str:
    """Retry the run of a node, once for all its letters; a graph inside another goes on with that one."""
    record = session.client.engine.store.peek(letter.run_id)
    if record is None:
        raise CommandError(
            Exit.NOT_FOUND,
            f"The run {letter.run_id} of letter {letter.id} is not kept any more; nothing was retried.",
            f"Start it again, then: runner dead drop {letter.id}.",
        )
    root = record.root or record.run_id
    if root not in retried:
        session.client.run(root).retry()
        retried.add(root)
    return root


@dead.command()
@click.argument("letter_ids", metavar="LETTER...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Don't ask whether you mean it.")
@shared
@pass_session
def drop(session: Session, letter_ids: tuple[str, ...], *, yes: bool) -> int:
    """Delete dead letters for good.

    It asks before. For each: letter, and dropped or unknown, separated by a tab. Exit code 4 if one was
    not there.
    """
    if not yes:
        click.confirm(f"Delete {len(letter_ids)} dead letters for good?", abort=True, err=True)
    letters = _letters(session)
    done = [(each, "dropped" if letters.drop(each) else "unknown") for each in letter_ids]
    if session.output.as_json:
        session.output.data({"dropped": [{"id": each, "status": word} for each, word in done]})
    else:
        session.output.lines(done)
    return Exit.NOT_FOUND if any(word == "unknown" for _, word in done) else Exit.DONE


def _letters(session: Session) -> Letters:
    from runner.store.letters import Letters

    return Letters(session.settings.redis_url)


def _source(letter: Letter) -> str:
    return f"{letter.run_id} {letter.node}" if letter.kind == "node" else letter.source


def _document(letter: Letter) -> LetterDocument:
    return {
        "id": letter.id,
        "kind": letter.kind,
        "at": stamp(letter.at),
        "reason": letter.reason,
        "source": letter.source,
        "body": letter.body.decode(errors="replace"),
        "run_id": letter.run_id or None,
        "node": letter.node or None,
        "visit": letter.visit or None,
    }
