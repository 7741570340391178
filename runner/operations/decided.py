"""Closed questions as people see them afterwards: who decided what, when, on what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.approvals.rules import Principal, plain_name
from runner.errors import UsageError
from runner.operations.questions import QuestionView
from runner.records.interrupts import Interrupt, title_of
from runner.records.listings import InterruptQuery
from runner.records.run import EventKind
from runner.store.interface import Event, Store
from runner.store.shared import Shared

VERBS = {
    "approve": "approved",
    "edit": "approved with changes",
    "reject": "rejected",
    "respond": "answered",
}

CLOSING = {"decided", "expired", "withdrawn"}
"""Types of entries of the audit that close a question."""

CLOSING_NOTICES = {
    EventKind.INTERRUPT_ANSWERED,
    EventKind.INTERRUPT_EXPIRED,
    EventKind.INTERRUPT_WITHDRAWN,
}

SCANNED, CANDIDATES = 5_000, 500
"""Audit entries and notices of a partition that are examined, and closed questions that are read, at most."""


@dataclass(frozen=True, slots=True)
class DecisionView:
    """A closed question: `decision` is how it was decided, `by` are those whose votes or answer did that.

    `title` says in a sentence what was decided. `have` and `need` are the weights of their votes; 0 for a
    question without a rule. `comments` are by person.
    """

    id: str
    run_id: str
    node_id: str
    name: str
    title: str
    status: str
    decision: str
    by: tuple[str, ...]
    have: int
    need: int
    answered_at: int
    comments: Mapping[str, str]

    @property
    def sentence(self) -> str:
        """Who decided what, in words: "approved by ben, eva, 2 of 2"."""
        verb = VERBS.get(self.decision) or self.status
        people = f" by {', '.join(map(plain_name, self.by))}" if self.by else ""
        return verb + people + (f", {self.have} of {self.need}" if self.need else "")


def decisions_of(
    questions: Iterable[Interrupt], events: Iterable[Event]
) -> tuple[DecisionView, ...]:
    """Return the closed ones of a run's questions, as they were closed; its events have the votes."""
    votes: dict[str, dict[str, Mapping[str, Any]]] = {}
    for event in events:
        if event.kind == EventKind.INTERRUPT_VOTED and isinstance(event.data, Mapping):
            votes.setdefault(event.detail, {})[event.data["by"]] = event.data
    closed = [question for question in questions if not question.is_open]
    views = [_decision(question, votes.get(question.id, {})) for question in closed]
    return tuple(sorted(views, key=lambda view: view.answered_at))


def _decision(question: Interrupt, votes: Mapping[str, Mapping[str, Any]]) -> DecisionView:
    """Describe one; `votes` has the data of each voter's last vote, in their order."""
    is_reject = question.decision == "reject"
    deciding = {
        key: vote
        for key, vote in votes.items()
        if (vote["decision"] == "reject" if is_reject else vote.get("effect") == question.effect)
        and question.decision
    }
    last = next(reversed(deciding.values()), {})
    responder = (question.responder,) if question.responder else ()
    return DecisionView(
        question.id,
        question.run_id,
        question.node_id,
        question.name,
        title_of(question),
        str(question.status),
        question.decision or ("respond" if question.status == "answered" else ""),
        tuple(deciding) or responder,
        last.get("against" if is_reject else "have", 0),
        0 if is_reject else last.get("need", 0),
        question.answered_at,
        {key: vote["comment"] for key, vote in votes.items() if vote.get("comment")},
    )


def decision_of(view: QuestionView) -> DecisionView:
    """Return how a question was closed, by its votes."""
    numbers = {"have": view.have, "need": view.need, "against": view.against}
    votes = {
        vote.by: {
            "decision": vote.decision,
            "effect": vote.effect,
            "comment": vote.comment,
            **numbers,
        }
        for vote in view.votes
        if not vote.is_void
    }
    return _decision(view, votes)


def closed_questions(
    shared: Shared,
    query: InterruptQuery,
    limit: int,
    *,
    by: Principal | None = None,
    status: str = "",
) -> list[Interrupt]:
    """Return questions that were decided, expired or withdrawn lately, the newest first.

    Those of runs with an audit are found there, others in the newest notices; with `query.run` all of that
    run. `by` is one who voted or answered.
    """
    store = shared.store
    voters: dict[str, set[str]] = {}
    if query.run:
        questions: Sequence[Interrupt | None] = list(_of_family(store, query.run))
        for event in store.events(query.run, limit=SCANNED) if by else ():
            if event.kind == EventKind.INTERRUPT_VOTED and isinstance(event.data, Mapping):
                voters.setdefault(event.detail, set()).add(event.data["by"])
    else:
        names = dict.fromkeys(
            notice.detail
            for notice in shared.notices.latest(SCANNED)
            if notice.kind in CLOSING_NOTICES
        )
        for entry in _entries(shared):
            question_id = str(entry.get("question", ""))
            if entry["type"] == "voted":
                voters.setdefault(question_id, set()).add(str(entry.get("actor")))
            elif entry["type"] in CLOSING:
                names[question_id] = None
        if by is not None:
            names = dict.fromkeys(
                name for name in names if by.key in voters.get(name, ()) or name not in voters
            )
        questions = store.interrupts(list(names)[:CANDIDATES])
    closed = [question for question in questions if question is not None and not question.is_open]
    runs = {run_id: store.peek(run_id) for run_id in {question.run_id for question in closed}}
    query = replace(query, tag=None)  # what ended may have none any more
    fitting = [
        question
        for question in closed
        if (run := runs[question.run_id])
        and query.fits(question, run.graph_id, run.root, {})
        and status in {"", str(question.status)}
        and (by is None or by.key in {*voters.get(question.id, ()), _answerer(question)})
    ]
    fitting.sort(key=lambda question: question.answered_at, reverse=True)
    return fitting[:limit]


def _of_family(store: Store, run_id: str) -> Iterator[Interrupt]:
    """Read the questions of a run and of those inside it."""
    snapshot = store.read(run_id)
    if snapshot is not None:
        yield from snapshot.interrupts
        for child in store.children(run_id):
            yield from _of_family(store, child)


def _entries(shared: Shared) -> Iterator[Mapping[str, Any]]:
    for log in shared.store.audit_logs:
        for text in log.newest(SCANNED):
            yield json.loads(text)


def _answerer(question: Interrupt) -> str:
    try:
        return Principal.read(question.responder or "").key
    except UsageError:
        return ""
