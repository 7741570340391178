"""The inbox: the waiting questions with the people who decide, and questions decided together."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse

from runner.approvals.rule_text import deciders
from runner.approvals.rules import plain_name
from runner.definition.model import map_of
from runner.errors import RunnerError, StoreError, UsageError
from runner.immutable import immutable
from runner.operations.decided import closed_questions, decision_of
from runner.operations.questions import (
    QuestionView,
    check_alike,
    open_alike,
    read_question,
    read_questions,
)
from runner.records.interrupts import Decision, Interrupt, Receipt, tool_of
from runner.records.listings import InterruptQuery
from runner.records.validation import one_line
from runner.server.access import DecidesAll, Known, Lists, Person
from runner.server.answers import seen_by
from runner.server.deciding import decide, selectors_of
from runner.server.forms import Typed
from runner.server.pages.passkeys import takes_own_key
from runner.server.pages.question import shown_at_of
from runner.server.pages.rendering import back, page
from runner.server.pages.runs import filters_of
from runner.server.parameters import FormText, QueryText
from runner.server.problems import Problem
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)


ROWS = 50

ABOUT = 120
"""Characters of a question's subject in a row; its page has all of it."""

READ = 300
"""Maximum questions that are read for a page, in which a map's questions are folded into one row."""

MOST_TOGETHER = 300
"""Maximum questions that are decided together: each has three fields in one form."""

FOLDED = 3
"""Least number of questions of one map that are folded into one row."""

TABS = {"mine": "For me", "all": "All", "done": "Done"}

FILTERS = ("graph", "tool", "risk", "due", "age", "tag", "text", "name", "run")

SPANS = {"hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}

LONGEST = 200
"""Characters of a filter."""

VIEWS, MOST_BYTES = "runner_views", 3_800
"""The cookie with a person's saved views, and its size: a browser keeps 4 KB of a cookie."""


@immutable
class InboxRow:
    """A question in a reader's inbox; `number` equal questions of a map are folded into its row."""

    question: QuestionView
    graph: str
    node: str
    about: str
    who: str
    soon: bool
    together: bool
    number: int = 1


def row_of(services: Services, question: QuestionView, person: Person, now: int) -> InboxRow:
    """Return the row of a question."""
    place = question.place or {}
    if not place and (run := services.store.peek(question.run_id)) is not None:
        place = {"graph": run.graph_id, "path": run.path}
    decisions = set((question.rule or {}).get("decisions", ()))
    seen = seen_by(person, question)
    return InboxRow(
        seen,
        place.get("graph", ""),
        place.get("path", "") + question.node_id,
        _about(seen),
        deciders(question.rule, question.assignees)
        if question.is_open
        else ", ".join(map(plain_name, decision_of(question).by)),
        question.is_open and 0 < question.expires_at < now + SPANS["hour"],
        question.is_open and {"approve", "reject"} <= decisions,
    )


def _about(question: QuestionView) -> str:
    """Describe the subject of a question in a line: its call, else its reason."""
    if question.action:
        args = question.action.get("args") or {}
        arguments = [
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in args.items()
        ]
        text = f"{tool_of(question.action)}({', '.join(arguments)})"
    elif question.reason is None:
        return ""
    else:
        reason = question.reason
        text = reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)
    line = one_line(text[: ABOUT + 1])
    return line if len(text) <= ABOUT else line[:ABOUT] + "…"


def query_of(
    services: Services, person: Person, tab: str, filters: Mapping[str, str], now: int
) -> InterruptQuery:
    """Return the query of a tab with the filters of the address.

    Raises:
        Problem: a filter has a value that it does not take.
    """
    for name in ("due", "age"):
        if filters[name] and filters[name] not in SPANS:
            raise Problem(422, f"{name} takes {', '.join(SPANS)}, not {filters[name]!r:.40}.")
    reads = person.may("read")
    tag, _, value = filters["tag"].partition("=")
    return InterruptQuery(
        graph=filters["graph"] or None,
        run=filters["run"] or None,
        name=filters["name"] or None,
        until=now - SPANS[filters["age"]] if filters["age"] else None,
        selectors=selectors_of(services, person) if tab == "mine" else None,
        # People can't search texts that they can't read.
        tool=filters["tool"] or None if reads else None,
        risk=filters["risk"] or None,
        due=now + SPANS[filters["due"]] if filters["due"] else None,
        tag=(tag, value) if tag else None,
        text=filters["text"] or None if reads else None,
        # With the filter of age, questions are listed by age instead of urgency.
        urgent=not filters["age"],
    )


