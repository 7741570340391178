"""The inbox: the waiting questions with the people who decide, and questions decided together."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Form, Query, Request, Response

from runner.approvals import directory
from runner.approvals.absences import Absence
from runner.approvals.rule_text import deciders
from runner.approvals.rules import plain_name
from runner.definition.model import map_of
from runner.immutable import immutable
from runner.operations.decided import decision_of
from runner.operations.questions import QuestionView
from runner.records.interrupts import tool_of
from runner.records.listings import InterruptQuery, Page, RunSummary
from runner.records.validation import one_line
from runner.server.access import Known, Lists, Person
from runner.server.answers import seen_by
from runner.server.deciding import count_mine
from runner.server.pages.amounts import sums_of
from runner.server.pages.bulk_decisions import MOST_TOGETHER
from runner.server.pages.question_list import FILTERS, ROWS, SPANS, TABS, QuestionList
from runner.server.pages.rendering import back, page
from runner.server.pages.runs import filters_of
from runner.server.parameters import FormText, QueryText
from runner.server.problems import Problem
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)


ABOUT = 120
"""Characters of a question's subject in a row; its page has all of it."""

READ = 300
"""Maximum questions that are read for a page, in which a map's questions are folded into one row."""

FEW = 10
"""Decided questions and runs that a search shows below the open questions."""

FOLDED = 3
"""Least number of questions of one map that are folded into one row."""

VIEWS, MOST_BYTES = "runner_views", 3_800
"""The cookie with a person's saved views, and its size: a browser keeps 4 KB of a cookie."""


@immutable
class InboxRow:
    """A question in a reader's inbox; `about` is its subject, if its title is only its name.

    `number` equal questions of a map are folded into its row.
    """

    question: QuestionView
    about: str
    who: str
    soon: bool
    together: bool
    number: int


def row_of(question: QuestionView, person: Person, now: int, number: int = 1) -> InboxRow:
    """Return the row of a question, or of several equal ones of a map."""
    decisions = set((question.rule or {}).get("decisions", ()))
    seen = seen_by(person, question)
    return InboxRow(
        seen,
        _about(seen) if seen.title == seen.name else "",
        deciders(question.rule, question.assignees)
        if question.is_open
        else ", ".join(map(plain_name, decision_of(question).by)),
        question.is_open and 0 < question.expires_at < now + SPANS["hour"],
        question.is_open and (not decisions or {"approve", "reject"} <= decisions),
        number,
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


@router.get("/inbox")
def inbox(
    request: Request,
    person: Lists,
    services: Served,
    *,
    fold: QueryText = "",
    q: Annotated[list[str] | None, Query(max_length=MOST_TOGETHER)] = None,
) -> Response:
    """List questions: first those that expire, then the oldest. It opens at the reader's own questions."""
    questions = QuestionList.of(request.query_params)
    # A search by text also shows runs, whose start has no notice.
    etag = "" if questions.filters["text"] else _version(request, person, services)
    if etag and etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"etag": etag})
    filters = questions.filters
    empty = {**dict.fromkeys(FILTERS, ""), "graph": person.graph and filters["graph"]}
    every = InterruptQuery(graph=empty["graph"] or None, urgent=True)
    mine, waiting = count_mine(services, person, every)
    tab = questions.tab or ("mine" if mine and filters == empty else "all")
    questions = replace(questions, tab=tab)
    query = questions.query(person)
    now = round(time.time() * 1000)
    folds = fold != "no" and tab != "done"
    batch = waiting if tab == "mine" and filters == empty and not questions.cursor else None
    groups, following = _folded(services, person, questions, batch, folds=folds)
    rows = [row_of(group[0], person, now, len(group)) for group in groups]
    closed_rows: list[InboxRow] = []
    runs: Sequence[RunSummary] = ()
    if tab == "all" and query.text and not questions.cursor:
        closed_rows = [
            row_of(item, person, now)
            for item in replace(questions, tab="done").load(services, person, FEW)
        ]
        runs = services.client.runs(graph=query.graph, text=query.text, limit=FEW).items
    response = page(
        request,
        "inbox.html",
        person,
        rows=rows,
        sums=sums_of(row.question for row in rows if row.number == 1),
        decided=closed_rows,
        runs=runs,
        next=following,
        tab=tab,
        tabs=TABS,
        counts={"mine": mine, "all": services.store.count_questions([every])[0]},
        searches=query.searches,
        filters=filters_of(request),
        views=saved_views(request),
        list=questions,
        picked=q,
    )
    if etag:
        response.headers["etag"] = etag
    return response


def _version(request: Request, person: Person, services: Services) -> str:
    """Return a list's ETag, from all that it depends on but the rows: each change of one has a notice."""
    facts = (
        services.ticker.now(),
        time.time() // 60,
        sorted(services.store.signed(Absence).items()),
        directory.selectors_of(person.voter(0), services.settings.directory),
        person.principal,
        sorted(person.roles),
        person.graph,
        request.url,
    )
    return f'"{hashlib.sha256(repr(facts).encode()).hexdigest()}"'


def _folded(
    services: Services,
    person: Person,
    questions: QuestionList,
    batch: Page[QuestionView] | None,
    *,
    folds: bool,
) -> tuple[list[list[QuestionView]], str | None]:
    """Read the questions of a page, with each map's as one group, and the cursor of the next page.

    `batch` has the first of them, if they were read before.
    """
    groups: dict[tuple[str, ...], list[QuestionView]] = {}
    following: str | None = questions.cursor
    read = 0
    while following is not None:
        if batch is None:
            rows_left = ROWS - read % ROWS
            batch = replace(questions, cursor=following).load(services, person, rows_left)
        following = batch.next
        read = read + len(batch)
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
        batch = None
        if questions.query(person).searches or read >= READ or len(groups) >= ROWS:
            break
    return [
        row
        for group in groups.values()
        for row in ([group] if len(group) >= FOLDED else [[question] for question in group])
    ], following


# -- saved views ---------------------------------------------------------------------------------------------


def saved_views(request: Request) -> list[tuple[str, str]]:
    """Read the names and addresses of the views that the browser has kept; none if they are malformed."""
    try:
        entries = json.loads(base64.urlsafe_b64decode(request.cookies.get(VIEWS, "")))
        return [(str(name), _view(query)) for name, query in entries]
    except (ValueError, TypeError, AttributeError, RecursionError, Problem):
        return []


def _view(query: str) -> str:
    """Return the part of an address that a view keeps: its tab and filters, nothing else."""
    return QuestionList.of(dict(parse_qsl(query))).view


@router.post("/inbox/views")
def save_view(
    request: Request,
    _: Known,
    name: Annotated[str, Form(min_length=1, max_length=40)],
    address: FormText = "",
    action: FormText = "save",
) -> Response:
    """Keep the filters of the page under a name in this browser, or remove the view of that name."""
    view_address = _view(address)
    views = [view for view in saved_views(request) if view[0] != name]
    if action == "save":
        views.append((name, view_address))
    text = base64.urlsafe_b64encode(json.dumps(views).encode()).decode()
    if len(text) > MOST_BYTES:
        raise Problem(422, "This browser can't store more views; remove one first.")
    response = back(request, f"/inbox?{view_address}" if view_address else "/inbox")
    response.set_cookie(
        VIEWS,
        text,
        max_age=31_536_000,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return response
