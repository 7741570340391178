"""The inbox, and the page of one question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from runner.operations.exports import Question, all_events, event_of, question_of
from runner.operations.questions import QuestionView, read_question, read_questions
from runner.records.approvals import plain_name
from runner.records.interrupts import Receipt, ReceiptStatus
from runner.records.validation import one_line
from runner.server.access import DECIDE, SEE, Person
from runner.server.api.documents import bare_question
from runner.server.browser import FormTokens
from runner.server.deciding import Decision, decide
from runner.server.deciding import act as deed
from runner.server.forms import answer_of, fields_of
from runner.server.pages.rendering import page
from runner.server.pages.runs import filters_of
from runner.server.problems import Problem
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
    votes: str


def row_of(question: QuestionView, person: Person) -> Row:
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
        question.claim or ", ".join(question.assignees) or ("by rule" if question.rule else "anyone"),
        f"{question.have} of {question.need}" if question.rule else "",
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
    rows = [row_of(view, person) for view in read_questions(served.store, listed)]
    return page(
        request,
        "inbox.html",
        person,
        questions=rows,
        next=listed.next,
        tab="mine" if tab == "mine" else "all",
        filters=filters_of(request),
    )


CLAIMED = 600
"""Seconds of a claim that is made on the page."""

# -- one question ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The second step of a decision: `typed` asks for the word to be typed, where the risk is high."""

    decision: str
    comment: str
    word: str
    typed: bool
    arguments: Any = None
    changes: tuple[tuple[str, Any, Any], ...] = ()
    problem: str = ""

    @property
    def pattern(self) -> str:
        """The word as a regular expression of HTML."""
        return re.sub(r"([\\^$.*+?()\[\]{}|/-])", r"\\\1", self.word)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows besides the question: what was sent with the form, and what became of it."""

    receipt: Receipt | None = None
    sent: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    confirm: Confirmation | None = None
    status: int = 200


@router.get("/q/{question_id}")
def show(request: Request, question_id: str, person: Seen, served: Served) -> HTMLResponse:
    """Show a question, open or not."""
    return _page(request, served, person, question_id, Shown())


@router.post("/q/{question_id}")
async def answer(request: Request, question_id: str, person: Decides, served: Served) -> Response:
    """Decide a question; the page then says what became of it."""
    form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    shown_at = _shown_at(request, person, form.get("shown", ""), form.get("digest", ""))
    shown = await run_in_threadpool(_decided, served, person, question_id, form, shown_at)
    return await run_in_threadpool(_page, request, served, person, question_id, shown)


@router.post("/q/{question_id}/{action}")
def act(
    request: Request,
    question_id: str,
    action: str,
    person: Decides,
    served: Served,
    comment: Annotated[str, Form()] = "",
    shown: Annotated[str, Form()] = "",
    digest: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Claim, release or comment a question."""
    options: dict[str, dict[str, Any]] = {
        "claim": {"ttl": CLAIMED},
        "release": {},
        "comment": {"comment": comment},
    }
    if action not in options:
        raise Problem(404, f"There is no action {action!r:.40}.")
    shown_at = _shown_at(request, person, shown, digest)
    receipt = deed(served, person, question_id, action, shown_at=shown_at, **options[action])
    good = receipt.status is ReceiptStatus.ACCEPTED
    return _page(request, served, person, question_id, Shown(receipt, status=200 if good else 409))


def _shown_at(request: Request, person: Person, token: str, digest: str) -> int:
    """Return when this server has shown the question of a digest to a person, in ms; 0 where it has not."""
    tokens: FormTokens = request.app.state.form_tokens
    return tokens.issued_at(token, person, about=digest) * 1000


def _decided(
    served: Services, person: Person, question_id: str, form: dict[str, str], shown_at: int
) -> Shown:
    question = question_of(served.client.interrupt(question_id))
    sent = {name.removeprefix("f."): value for name, value in form.items() if name.startswith("f.")}
    sent |= {name: form[name] for name in ("comment", "arguments") if name in form}
    word = form.get("decision", "respond")
    if word == "reject" and not form.get("comment", "").strip() and question.is_open:
        return Shown(sent=sent, problem="Say in the comment why you reject it.", status=422)
    response: Any = None
    if word == "respond":
        response, problems = answer_of(question.response_schema, sent)
        if problems and question.is_open:
            return Shown(sent=sent, problems=problems, status=422)
    elif word == "edit":
        try:
            response = json.loads(form.get("arguments", ""))
        except ValueError as error:
            return Shown(sent=sent, problem=f"The arguments are not JSON: {error}.", status=422)
    step = _second_step(question, word, response, form)
    if step is not None and question.is_open:
        return Shown(sent=sent, confirm=step, status=422 if step.problem else 200)
    digest, comment = form.get("digest") or None, form.get("comment", "")
    decided = Decision(word, response, digest, comment, shown_at=shown_at)
    receipt = decide(served, person, question_id, decided)
    good = receipt.status in {ReceiptStatus.ACCEPTED, ReceiptStatus.COUNTED}
    return Shown(receipt, sent, status=200 if good else 409)


def _second_step(
    question: Question, word: str, response: Any, form: Mapping[str, str]
) -> Confirmation | None:
    """Return what is still to be confirmed: an edit, and any approval at high risk."""
    high = question.risk == "high" and word != "reject"
    if not (high or word == "edit"):
        return None
    action = question.action or {}
    name = str(action.get("tool", question.name))
    if form.get("confirmed") and (not high or form.get("typed") == name):
        return None
    problem = f"Type {name} exactly." if form.get("confirmed") else ""
    edited = response if word == "edit" else None
    changes = tuple(_changes(action.get("args", {}), edited)) if isinstance(edited, dict) else ()
    return Confirmation(word, form.get("comment", ""), name, high, edited, changes, problem)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name) or (name in before) != (name in after):
            yield name, before.get(name, "(none)"), after.get(name, "(none)")


def _page(request: Request, served: Services, person: Person, question_id: str, shown: Shown) -> HTMLResponse:
    question = read_question(served.store, served.client.interrupt(question_id))
    snapshot = served.store.read(question.run_id)
    fields = [
        replace(part, problem=shown.problems.get(part.name, ""))
        for part in fields_of(question.response_schema, shown.sent or None)
    ]
    decisions = set((question.rule or {}).get("decisions", ("respond",)))
    # A call is approved, edited or rejected; only a question without one is answered with words.
    decisions -= {"respond"} if question.action else {"edit"}
    return page(
        request,
        "question.html",
        person,
        shown.status,
        question=question if person.may("read") else bare_question(question),
        shown=request.app.state.form_tokens.issue(person, about=question.digest)
        if person.may("read")
        else "",
        position=str(snapshot.events) if snapshot else "0",
        fields=fields,
        decisions=decisions,
        receipt=shown.receipt,
        confirm=shown.confirm,
        comment=shown.sent.get("comment", ""),
        edited=shown.sent.get("arguments", ""),
        problem=shown.problem,
        comments=_comments(served, question) if question.rule and person.may("read") else [],
    )


def _comments(served: Services, question: Question) -> list[dict[str, Any]]:
    """Return what people have said about a question: events of its run."""
    return [
        {"who": plain_name(event.data["by"]), "at": event.at, "text": event.data["comment"]}
        for event in map(event_of, all_events(served.store, question.run_id))
        if event.kind == "interrupt.commented" and event.detail == question.id
    ]
