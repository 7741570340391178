"""The inbox, and the page of one question."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from runner.operations.exports import Question, question_of
from runner.records.interrupts import Receipt
from runner.records.validation import one_line
from runner.server.access import DECIDE, SEE, Person
from runner.server.api.documents import bare_question
from runner.server.forms import answer_of, fields_of
from runner.server.pages.rendering import page
from runner.server.pages.runs import filters_of
from runner.server.services import Services, services

router = APIRouter(include_in_schema=False)

Served = Annotated[Services, Depends(services)]
Seen = Annotated[Person, Depends(SEE)]
Decides = Annotated[Person, Depends(DECIDE)]

ROWS = 50

ABOUT = 120
"""Characters of what a question is about in a row; its page has all."""


@dataclass(frozen=True, slots=True)
class Row:
    """A question in the inbox."""

    id: str
    name: str
    about: str
    run_id: str
    node_id: str
    asked_at: int
    expires_at: int
    who: str


def row_of(question: Question, person: Person) -> Row:
    """Return the row of a question; what it is about only for who may read it."""
    about = ""
    if person.may("read") and question.reason is not None:
        text = (
            question.reason
            if isinstance(question.reason, str)
            else json.dumps(question.reason, ensure_ascii=False)
        )
        about = one_line(text[: ABOUT + 1])
        about = about if len(text) <= ABOUT else about[:ABOUT] + "…"
    return Row(
        question.id,
        question.name,
        about,
        question.run_id,
        question.node_id,
        question.asked_at,
        question.expires_at,
        ", ".join(question.assignees) or "anyone",
    )


@router.get("/inbox")
def inbox(
    request: Request,
    person: Seen,
    served: Served,
    tab: Annotated[str, Query()] = "all",
    graph: Annotated[str, Query()] = "",
    name: Annotated[str, Query()] = "",
    run: Annotated[str, Query()] = "",
    cursor: Annotated[str, Query()] = "",
) -> HTMLResponse:
    """List open questions, oldest first."""
    listed = served.client.interrupts(
        graph=graph or None,
        name=name or None,
        run=run or None,
        assignee=person.principal.sub if tab == "mine" else None,
        limit=ROWS,
        cursor=cursor or None,
    )
    rows = [row_of(question_of(question), person) for question in listed]
    return page(
        request,
        "inbox.html",
        person,
        questions=rows,
        next=listed.next,
        tab="mine" if tab == "mine" else "all",
        filters=filters_of(request),
    )


@router.get("/q/{question_id}")
def show(request: Request, question_id: str, person: Seen, served: Served) -> HTMLResponse:
    """Show a question, open or not."""
    return _page(request, served, person, question_id)


@router.post("/q/{question_id}")
async def answer(request: Request, question_id: str, person: Decides, served: Served) -> Response:
    """Answer a question; the page then says what became of the answer."""
    form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    return await run_in_threadpool(_answer, request, served, person, question_id, form)


def _answer(
    request: Request, served: Services, person: Person, question_id: str, form: dict[str, str]
) -> Response:
    question = question_of(served.client.interrupt(question_id))
    sent = {name.removeprefix("f."): value for name, value in form.items() if name.startswith("f.")}
    response, problems = answer_of(question.response_schema, sent)
    if problems and question.is_open:
        return _page(request, served, person, question_id, sent=sent, problems=problems, status=422)
    receipt = served.client.respond(
        question_id, response, responder=person.principal.sub, digest=form.get("digest") or None
    )
    status = 200 if receipt.status in {"accepted", "counted"} else 409
    return _page(request, served, person, question_id, receipt=receipt, sent=sent, status=status)


def _page(
    request: Request,
    served: Services,
    person: Person,
    question_id: str,
    *,
    receipt: Receipt | None = None,
    sent: dict[str, str] | None = None,
    problems: dict[str, str] | None = None,
    status: int = 200,
) -> HTMLResponse:
    question = question_of(served.client.interrupt(question_id))
    snapshot = served.store.read(question.run_id)
    if not person.may("read"):
        question = bare_question(question)
    fields = [
        replace(part, problem=(problems or {}).get(part.name, ""))
        for part in fields_of(question.response_schema, sent)
    ]
    return page(
        request,
        "question.html",
        person,
        status,
        question=question,
        position=str(snapshot.events) if snapshot else "0",
        fields=fields,
        receipt=receipt,
    )
