"""Decides questions that are alike together, on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse

from runner.approvals.ballots import approved
from runner.approvals.rules import plain_name
from runner.operations.own_questions import has_voted
from runner.operations.questions import (
    QuestionView,
    changes,
    check_alike,
    open_alike,
    read_questions,
)
from runner.records import codec
from runner.records.codec import JSONMapping
from runner.records.interrupts import Decision, Receipt, ReceiptStatus, tool_of
from runner.records.json_form import pretty
from runner.records.listings import InterruptQuery, Page
from runner.server.access import DecidesAll, Person
from runner.server.answers import seen_by
from runner.server.deciding import decide_each, why_barred
from runner.server.forms import (
    FormTexts,
    SentForm,
    Typed,
    answer_fields,
    answer_of,
    fields_of,
    marked,
    with_item,
    with_json,
)
from runner.server.pages.amounts import content_of, sums_of
from runner.server.pages.passkeys import takes_own_key
from runner.server.pages.question import claim_of_another, first_receipt, shown_at_of
from runner.server.pages.question_list import QuestionList
from runner.server.pages.rendering import page
from runner.server.parameters import FormText, QueryText
from runner.server.problems import Problem
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)

MOST_TOGETHER = 300
"""Maximum questions that are decided together: each has three fields in one form."""

MOSTLY = 0.7
"""The share of questions with the same value of an argument from which another value is marked."""


@router.get("/inbox/together")
def together(
    request: Request,
    person: DecidesAll,
    services: Served,
    q: Annotated[list[str] | None, Query(max_length=MOST_TOGETHER)] = None,
    like: QueryText = "",
) -> HTMLResponse:
    """Show questions that are alike in full, with one form for all: those picked, or all that match."""
    ids = q or []
    if like:
        questions = QuestionList.of(request.query_params)

        def read_page(query: InterruptQuery, limit: int, cursor: str) -> Page[QuestionView]:
            return replace(questions, cursor=cursor).load(services, person, limit, query)

        alike = open_alike(
            services.store, like, questions.query(person), MOST_TOGETHER, read_page
        )
        ids = [item.id for item in alike]
    return _together(request, services, person, ids)


@router.post("/inbox/together")
def decide_together(
    request: Request,
    person: DecidesAll,
    services: Served,
    q: Annotated[list[str], Form(max_length=MOST_TOGETHER)],
    digest: Annotated[list[str], Form(max_length=MOST_TOGETHER)],
    shown: Annotated[list[str] | None, Form(max_length=MOST_TOGETHER)] = None,
    pick: Annotated[list[str] | None, Form(max_length=MOST_TOGETHER)] = None,
    *,
    decision: FormText = "respond",
    comment: Typed = "",
    typed: Typed = "",
    form: SentForm,
) -> HTMLResponse:
    """Decide the picked questions of those shown; each has its own receipt."""
    questions = _alike(services, q)
    decisions = {"approve", "reject"} if questions[0].rule else {"respond"}
    if decision not in decisions or len(q) != len(digest) or not all(digest):
        raise Problem(
            422,
            f"{' or '.join(sorted(decisions)).capitalize()}, with the digest of each question; nothing was "
            "done.",
        )
    selection = [name for name in q if name in (pick or ())]
    phrase = _word(questions)
    sent = answer_fields(form)
    problems: FormTexts = {}
    response = None
    if decision == "respond":
        response, problems = answer_of(questions[0].response_schema, sent)
    problem = ""
    if path := form.get("add"):
        sent = with_item(sent, path)
        problems = {}
        selection = []
    elif not selection:
        problem = "Select at least one question."
    elif decision == "reject" and not comment.strip():
        problem = "Say in the comment why you reject them."
    elif decision == "approve" and phrase and typed != phrase:
        problem = f"Type {phrase} exactly."
    if problem or problems:
        selection = []
    barred = {
        name: Receipt(ReceiptStatus.REJECTED, name, detail=obstacle)
        for name, obstacle in _meanwhile(services, person, questions)
        if name in selection
    }
    votes = [
        Decision(
            name,
            codec.pack(response, "response"),
            None,
            None,
            about,
            decision,
            comment=comment,
            shown_at=shown_at_of(request, person, token, about),
        )
        for name, about, token in zip(q, digest, [*(shown or []), *q], strict=False)
        if name in selection and name not in barred
    ]
    receipts = [
        first_receipt(services, person, vote, receipt)
        for vote, receipt in zip(votes, decide_each(services, person, votes), strict=True)
    ]
    return _together(
        request,
        services,
        person,
        q,
        [*receipts, *barred.values()],
        problem=problem,
        problems=problems,
        sent=sent,
        comment=comment,
        selection=pick or (),
        decision=decision,
    )


def _alike(services: Services, ids: Sequence[str]) -> list[QuestionView]:
    """Read questions that may be decided together.

    Raises:
        UsageError: they differ in more than their runs and their arguments, or in having a rule.
    """
    stored_questions = [
        question for question in services.store.interrupts(ids) if question is not None
    ]
    check_alike(
        services.store, ids, {question.id: question.digest for question in stored_questions}
    )
    return read_questions(services.store, stored_questions)


def _word(questions: Sequence[QuestionView]) -> str:
    """Return the word to type to approve questions; "" if their risk is not high."""
    question = questions[0]
    return (tool_of(question.action) or question.name) if question.risk == "high" else ""


def _meanwhile(
    services: Services, person: Person, questions: Sequence[QuestionView]
) -> Iterator[tuple[str, str]]:
    """Yield the questions that somebody changed in any stage or another person claims, with the reason."""
    standings = services.store.standings([question.id for question in questions])
    for question, standing in zip(questions, standings, strict=True):
        tally = standing.tally
        if question.is_open and {*tally.effects, tally.settled} - {"", approved(question)}:
            yield question.id, "somebody changed it: open it"
        elif claim := claim_of_another(question, person):
            yield question.id, f"{plain_name(claim)} works on it: open it"


def _obstacle(services: Services, person: Person, question: QuestionView) -> str:
    """Return why a question can't be decided together with others; "" if it can."""
    if not question.is_open:
        return f"it is {question.status}"
    if takes_own_key(question):
        return "it takes a signature with a key of your own: open it"
    if has_voted(services.store, question, person.principal.key):
        return "you have voted"
    return why_barred(services, person, question)


