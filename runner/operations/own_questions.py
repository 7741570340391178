"""Open questions by a person's part in them: to decide, voted on, or asked by a run that they started."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Literal

from runner.approvals import directory
from runner.approvals.ballots import escalated
from runner.approvals.rules import Rule, Voter, VoterFacts, barred, plain_name, unsure
from runner.approvals.visit_judge import answerers
from runner.approvals.votes import lent_selectors
from runner.execution.engine import Engine
from runner.operations.decided import BATCH, filter_pages
from runner.operations.questions import QuestionView, read_question, read_questions
from runner.records.interrupts import Interrupt
from runner.records.listings import InterruptQuery, Page
from runner.store.interface import Store

Part = Literal["mine", "voted", "requested"]
"""A person's part in open questions: they may vote and have not, they voted, or they started the run."""


def own_questions(
    engine: Engine,
    voter: Voter,
    kind: Part,
    query: InterruptQuery,
    limit: int,
    *,
    cursor: str,
) -> Page[QuestionView]:
    """List the open questions that match a query and in which a voter has a part."""
    if kind != "requested":
        query = _narrow(engine, voter, query)
    return filter_pages(
        partial(engine.store.open_interrupts, query),
        partial(_select, engine, voter, kind),
        query,
        limit,
        cursor,
    )


def count_waiting(
    engine: Engine, voter: Voter, query: InterruptQuery
) -> tuple[int, Page[QuestionView]]:
    """Count the open questions that wait for a voter, and return those among the first `BATCH`.

    The count is exact up to `BATCH`, above that an upper bound.
    """
    query = _narrow(engine, voter, query)
    page = engine.store.open_interrupts(query, BATCH)
    waiting = Page(_select(engine, voter, "mine", page), page.next)
    beyond = 0 if page.next is None else engine.store.count_questions([query])[0] - len(page)
    return beyond + len(waiting), waiting


def _narrow(engine: Engine, voter: Voter, query: InterruptQuery) -> InterruptQuery:
    names = directory.selectors_of(voter, "")
    lent_names = lent_selectors(engine, voter.principal)
    return replace(query, selectors=["anyone", *names, *lent_names])


def _select(
    engine: Engine, voter: Voter, kind: Part, questions: Iterable[Interrupt]
) -> list[QuestionView]:
    return [
        view
        for view in read_questions(engine.store, questions)
        if _has_part(engine, voter, kind, view)
    ]


def _has_part(engine: Engine, voter: Voter, kind: Part, question: QuestionView) -> bool:
    key = voter.principal.key
    if kind == "requested":
        return key in {question.requester, *question.on_behalf_of}
    has_vote = has_voted(engine.store, question, key)
    return (
        has_vote if kind == "voted" else not (has_vote or why_barred(engine, voter, question))
    )


def has_voted(store: Store, question: QuestionView, key: str) -> bool:
    """Return whether a principal has a vote on an open question; a vote that an edit voided doesn't count."""
    if not (question.have or question.against or question.stage):
        return False
    (stored,) = store.interrupts([question.id])
    votes = read_question(store, stored).votes if stored else ()
    return any(vote.by == key and not vote.is_void for vote in votes)


def why_barred(engine: Engine, voter: Voter, question: QuestionView) -> str:
    """Return why a voter may not decide a question, as far as that is known before they vote; else ""."""
    key = voter.principal.key
    names = question.assignees
    if question.rule is None:
        stand_ins = {plain_name(absence.to) for absence in question.away}
        may = not names or plain_name(key) in {*names, *stand_ins}
        return "" if may else f"only {', '.join(names)} may"
    if question.undo:
        return f"{plain_name(question.undo.by)} has decided it"
    rule = Rule.thawed(question.rule)
    facts = VoterFacts(
        question.requesters,
        answerers(engine.store, rule, question),
        escalated(question, round(time.time() * 1000)),
        question.stage
        if key in {*question.delegated, *(absence.to for absence in question.away)}
        else None,
        gave=key in question.delegated.values(),
        plain_issuer=engine.plain_issuer,
    )
    why = barred(rule, voter, facts, question.stage)
    # The door itself reports a login that is too old, with a link to log in again.
    return why if why and why != unsure(rule, voter, question.stage) else ""
