"""Open questions by a person's part in them: what waits for them, what they voted on, what they asked for."""

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
from runner.operations.decided import BATCH, kept
from runner.operations.questions import QuestionView, read_question, read_questions
from runner.records.interrupts import Interrupt
from runner.records.listings import InterruptQuery, Page

Part = Literal["mine", "voted", "requested"]
"""A person's part in open questions: they may vote and have not, they voted, or they started the run."""


def own_questions(
    engine: Engine,
    voter: Voter,
    part: Part,
    query: InterruptQuery,
    limit: int,
    *,
    cursor: str = "",
) -> Page[QuestionView]:
    """List the open questions that match a query and in which a voter has a part."""
    if part != "requested":
        query = _of(engine, voter, query)
    return kept(
        partial(engine.store.open_interrupts, query),
        partial(_own, engine, voter, part),
        query,
        limit,
        cursor,
    )


def count_waiting(engine: Engine, voter: Voter, query: InterruptQuery) -> int:
    """Count the open questions that wait for a voter: exactly up to `BATCH`, above that at most."""
    query = _of(engine, voter, query)
    page = engine.store.open_interrupts(query, BATCH)
    fitting = len(_own(engine, voter, "mine", page))
    if page.next is None:
        return fitting
    return engine.store.count_questions([query])[0] - len(page) + fitting


def _of(engine: Engine, voter: Voter, query: InterruptQuery) -> InterruptQuery:
    names = directory.selectors_of(voter, "")
    lent_names = lent_selectors(engine, voter.principal)
    return replace(query, selectors=[*names, *lent_names])


def _own(
    engine: Engine, voter: Voter, part: Part, questions: Iterable[Interrupt]
) -> list[QuestionView]:
    store, key = engine.store, voter.principal.key
    questions = list(questions)
    fitting = []
    for question, view in zip(questions, read_questions(store, questions), strict=True):
        if part == "requested":
            requester = {} if question.rule else store.requester(question.run_id) or {}
            names = (requester.get("principal"), *requester.get("on_behalf_of", ()))
            is_own = key in {question.requester, *question.on_behalf_of, *names}
        else:
            has_votes = view.have or view.against or view.stage
            votes = read_question(store, question).votes if has_votes else ()
            has_voted = any(vote.by == key and not vote.is_void for vote in votes)
            is_own = has_voted if part == "voted" else not has_voted
            is_own = is_own and (has_voted or not why_barred(engine, voter, view))
        if is_own:
            fitting.append(view)
    return fitting


def why_barred(engine: Engine, voter: Voter, question: QuestionView) -> str:
    """Return why a voter may not decide a question, as far as that is known before they vote; else ""."""
    key, names = voter.principal.key, question.assignees
    if question.rule is None:
        stand_ins = {plain_name(absence.to) for absence in question.away}
        may = not names or plain_name(key) in {*names, *stand_ins}
        return "" if may else f"only {', '.join(names)} may"
    rule = Rule.thawed(question.rule)
    facts = VoterFacts(
        (question.requester, *question.on_behalf_of),
        answerers(engine.store, rule, question),
        escalated(question, round(time.time() * 1000)),
        question.stage
        if key in {*question.delegated, *(absence.to for absence in question.away)}
        else None,
        gave=key in question.delegated.values(),
        plain_issuer=engine.plain_issuer,
    )
    why = barred(rule, voter, facts, question.stage)
    # The door reports a login that is too old by itself, with a link to log in again.
    return "" if why == unsure(rule, voter, question.stage) else why
