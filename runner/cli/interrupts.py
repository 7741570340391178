"""`runner interrupts`: the questions that wait for people, and how to answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli import exits, questions
from runner.cli.output import compact, stamp
from runner.cli.pages import gather, paged, tell_next
from runner.cli.session import Session, pass_session, shared
from runner.cli.values import read_json, read_length

if TYPE_CHECKING:
    from runner.interrupts import Interrupt, Receipt
    from runner.listings import Page


@click.group()
@shared
def interrupts() -> None:
    """Look at open questions and answer them.

    An interrupt is a question that a node of a run has asked a person. The branch behind that node waits
    for the answer; no worker does.
    """


@interrupts.command("list")
@click.option("--run", "run_id", metavar="RUN", help="Only those of this run and of graphs inside it.")
@click.option("--graph", metavar="GRAPH", help="Only those of this graph and of graphs inside it.")
@click.option("--name", metavar="NAME", help="Only those that the node gave this name.")
@click.option("--assignee", metavar="WHO", help="Only those that are assigned to this person.")
@click.option("--older-than", metavar="TIME", help="Only those open for longer: 90s, 30m, 2h, 7d.")
@paged
@shared
@pass_session
def list_interrupts(
    session: Session,
    *,
    run_id: str | None,
    graph: str | None,
    name: str | None,
    assignee: str | None,
    older_than: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List open questions, the oldest first.

    Without a terminal: id, run id, node, name, people, time of asking (UTC) and reason, separated by
    tabs. Where more follow, stderr says how to go on.
    """
    client = session.client
    if run_id is not None:
        client.run(run_id)  # no such run is an error, and not an empty list
    waited = read_length(older_than) if older_than is not None else None
    if older_than is not None and waited is None:
        raise click.UsageError(f"--older-than {older_than!r} is no length of time; write 90s, 30m, 2h or 7d.")
    page = gather(
        lambda few, after: client.interrupts(
            run=run_id,
            graph=graph,
            name=name,
            assignee=assignee,
            older_than=waited,
            limit=few,
            cursor=after,
        ),
        limit,
        cursor,
    )
    _write(session, page)


def _write(session: Session, page: Page[Interrupt]) -> None:
    from runner.cli.documents import interrupt_document
    from runner.cli.view import shown
    from runner.cli.watch import wall_clock

    output, found = session.output, list(page)
    if output.as_json:
        output.data({"interrupts": [interrupt_document(asked) for asked in found], "next": page.next})
        return
    if output.is_terminal:
        questions.pile(output, found, wall_clock())
        tell_next(output, page.next)
        return
    output.lines(
        [
            (
                asked.id,
                asked.run_id,
                asked.node_id,
                asked.name,
                ",".join(asked.assignees),
                stamp(asked.asked_at),
                compact(shown(asked.reason)),
            )
            for asked in found
        ]
    )
    tell_next(output, page.next)


@interrupts.command()
@click.argument("interrupt_id", metavar="INTERRUPT")
@shared
@pass_session
def show(session: Session, interrupt_id: str) -> None:
    """Show a question, which answers it takes, and its answer.

    The digest is a short code for exactly what is shown: give it with the answer, and the answer holds
    for nothing else.
    """
    asked = session.client.interrupt(interrupt_id)
    if session.output.as_json:
        from runner.cli.documents import interrupt_document

        session.output.data(interrupt_document(asked))
    else:
        session.output.lines(_facts(asked)) if not session.output.is_terminal else questions.page(
            session.output, asked
        )


def _facts(asked: Interrupt) -> list[tuple[str, str]]:
    from runner.cli.documents import interrupt_document

    return [(key, compact(value)) for key, value in interrupt_document(asked).items() if value is not None]