@router.get("/inbox")
def inbox(
    request: Request,
    person: Lists,
    services: Served,
    tab: QueryText = "",
    cursor: QueryText = "",
    *,
    fold: QueryText = "",
    by: QueryText = "",
    q: Annotated[list[str] | None, Query(max_length=MOST_TOGETHER)] = None,
) -> HTMLResponse:
    """List questions: first those that expire, then the oldest. It opens at the reader's own."""
    if tab and tab not in TABS:
        raise Problem(
            422, f"{tab!r:.40} is not a tab of the inbox; there are {', '.join(TABS)}."
        )
    now = round(time.time() * 1000)
    filters = {name: request.query_params.get(name, "")[:LONGEST] for name in FILTERS}
    empty = {**dict.fromkeys(FILTERS, ""), "graph": person.graph and filters["graph"]}
    open_tabs = [name for name in TABS if name != "done"]
    counts = services.store.count_questions(
        [query_of(services, person, name, empty, now) for name in open_tabs]
    )
    if not tab:
        tab = "mine" if counts[0] and filters == empty else "all"
    query = query_of(services, person, tab, filters, now)
    following: str | None = None
    if tab == "done":
        principal = person.principal if by == "me" else None
        closed = closed_questions(services.store, query, ROWS, cursor, by=principal)
        rows = [
            row_of(services, read_question(services.store, one), person, now) for one in closed
        ]
        following = closed.next
    else:
        groups, following = _folded(services, query, cursor, folds=fold != "no")
        views = read_questions(services.store, [group[0] for group in groups])
        rows = [
            replace(row_of(services, view, person, now), number=len(group))
            for view, group in zip(views, groups, strict=True)
        ]
    together = [row for row in rows if row.together] if person.may("decide") else []
    return page(
        request,
        "inbox.html",
        person,
        rows=rows,
        now=now,
        next=following,
        tab=tab,
        tabs=TABS,
        counts=dict(zip(open_tabs, counts, strict=True)),
        filtered=any(filters.values()),
        bounded=query.searches,
        spans=list(SPANS),
        filters=filters_of(request),
        views=saved_views(request),
        address=_address(dict(request.query_params)),
        together=bool(together),
        # If a name was filtered, they share it; the rest is compared when they are shown.
        alike=together[0].question.id if len(together) > 1 and filters["name"] else "",
        picked=q or [],
    )


def _folded(
    services: Services, query: InterruptQuery, cursor: str, *, folds: bool
) -> tuple[list[list[Interrupt]], str | None]:
    """Read the questions of a page, with each map's as one group, and the cursor of the next page."""
    groups: dict[tuple[str, ...], list[Interrupt]] = {}
    following: str | None = cursor
    read = 0
    while following is not None:
        batch = services.store.open_interrupts(query, ROWS, following)
        following, read = batch.next, read + len(batch)
        for question in batch:
            same = map_of(question.node_id) if folds else ""
            key = (
                question.run_id,
                same,
                question.name,
                tool_of(question.action),
                question.risk,
            )
            groups.setdefault(key if same else (question.id,), []).append(question)
        if query.searches or read >= READ or len(groups) >= ROWS:
            break
    rows = [
        row
        for group in groups.values()
        for row in ([group] if len(group) >= FOLDED else [[question] for question in group])
    ]
    return rows, following


# -- saved views ---------------------------------------------------------------------------------------------


def _address(query: Mapping[str, str]) -> str:
    """Return the part of an address that a view keeps: its tab and filters, nothing else."""
    values = {name: query[name] for name in ("tab", *FILTERS) if query.get(name)}
    return urlencode(values)


def saved_views(request: Request) -> list[tuple[str, str]]:
    """Read the names and addresses of the views that the browser has kept; none if they are malformed."""
    try:
        entries = json.loads(base64.urlsafe_b64decode(request.cookies.get(VIEWS, "")))
        return [(str(name), _address(dict(parse_qsl(query)))) for name, query in entries]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


@router.post("/inbox/views")
def save_view(
    request: Request,
    _: Known,
    name: Annotated[str, Form(min_length=1, max_length=40)],
    address: FormText = "",
    action: FormText = "save",
) -> Response:
    """Keep the filters of the page under a name in this browser, or remove the view of that name."""
    view_address = _address(dict(parse_qsl(address)))
    views = [view for view in saved_views(request) if view[0] != name]
    if action == "save":
        views.append((name, view_address))
    text = base64.urlsafe_b64encode(json.dumps(views).encode()).decode()
    if len(text) > MOST_BYTES:
        raise Problem(422, "A browser keeps no more views than these; remove one first.")
    response = back(request, f"/inbox?{view_address}" if view_address else "/inbox")
    secure = request.url.scheme == "https"
    response.set_cookie(
        VIEWS, text, max_age=31_536_000, httponly=True, samesite="lax", secure=secure
    )
    return response


# -- several questions together ------------------------------------------------------------------------------


@router.get("/inbox/together")
def together(
    request: Request,
    person: DecidesAll,
    services: Served,
    q: Annotated[list[str] | None, Query(max_length=MOST_TOGETHER)] = None,
    like: QueryText = "",
    tab: QueryText = "all",
) -> HTMLResponse:
    """Show questions that are alike in full, with one form for all: those picked, or all that match."""
    ids = q or []
    if like:
        filters = {name: request.query_params.get(name, "")[:LONGEST] for name in FILTERS}
        query = query_of(services, person, tab, filters, round(time.time() * 1000))
        ids = [one.id for one in open_alike(services.store, like, query, MOST_TOGETHER)]
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
