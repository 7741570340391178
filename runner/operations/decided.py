"""Closed questions as people see them afterwards: who decided on which action, how and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runner.approvals.rule_text import instead
from runner.approvals.rules import plain_name
from runner.immutable import immutable
from runner.operations.exports import Title
from runner.operations.questions import Found, QuestionView
from runner.records.codec import JSONMapping
from runner.records.interrupts import Interrupt, InterruptStatus, title_of
from runner.records.listings import InterruptQuery, Page, cut, position_in
from runner.records.payloads import Payload
from runner.records.run import EventKind
from runner.store.interface import Event, Store

VERBS = {
    "approve": "approved",
    "edit": "approved with changes",
    "reject": "rejected",
    "respond": "answered",
}

BATCH, LOOKS = 50, 10
"""The fewest questions that are read at a time, and the most reads for one page."""


@immutable
class DecisionView:
    """A closed question: `decision` is how it was decided, `by` the people whose votes or answer did that.

    `title` describes the decided action in a sentence. `have` and `need` are the weights of the
    votes; 0 for a question without a rule. `comments` are by person. If an answer was given
    instead of an approval, `undone` says that the call is not made.
    """

    id: str
    run_id: str
    node_id: str
    name: str
    title: Title
    status: InterruptStatus
    decision: str
    by: tuple[str, ...]
    have: int
    need: int
    answered_at: int
    comments: Payload[Mapping[str, str]]
    undone: str = ""

    @property
    def sentence(self) -> str:
        """The decision in words, with its people: "approved by ben, eva, 2 of 2"."""
        verb = VERBS.get(self.decision) or self.status
        people = f" by {', '.join(map(plain_name, self.by))}" if self.by else ""
        votes = f", {self.have} of {self.need}" if self.need else ""
        return verb + people + votes + (f": {self.undone}" if self.undone else "")


def decisions_of(
    questions: Iterable[Interrupt], events: Iterable[Event]
) -> tuple[DecisionView, ...]:
    """Return a run's closed questions, in the order of closing; its events have the votes."""
    votes: dict[str, dict[str, Mapping[str, Any]]] = {}
    for event in events:
        if event.kind == EventKind.INTERRUPT_VOTED and isinstance(event.data, Mapping):
            votes.setdefault(event.detail, {})[event.data["by"]] = event.data
    closed = [question for question in questions if not question.is_open]
    views = [_decision(question, votes.get(question.id, {})) for question in closed]
    return tuple(sorted(views, key=lambda view: view.answered_at))


def _decision(question: Interrupt, votes: Mapping[str, JSONMapping]) -> DecisionView:
    """Describe a question; `votes` has the data of each voter's last vote, in their order."""
    is_reject = question.decision == "reject"
    deciding = {
        key: vote
        for key, vote in votes.items()
        if (
            vote["decision"] == "reject" if is_reject else vote.get("effect") == question.effect
        )
        and question.decision
    }
    last = next(reversed(deciding.values()), {})
    responder = question.responder or _withdrawer(question)
    return DecisionView(
        question.id,
        question.run_id,
        question.node_id,
        question.name,
        title_of(question),
        question.status,
        question.decision or ("respond" if question.status == "answered" else ""),
        tuple(deciding) or ((responder,) if responder else ()),
        last.get("against" if is_reject else "have", 0),
        0 if is_reject else last.get("need", 0),
        question.answered_at,
        {key: vote["comment"] for key, vote in votes.items() if vote.get("comment")},
        instead(question.action) if question.decision == "respond" else "",
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
    store: Store,
    query: InterruptQuery,
    limit: int,
    cursor: str,
    *,
    by: str,
    status: str = "",
) -> Page[Interrupt]:
    """List questions that were decided, expired or withdrawn, the newest first.

    It covers the time of retention; with `query.run` it lists all of that run. `by` is a person who
    voted or answered: the key, plain name or display name of a principal.
    """
    query = replace(query, closed=True)

    def select(questions: Iterable[Interrupt]) -> list[Interrupt]:
        return [
            question
            for question in questions
            if status in {"", str(question.status)} and (not by or _is_by(store, question, by))
        ]

    if query.run:
        return cut(select(_of_family(store, query, cursor)), query.position, limit)
    return filter_pages(partial(store.open_interrupts, query), select, query, limit, cursor)


def filter_pages(
    read: Callable[[int, str], Page[Interrupt]],
    select: Callable[[Iterable[Interrupt]], list[Found]],
    query: InterruptQuery,
    limit: int,
    cursor: str,
) -> Page[Found]:
    """Read pages of a listing until enough questions are kept, or `LOOKS` pages were read."""
    fitting: list[Found] = []
    following: str | None = cursor
    for _ in range(LOOKS):
        page = read(max(limit, BATCH), following or "")
        fitting += select(page)
        following = page.next
        if following is None or len(fitting) >= limit:
            break
    return cut(fitting, query.position, limit, next_cursor=following)


def _of_family(store: Store, query: InterruptQuery, cursor: str) -> list[Interrupt]:
    """Read the questions of a run and of the runs inside it that come after a cursor."""
    position = position_in(cursor) if cursor else None
    run_ids = [str(query.run)]
    questions = []
    for run_id in run_ids:
        snapshot = store.read(run_id)
        if snapshot is None:
            continue
        run_ids += store.children(run_id)
        family = snapshot.record.graph_id, str(query.run), store.tags(snapshot.record.root)
        questions += [
            question
            for question in snapshot.interrupts
            if query.fits(question, *family)
            and (position is None or query.position(question) > position)
        ]
    return sorted(questions, key=query.position)


def _is_by(store: Store, question: Interrupt, by: str) -> bool:
    """Return whether a person has answered a question, voted on it, or withdrawn it."""
    votes = store.votes(question.id) if question.rule else ()
    keys = [question.responder or "", _withdrawer(question), *(vote["by"] for vote in votes)]
    return plain_name(by) in map(plain_name, keys) or by in (vote.get("name") for vote in votes)


def _withdrawer(question: Interrupt) -> str:
    return str((question.withdrawal or {}).get("by", ""))
