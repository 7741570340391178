"""`runner interrupts`: the open questions of runs, and how to answer them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from runner.cli.arguments import (
    interrupt_argument,
    option,
    paged,
    read_json,
    read_pages,
    to_seconds,
)
from runner.cli.context import CommandContext, command, group
from runner.cli.exits import Exit, exit_of_receipt
from runner.cli.output import Output, block, clock_time, compact, short, style, times
from runner.records.json_form import document, span, stamp
from runner.records.listings import InterruptQuery, Page
from runner.records.validation import one_line

if TYPE_CHECKING:
    from rich.text import Text

    from runner.operations.exports import Question
    from runner.operations.own_questions import Part
    from runner.operations.questions import QuestionView
    from runner.records.interrupts import Interrupt, Receipt


@group
def interrupts() -> None:
    """List questions that wait for people, and answer them.

    An interrupt is a question that a node of a run has asked a person. The branch behind that node waits
    for the answer; no worker does.
    """


@command(interrupts, "list")
@option(
    "--mine",
    "part",
    "Only those you may decide and haven't, by your login name.",
    flag_value="mine",
)
@option(
    "--voted", "part", "Only those that wait for others after your vote.", flag_value="voted"
)
@option("--requested", "part", "Only those of runs that you asked for.", flag_value="requested")
@option("--run RUN", "run_id", "Filter by run, including child runs (default: any).")
@option("--graph GRAPH", "Filter by graph, including inner graphs (default: any).")
@option("--name", "Filter by the name of the question (default: any).")
@option("--assignee WHO", "Filter by a person who may answer (default: any).")
@option(
    "--older-than TIME",
    "age",
    "Open for longer than 90s, 30m, 2h, 7d (default: any age).",
    callback=to_seconds,
)
@paged
def list_interrupts(
    context: CommandContext,
    *,
    part: Part | None,
    limit: int,
    cursor: str | None,
    run_id: str | None,
    age: float | None,
    **filters: Any,
) -> None:
    """List open questions, oldest first.

    Without a terminal: id, run id, node, name, people, time of asking (UTC), reason and, for a question
    with a rule, its votes such as "1 of 2", separated by tabs. If there are more, stderr has the cursor of
    the next page. Closed questions are listed by the API: `runner api GET '/v1/questions?status=decided'`,
    also with by, since and until.
    """
    from runner.approvals.directory import looked_up
    from runner.approvals.rules import OWN_KEY, Principal, Voter
    from runner.operations.own_questions import own_questions
    from runner.operations.questions import read_questions

    output = context.output
    if run_id is not None:
        context.client.run(run_id)  # raises if there is no such run
    before = None if age is None else time.time_ns() // 1_000_000 - round(age * 1000)
    query = InterruptQuery(run=run_id, until=before, **filters)
    if part and not context.user:
        raise click.UsageError(f"--{part} needs a login name, and this process has none.")

    def read_page(number: int, after: str | None) -> Page[QuestionView]:
        if part is None:
            page = context.store.open_interrupts(query, number, after or "")
            return Page(read_questions(context.store, page), page.next)
        person = Voter(Principal.read(context.user), level=OWN_KEY)
        voter = looked_up(person, context.settings.directory)
        return own_questions(
            context.client.engine, voter, part, query, number, cursor=after or ""
        )

    page = read_pages(read_page, limit, cursor)
    output.present(
        {"interrupts": page.items, "next": page.next},
        lambda: _show_list(output, page.items),
        map(_row, page),
    )
    output.next_page(page.next)


def _votes(question: QuestionView) -> str:
    """Return the tally, such as "1 of 2", with any stage and rejections; if closed, the decision."""
    if not question.is_open:
        from runner.operations.decided import decision_of

        return decision_of(question).sentence
    from runner.cli.run_tree import pending

    if question.undo or not question.need:
        return pending(question)
    stage = f"stage {question.stage + 1}: " if question.rule and question.rule["stages"] else ""
    against = f", {question.against} against" if question.against else ""
    return f"{stage}{question.have} of {question.need}{against}"


def _row(question: QuestionView) -> tuple[object, ...]:
    row = (
        question.id,
        question.run_id,
        question.node_id,
        question.name,
        ",".join(question.assignees),
        stamp(question.asked_at),
        compact(question.reason),
    )
    return (*row, votes) if (votes := _votes(question)) else row


@command(interrupts)
@interrupt_argument
def show(context: CommandContext, interrupt_id: str) -> None:
    """Show a question, the answers it accepts, and its answer.

    The digest is a hash of the question as it is shown. An answer with --digest is accepted only if the
    question still has that digest. A question with a rule also shows the rule in words, the exact call, and
    the votes so far; with --json, `digests` has the objects that are hashed. Without a terminal: name and
    value of each part, separated by a tab.
    """
    from runner.operations.questions import with_comments

    output = context.output
    question = with_comments(context.store, _question(context, interrupt_id))
    fields = document(question).items()
    rows = (
        (name, compact(value))
        for name, value in fields
        if value not in (None, "", [], {}, 0) and name != "digests"
    )
    output.present(question, lambda: _show_whole(output, question), rows)


def _answer_of(_context: object, _option: object, text: str | None) -> Any:
    if text is None:
        return None
    from runner.records import codec

    answer = read_json(text, "--response")
    if answer is None:
        raise click.UsageError(
            'null is not an answer; nothing was sent. Use false, 0 or "" if you mean that.'
        )
    codec.pack(answer, "response")  # raises if it can't be stored
    return answer


# Read with the command line, so that a malformed answer is refused before the store is needed.
response_option = functools.partial(
    click.option, "--response", metavar="JSON", callback=_answer_of
)


@command(interrupts)
@interrupt_argument
@response_option(required=True, help="The answer: JSON, @file, or - for standard input.")
@option("--responder NAME", "Who answers (default: not named).")
@option(
    "--digest DIGEST",
    "Reject unless the question has this digest (default: any; with a rule it is required).",
)
@option(
    "--idempotency-key TEXT",
    "Repeating the command with the same key sends one answer (default: no key).",
)
def respond(
    context: CommandContext,
    *,
    interrupt_id: str,
    response: Any,
    **options: str | None,
) -> int:
    """Answer a question and write the receipt.

    The receipt has status, interrupt id, run id and detail, separated by tabs without a terminal. The
    status is accepted, rejected (the answer doesn't fit), duplicate (answered before), superseded
    (withdrawn, or the run ended), expired, unknown or forbidden. `interrupts show` shows which answers
    fit, and the digest: a hash of the question, so that you approve only the question as shown.

    Exit codes: 0 accepted; 2 the answer doesn't fit the question, which stays open; 4 no such
    question; 5 already answered, expired, withdrawn, or another digest; 6 you may not answer it.

    A question that shows a call takes no answer: see `interrupts vote`.

    \b
    Example:
      runner interrupts respond ID --response '{"decision": "approve"}' --responder ana
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    _check_answerable(context, interrupt_id, options)
    receipt = context.client.respond(interrupt_id, response, **options)
    code = _show_outcome(context, receipt, options["digest"])
    if code is Exit.NOT_ALLOWED and options["responder"] is None:
        context.output.note("Say who answers: --responder NAME.")
    return code


def _check_answerable(
    context: CommandContext,
    interrupt_id: str,
    options: Mapping[str, str | None],
) -> None:
    """Refuse early an answer that would be refused later, or be taken for a decision."""
    from runner.approvals.rule_text import instead

    (question,) = context.store.interrupts([interrupt_id])
    if question is None or not question.is_open:
        return
    if question.action:
        raise click.UsageError(
            "The question shows a call, so it needs a vote; nothing was sent. The decision respond answers "
            f"instead, and then {instead(question.action)}. Use: {command_for(question)}"
        )
    needs = {
        "responder": "--responder, who answers",
        "digest": "--digest, which `runner interrupts show` has",
    }
    missing = [words for name, words in needs.items() if options[name] is None]
    if missing and question.rule is not None:
        raise click.UsageError(
            "The question has a rule, so the answer is a vote; nothing was sent. "
            f"Add {' and '.join(missing)}."
        )


def command_for(question: Interrupt | Question) -> str:
    """Return the command that decides a question as shown, or answers it."""
    if question.rule is None:
        who = " --responder WHO" if question.assignees else ""
        return f"runner interrupts respond {question.id} --response JSON{who}"
    words = ["approve", "edit", "reject", "respond"]
    if question.action is None and question.response_schema is not None:
        words.insert(0, "respond")
    decision = next(word for word in words if word in question.rule["decisions"])
    response = " --response JSON" * (decision in {"edit", "respond"})
    shown = f"--by WHO --digest {question.digest}"
    return f"runner interrupts vote {question.id} {decision}{response} {shown}"


def _show_outcome(context: CommandContext, receipt: Receipt, digest: str | None) -> Exit:
    """Write a receipt, and return its exit code."""
    output, code, name = context.output, exit_of_receipt(receipt), receipt.interrupt_id
    row = (receipt.status, name, receipt.run_id or "", _detail(receipt))
    output.present(receipt, lambda: output.show(_receipt_text(receipt)), [row])
    # Both a bad answer and another digest are "rejected", but a script reacts to them differently.
    if (
        code is Exit.USAGE
        and digest is not None
        and context.client.interrupt(name).digest != digest
    ):
        return Exit.CONFLICT
    return code


def _detail(receipt: Receipt) -> str:
    """Return the text of a receipt, with the tally of the votes."""
    if receipt.need is None:
        return receipt.detail
    against = f", {receipt.against} against" if receipt.against else ""
    votes = f"{receipt.have} of {receipt.need}{against}"
    return "; ".join(filter(None, (votes, receipt.detail)))


@command(interrupts)
@interrupt_argument
@click.argument("decision", type=click.Choice(["approve", "edit", "reject", "respond"]))
@option("--by WHO", "Who decides: a name, or kind:issuer|subject.", required=True)
@response_option(
    help="The answer of respond, or all arguments of edit: JSON, @file, or - (default: none)."
)
@option("--comment TEXT", "A comment, shown with the vote (default: none).", default="")
@option(
    "--digest DIGEST",
    "The digest of the question that was shown; with another one the vote is rejected.",
    required=True,
)
@option(
    "--idempotency-key TEXT",
    "Repeating the command with the same key votes once (default: no key).",
)
def vote(
    context: CommandContext,
    *,
    interrupt_id: str,
    decision: str,
    response: Any,
    digest: str,
    **options: Any,
) -> int:
    """Vote on a question.

    DECISION is approve, edit, reject or respond. To respond is to answer instead of the call shown, which is
    then not made. `interrupts show` has the digest. The receipt has status, interrupt id, run id and detail,
    separated by tabs without a terminal. The status is accepted (the vote decides), counted (more are
    needed), or as with `interrupts respond`. Groups and roles come from RUNNER_DIRECTORY.

    Exit codes: 0 accepted or counted; 2 the response doesn't fit; 4 no such question; 5 decided already, you
    have voted, expired, withdrawn, or another digest; 6 you may not decide it.

    \b
    Example:
      runner interrupts vote ID approve --by ana --digest sha256:...
      runner interrupts vote ID edit --by ana --digest sha256:... --response '{"order": 7, "amount": 50}'
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    _check_response(context, interrupt_id, decision, response)
    receipt = context.client.vote(
        interrupt_id, decision, response=response, digest=digest, **options
    )
    return _show_outcome(context, receipt, digest)


def _check_response(
    context: CommandContext, interrupt_id: str, decision: str, response: Any
) -> None:
    """Refuse a response that doesn't belong to the decision, and a decision that lacks its response."""
    from runner.operations.questions import differs

    wants = decision in {"edit", "respond"}
    has_response = response is not None
    if decision == "approve" and has_response:
        question = _question(context, interrupt_id)
        if question.action and differs(question, response, question.variants):
            raise click.UsageError(
                f"The response has other arguments than the call of {question.id} and its versions; "
                "nothing was sent. Approve without --response, or vote edit, which approves with changes."
            )
    elif wants != has_response:
        raise click.UsageError(
            f"{decision} needs --response."
            if wants
            else f"{decision} has no response; use --comment."
        )


# -- on a terminal -----------------------------------------------------------------------------------


def _show_list(output: Output, questions: Sequence[QuestionView]) -> None:
    """Draw a list of questions. The id has its own line: it is long, and people copy it."""
    from rich.text import Text

    from runner.cli.run_tree import people, wall_clock

    now = wall_clock()
    for question in questions:
        line = Text.assemble(
            (one_line(question.title), "bold yellow"),
            f"  asked by {one_line(question.node_id)}",
        )
        line.append(f" of {people(question)}, {span(now - question.asked_at)} ago")
        votes = _votes(question)
        line.append(f", {'votes ' * question.is_open}{votes}" if votes else "", style="bold")
        line.append(f", reminded {times(question.reminded)}" if question.reminded else "")
        line.append(f"\n  {short(question.reason, 90)}" if question.reason is not None else "")
        line.append(f"\n  {question.id}", style="dim")
        output.show(line)
    if not questions:
        output.note("No such questions.")


def _show_whole(output: Output, question: QuestionView) -> None:
    output.show(_whole(question))
    if question.is_open:
        decides = "Decide" if question.rule else "Answer"
        output.note(f"{decides} with: {command_for(question)}")


def _whole(question: QuestionView) -> Text:
    from rich.text import Text

    from runner.approvals.rule_text import person
    from runner.cli.run_tree import people

    texts: list[str | tuple[str, str]] = [
        (f"{one_line(question.title)}  {question.status}\n", "bold"),
        f"asked by node {one_line(question.node_id)} of run {question.run_id}, ",
        f"{clock_time(question.asked_at)}, of {people(question)}\n",
        f"reminded {times(question.reminded)}\n" if question.reminded else "",
        _requester(question),
        _expiry(question),
        *_ruled(question),
        f"claimed by {one_line(person(question.claim))} until {clock_time(question.claim_ends_at)}\n"
        if question.claim
        else "",
        *(
            f"{one_line(person(away.by))} is away until {clock_time(away.until)}: "
            f"{one_line(person(away.to))} may decide\n"
            for away in question.away
        ),
        ("reason\n", "bold"),
        block(question.reason) + "\n",
    ]
    if question.response_schema is not None:
        texts += [("schema of the answer\n", "bold"), block(question.response_schema) + "\n"]
    if question.response is not None:
        responder = one_line(question.responder or "unnamed")
        texts += [
            (f"answered by {responder}, {clock_time(question.answered_at)}\n", "bold"),
            block(question.response) + "\n",
        ]
    texts += [(f"digest {question.digest}\n{question.id}", "dim")]
    return Text.assemble(*texts)


def _requester(question: QuestionView) -> str:
    from runner.approvals.rule_text import person

    if not question.requester:
        return ""
    names = [one_line(person(key)) for key in question.requesters]
    return (
        f"started by {names[0]}" + (f" for {', '.join(names[1:])}" if names[1:] else "") + "\n"
    )


def _ruled(question: QuestionView) -> list[str | tuple[str, str]]:
    """Describe in full who may decide, the exact call, and the votes so far."""
    from runner.approvals.rule_text import person, who

    if question.rule is None:
        return []
    texts: list[str | tuple[str, str]] = [
        ("decided by  ", "bold"),
        f"{one_line(question.rule_words)}\n",
    ]
    if question.risk:
        texts.append(
            (f"{question.risk} risk\n", "bold red" if question.risk == "high" else "bold")
        )
    if question.action is not None:
        action = question.action
        texts += [(f"the {action['kind']} {one_line(action['tool'])} will run with\n", "bold")]
        texts += [block(action["args"]) + "\n"]
    texts.append((f"{'votes  ' * question.is_open}{_votes(question)}\n", "bold"))
    for vote in question.votes:
        name = f" ({one_line(vote.name)})" if vote.name else ""
        comment = f": {one_line(vote.comment)}" if vote.comment else ""
        texts.append(
            f"  {one_line(person(vote.by))}{name} {vote.decision}, as {one_line(who(vote.selector))}, "
            f"level {vote.level}, {clock_time(vote.at)}{', void since an edit' * vote.is_void}{comment}\n"
        )
    texts += _versions(question)
    for key, lender in question.delegated.items():
        end = question.delegation_ends.get(lender)
        until = f" until {clock_time(end)}" if end else ""
        texts.append(
            f"{one_line(person(key))} may vote instead of {one_line(person(lender))}{until}\n"
        )
    if question.decision:
        texts.append((f"decided: {question.decision}\n", "bold"))
    return texts


def _versions(question: QuestionView) -> Iterator[str | tuple[str, str]]:
    """Describe the version that each approval is for, unless all are for the proposed call."""
    from runner.approvals.rule_text import instead, person

    if all(variant.is_proposed for variant in question.variants):
        return
    for variant in question.variants:
        people = ", ".join(one_line(person(key)) for key in variant.voters)
        head = "as proposed" if variant.is_proposed else f"by {people}"
        if question.action and variant.decision == "respond":
            head += f", an answer instead: {instead(question.action)}"
        yield f"version {head}  {variant.have} of {question.need}\n", "bold"
        for change in variant.changes:
            yield f"  {one_line(change.name)}: {short(change.before, 200)} -> {short(change.after, 200)}\n"
        if variant.response is not None and not variant.is_proposed:
            yield block(variant.response) + "\n"
        yield f"  {variant.effect}\n", "dim"


def _expiry(question: Question) -> str:
    """Describe when a question expires, and its answer then."""
    if not question.expires_at:
        return ""
    return f"expires {clock_time(question.expires_at)}: {compact(question.on_expire or 'reject')}\n"


def _receipt_text(receipt: Receipt) -> Text:
    from rich.text import Text

    line = Text(f"{receipt.status}  ", style=style(receipt.status))
    line.append(one_line(_detail(receipt)), "default")
    return line.append(f"\n  {one_line(receipt.interrupt_id)}", "dim")


def _question(context: CommandContext, interrupt_id: str) -> QuestionView:
    from runner.operations.questions import read_question

    return read_question(context.store, context.client.interrupt(interrupt_id))