def _usual(calls: Sequence[JSONMapping], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the arguments that have the same value in most of the calls, so that others stand out."""
    for name in names:
        ((text, count),) = Counter(pretty(call.get(name)) for call in calls).most_common(1)
        if count > MOSTLY * len(calls):
            yield name, text


def _together(
    request: Request,
    services: Services,
    person: Person,
    ids: Sequence[str],
    receipts: Sequence[Receipt] = (),
    *,
    problem: str = "",
    problems: FormTexts | None = None,
    sent: FormTexts | None = None,
    comment: str = "",
    selection: Sequence[str] | None = None,
    decision: str = "",
) -> HTMLResponse:
    views = _alike(services, list(dict.fromkeys(ids)))
    questions = [seen_by(person, question) for question in views]
    calls = [content_of(question) for question in questions]
    differing = {change.name for call in calls for change in changes(calls[0], call)}
    schema = questions[0].response_schema
    meanwhile = dict(_meanwhile(services, person, views))
    obstacles = {
        question.id: obstacle
        for question in views
        if (obstacle := meanwhile.get(question.id) or _obstacle(services, person, question))
    }
    return page(
        request,
        "together.html",
        person,
        422 if problem or problems else 200,
        questions=questions,
        calls=calls,
        fields=marked(with_json(fields_of(schema, sent), sent), problems or {}),
        columns=[name for name in dict.fromkeys(chain(*calls)) if name in differing],
        usual=dict(_usual(calls, differing)),
        same=codec.without(calls[0], *differing),
        obstacles=obstacles,
        sums=sums_of(question for question in questions if question.id not in obstacles),
        receipts={receipt.interrupt_id: receipt for receipt in receipts},
        word=_word(questions),
        problem=problem,
        address=QuestionList.of(request.query_params).address,
        shown={
            question.id: request.app.state.form_tokens.issue(person, about=question.digest)
            for question in questions
            if person.may("read")
        },
        comment=comment,
        selection=ids if selection is None else selection,
        decision=decision,
    )
