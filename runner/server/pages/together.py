"""Questions that are alike, decided together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse

from runner.errors import RunnerError, StoreError, UsageError
from runner.operations.questions import QuestionView, check_alike, open_alike, read_questions
from runner.records.interrupts import Decision, Receipt, tool_of
from runner.records.listings import InterruptQuery, Page
from runner.server.access import DecidesAll, Person
from runner.server.answers import seen_by
from runner.server.deciding import decide
from runner.server.forms import Typed
from runner.server.pages.passkeys import takes_own_key
from runner.server.pages.question import shown_at_of
from runner.server.pages.question_list import QuestionList
from runner.server.pages.rendering import page
from runner.server.parameters import FormText, QueryText
from runner.server.problems import Problem
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)

MOST_TOGETHER = 300
"""Maximum questions that are decided together: each has three fields in one form."""


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

        def read(query: InterruptQuery, limit: int, cursor: str) -> Page[QuestionView]:
            return replace(questions, cursor=cursor).read(services, person, limit, query)

        query = questions.query(person)
        ids = [one.id for one in open_alike(services.store, like, query, MOST_TOGETHER, read)]
    return _together(request, services, person, ids)


@router.post("/inbox/together")
def decide_together(
    request: Request,
    person: DecidesAll,
    services: Served,
    q: Annotated[list[str], Form(max_length=MOST_TOGETHER)],
    digest: Annotated[list[str], Form(max_length=MOST_TOGETHER)],
    shown: Annotated[list[str] | None, Form(max_length=MOST_TOGETHER)] = None,
    *,
    decision: FormText,
    comment: Typed = "",
    typed: Typed = "",
) -> HTMLResponse:
    """Decide questions together; each has its own receipt."""
    if decision not in {"approve", "reject"} or len(q) != len(digest) or not all(digest):
        raise Problem(
            422, "Approve or reject, with the digest of each question; nothing was done."
        )
    questions = _alike(services, q)
    phrase = _word(questions)
    problem = ""
    if decision == "reject" and not comment.strip():
        problem = "Say in the comment why you reject them."
    elif decision == "approve" and phrase and typed != phrase:
        problem = f"Type {phrase} exactly."
    if problem:
        return _together(request, services, person, q, problem=problem, comment=comment)
    receipts = []
    for name, about, token in zip(q, digest, [*(shown or []), *q], strict=False):
        shown_at = shown_at_of(request, person, token, about)
        vote = Decision(
            name, None, None, None, about, decision, comment=comment, shown_at=shown_at
        )
        receipts.append(_receipt(services, person, vote))
    return _together(request, services, person, q, receipts=receipts)


def _alike(services: Services, ids: Sequence[str]) -> list[QuestionView]:
    """Read questions that may be decided together.

    Raises:
        UsageError: they differ in more than their runs and their arguments, or have no rule.
    """
    stored_questions = [
        question for question in services.store.interrupts(ids) if question is not None
    ]
    check_alike(
        services.store, ids, {question.id: question.digest for question in stored_questions}
    )
    for question in stored_questions:
        if question.rule is None:
            raise UsageError(f"{question.name} takes its own answer: open it alone.")
    return read_questions(services.store, stored_questions)


def _word(questions: Sequence[QuestionView]) -> str:
    """Return the word to type to approve questions; "" if their risk is not high."""
    question = questions[0]
    return (tool_of(question.action) or question.name) if question.risk == "high" else ""


def _receipt(services: Services, person: Person, decision: Decision) -> Receipt | RunnerError:
    try:
        return decide(services, person, decision)
    except StoreError:
        raise
    except RunnerError as error:
        return error


def _together(
    request: Request,
    services: Services,
    person: Person,
    ids: Sequence[str],
    *,
    receipts: Sequence[Receipt | RunnerError] = (),
    problem: str = "",
    comment: str = "",
) -> HTMLResponse:
    ids = list(dict.fromkeys(ids))
    questions = _alike(services, ids)
    return page(
        request,
        "together.html",
        person,
        422 if problem else 200,
        questions=[seen_by(person, question) for question in questions],
        receipts=dict(zip(ids, receipts, strict=True)) if receipts else {},
        word=_word(questions),
        alone=any(map(takes_own_key, questions)),
        problem=problem,
        comment=comment,
        shown={
            question.id: request.app.state.form_tokens.issue(person, about=question.digest)
            for question in questions
            if person.may("read")
        },
        open=[question.id for question in questions if question.is_open],
    )