@interrupts.command()
@click.argument("interrupt_id", metavar="INTERRUPT")
@click.option("--response", metavar="JSON", help="The answer: JSON, @file, or - for standard input.")
@click.option("--edit", is_flag=True, help="Write the answer in $VISUAL or $EDITOR instead.")
@click.option("--responder", metavar="NAME", help="Who answers; else nobody is named.")
@click.option("--digest", metavar="DIGEST", help="Refuse unless the question still has this digest.")
@click.option("--idempotency-key", metavar="TEXT", help="Sent again with this TEXT, it is one answer.")
@shared
@pass_session
def respond(
    session: Session,
    *,
    interrupt_id: str,
    response: str | None,
    edit: bool,
    responder: str | None,
    digest: str | None,
    idempotency_key: str | None,
) -> int:
    """Answer a question, and write what became of the answer.

    That is a receipt: status, interrupt id, run id and detail, separated by tabs without a terminal. The
    status is accepted, rejected (it doesn't fit), duplicate (answered before), superseded (withdrawn, or
    the run ended), expired, unknown or forbidden. `interrupts show` says which answers fit, and the
    digest: a short code for exactly what is asked, so that nobody approves what was changed since.

    \b
    Exit codes: 0 accepted; 2 the answer doesn't fit the question, which stays open; 4 no such
    question; 5 already answered, expired, withdrawn, or not what the digest names; 6 not yours.

    \b
    Example:
      runner interrupts respond ID --response '{"decision": "approve"}' --responder ana
      runner interrupts respond ID --edit
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    if edit == (response is not None):
        raise click.UsageError("Give the answer with --response, or --edit it: one of the two.")
    more = {"responder": responder, "digest": digest, "idempotency_key": idempotency_key}
    if response is not None:
        return _respond(session, interrupt_id, response, more)
    return _respond_edited(session, interrupt_id, more)


def _respond(session: Session, interrupt_id: str, given: str, more: dict[str, str | None]) -> int:
    value = read_json(given, "--response", commented=True)
    if value is None:
        raise click.UsageError('null is no answer; nothing was sent. Write false, 0 or "" if you mean that.')
    receipt = session.client.respond(interrupt_id, value, **more)
    if session.output.as_json:
        from runner.cli.documents import receipt_document

        session.output.data(receipt_document(receipt))
    elif session.output.is_terminal:
        questions.receipt(session.output, receipt)
    else:
        session.output.lines([(receipt.status, receipt.interrupt_id, receipt.run_id or "", receipt.detail)])
    return _code(session, receipt, more["digest"])


def _respond_edited(session: Session, interrupt_id: str, more: dict[str, str | None]) -> int:
    from runner.cli.editing import edited

    asked = session.client.interrupt(interrupt_id)
    path = edited(asked)
    # Who writes in the editor answers what the editor showed, and nothing else.
    more = {**more, "digest": more["digest"] or asked.digest}
    code: int | None = None
    try:
        code = _respond(session, interrupt_id, f"@{path}", more)
    finally:
        if code == exits.Exit.DONE:
            path.unlink(missing_ok=True)
        else:
            again = f"runner interrupts respond {interrupt_id} --response @{path}"
            session.output.note(f"The answer is kept in {path}. When it is mended, send it with: {again}")
    return code


@interrupts.command()
@click.argument("interrupt_id", metavar="INTERRUPT")
@click.option(
    "--reason", default="", metavar="TEXT", help="Why, for whoever reads the run's events; else nothing."
)
@click.option("--reask", is_flag=True, help="Let the node ask anew; the question has a new id.")
@shared
@pass_session
def withdraw(session: Session, interrupt_id: str, *, reason: str, reask: bool) -> None:
    """Take an open question back.

    Answers to it are refused from now on. The node that asked goes on with an error, or asks anew with
    --reask. Exit codes: 0 it is withdrawn; 4 no such question; 5 it is not open any more.
    """
    session.client.withdraw(interrupt_id, reason, reask=reask)
    if session.output.as_json:
        session.output.data({"interrupt_id": interrupt_id, "status": "withdrawn"})
    else:
        session.output.lines([("withdrawn", interrupt_id)])


def _code(session: Session, receipt: Receipt, digest: str | None) -> exits.Exit:
    code = exits.of_receipt(receipt)
    if code is exits.Exit.USAGE and digest is not None:
        # A receipt has one word for both; a script must know whether to look again or to mend the answer.
        asked = session.client.interrupt(receipt.interrupt_id)
        return exits.Exit.CONFLICT if asked.digest != digest else code
    return code
