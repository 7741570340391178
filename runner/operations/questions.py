"""Questions with a rule as people see them: the rule in words, the votes so far, and the hashed objects."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from itertools import repeat
from typing import Any, TypeVar, cast
from weakref import ref

from runner.approvals.absences import Absence, standing_in
from runner.approvals.ballots import Standing, approved, effect_of
from runner.approvals.rule_text import in_words
from runner.approvals.rules import Rule
from runner.definition.model import map_of
from runner.errors import RunnerError, UsageError
from runner.immutable import immutable, kept
from runner.operations.exports import Question, all_events, plain, question_view, undo_of
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Interrupt, preimages, title_of, tool_of
from runner.records.listings import InterruptQuery, Page
from runner.records.payloads import Payload
from runner.records.run import EventKind
from runner.store.interface import Store

Found = TypeVar("Found", bound=Interrupt)


@immutable
class VoteView:
    """One vote: its voter, its object (a digest), its weight, and how well the voter was authenticated.

    `by` is the principal, `level` the level of the proof, `at` is in ms. A vote `is_void` if a
    later edit reset it. `response` comes from the vote's message: an answer, or whole new
    arguments.
    """

    by: str
    name: str
    decision: str
    effect: str
    weight: int
    selector: str
    stage: int
    round: int
    comment: str
    level: int
    at: int
    is_void: bool = False
    response: Any = None


@immutable
class Change:
    """One argument that an edit changes; before or after is None if that version lacks the argument."""

    name: str
    before: Any
    after: Any


@immutable
class Variant:
    """One version of a question's action: as it was proposed, or as a person edited or answered it.

    `effect` is its digest, `title` describes its action in a sentence, `decision` is its first
    vote's decision: approve, edit or respond. `have` is the total weight of its votes in the
    open stage. `response` has all its arguments, or the answer; None if no vote shows the content behind
    the digest. `changes` are its changes to the proposed arguments. `voters` are the principals who
    have voted for it since the last reset.
    """

    effect: str
    response: Any
    is_proposed: bool
    changes: tuple[Change, ...]
    have: int
    voters: tuple[str, ...]
    title: str
    decision: str


@immutable
class CommentView:
    """A comment: the principal who wrote it, the time (in ms), and its text."""

    by: str
    at: int
    comment: str


@immutable
class Away:
    """A person (`by`) in whose place another (`to`) may vote, with the first and last time (ms).

    `only` limits this to questions that the person may decide by these selectors.
    """

    by: str
    to: str
    since: int
    until: int
    only: Sequence[str] = ()


def away_view(absence: Absence) -> Away:
    """Return the public part of an absence."""
    return Away(absence.by, absence.to, absence.since, absence.until, absence.only)


@immutable
class QuestionView(Question):
    """A question with all that was done to it.

    `rule_words` is the rule in words. `have` and `against` are the weights of the largest approval
    and of the rejections in the open `stage`, which needs `need`; `variants` lists the approved
    versions, the proposed one first. `delegated` maps each principal who may vote in
    another's place to that other; `delegation_ends` maps the other to the end (ms), if any. `away`
    lists people for whom somebody may vote, or answer, until they are back. `digests` has
    the hashed objects, by the kind of the digest. All of that but `claim` and `away` is empty for a
    question without a rule. `comments` are read only when a single question is shown.
    """

    rule_words: str = ""
    have: int = 0
    need: int = 0
    against: int = 0
    stage: int = 0
    votes: Payload[tuple[VoteView, ...]] = ()
    variants: Payload[tuple[Variant, ...]] = ()
    comments: Payload[tuple[CommentView, ...]] = ()
    claim: str = ""
    claim_ends_at: int = 0
    delegated: Mapping[str, str] = field(default_factory=dict)
    delegation_ends: Mapping[str, int] = field(default_factory=dict)
    away: tuple[Away, ...] = ()
    digests: Payload[JSONMapping] = field(default_factory=dict)


def read_question(store: Store, interrupt: Interrupt) -> QuestionView:
    """Read all that was done to a question."""
    (view,) = read_questions(store, [interrupt])
    if interrupt.rule is None:
        return view
    (standing,) = store.standings([interrupt.id])
    votes = tuple(_vote(vote, standing) for vote in store.votes(interrupt.id))
    return replace(
        view,
        votes=votes,
        variants=tuple(_variants(view, votes, standing)),
        digests=preimages(interrupt),
    )


def with_comments(store: Store, view: QuestionView) -> QuestionView:
    """Add the comments, which are events of the run and have its retention."""
    comments = (
        CommentView(data["by"], event.at, data["comment"])
        for event in all_events(store, view.run_id)
        if event.kind == EventKind.INTERRUPT_COMMENTED and event.detail == view.id
        for data in [cast("dict[str, str]", plain(event.data))]
    )
    return replace(view, comments=tuple(comments))


def vote_for(view: QuestionView, effect: str) -> tuple[str, Any]:
    """Return the decision and the response of a vote for a variant.

    The response is true for the proposed variant, else its arguments or, with `respond`, its
    answer.

    Raises:
        UsageError: no valid vote supports it.
    """
    for variant in view.variants:
        if variant.effect == effect and variant.response is not None:
            response = True if variant.is_proposed else variant.response
            is_answer = variant.decision == "respond" and response is not True
            return "respond" if is_answer else "approve", response
    raise UsageError(
        f"no valid vote supports {effect!r:.100}, so nothing was done. Read the question again: it may "
        "have changed."
    )


def read_questions(store: Store, interrupts: Iterable[Interrupt]) -> list[QuestionView]:
    """Make the views of a list; the standings are read in one request."""
    interrupts = list(interrupts)
    standings = store.standings([interrupt.id for interrupt in interrupts])
    absences = _absences(store, interrupts)
    run_ids = {interrupt.run_id for interrupt in interrupts if interrupt.rule is None}
    facts = {run_id: _facts(store, run_id) for run_id in run_ids}
    views = map(_view, interrupts, standings, repeat(absences))
    return [view if view.rule else replace(view, **facts[view.run_id]) for view in views]


def _facts(store: Store, run_id: str) -> JSONObject:
    """Return the place and the requester of a run, which aren't stored with questions without a rule."""
    # A migration may change the place; nothing changes the requester.
    run = store.peek(run_id)
    asked_for = _requester(ref(store), run_id)
    return {
        "place": run and run.place,
        "requester": asked_for.get("principal", ""),
        "on_behalf_of": [*asked_for.get("on_behalf_of", ())],
    }


@functools.lru_cache(1_000)
def _requester(store: ref[Store], run_id: str) -> JSONMapping:
    return store().requester(run_id) or {}  # type: ignore[union-attr] # the caller has it


def _absences(store: Store, interrupts: Iterable[Interrupt]) -> list[Absence]:
    """Read the absences, if they can matter to one of the questions."""
    matters = any(
        question.is_open
        and (question.assignees or (question.rule or {}).get("delegate", "none") != "none")
        for question in interrupts
    )
    return list(store.signed(Absence).values()) if matters else []


def check_alike(store: Store, ids: Sequence[str], digests: Mapping[str, str]) -> None:
    """Check that questions can be decided together: the same question in different runs or items.

    Raises:
        UsageError: no question is given, one was never asked, a digest is missing, or graph, node, name or
            schema differ.
    """
    questions = store.interrupts(ids)
    missing = [name for name, question in zip(ids, questions, strict=True) if question is None]
    if not ids or missing:
        raise UsageError(
            f"no question {missing[0]!r} was asked."
            if missing
            else "there is nothing to decide."
        )
    for name in ids:
        if not digests.get(name):
            raise UsageError(f"the digest of the question {name} is missing; nothing was done.")
    known_questions = [question for question in questions if question is not None]
    graphs = {
        name: _graph(store, name) for name in {question.run_id for question in known_questions}
    }
    model = known_questions[0]
    expected = likeness(model, graphs[model.run_id])
    for question in known_questions:
        if differ := [
            name
            for name, value in likeness(question, graphs[question.run_id]).items()
            if value != expected[name]
        ]:
            raise UsageError(
                f"the questions {model.id} and {question.id} differ in {' and '.join(differ)}, so they can't "
                "be decided together; nothing was done."
            )


def likeness(question: Interrupt, graph: str) -> JSONObject:
    """Return the attributes that questions decided together must share; a map's items count as one node."""
    return {
        "graph": graph,
        "node": map_of(question.node_id) or question.node_id,
        "name": question.name,
        "schema": question.response_schema,
        "tool": tool_of(question.action),
        "risk": question.risk,
        "rule": question.rule is not None,
    }


def open_alike(
    store: Store,
    interrupt_id: str,
    query: InterruptQuery,
    limit: int,
    read: Callable[[InterruptQuery, int, str], Page[Found]],
) -> list[Found]:
    """List open questions that match a query and can be decided together with the named one, itself included.

    `read` reads a page of the query, at a cursor.
    """
    model = store.interrupts([interrupt_id])[0]
    if model is None:
        raise UsageError(f"no question {interrupt_id!r} was asked.")
    expected = likeness(model, _graph(store, model.run_id))
    query = replace(query, graph=str(expected["graph"]), name=model.name)
    alike: list[Found] = []
    cursor: str | None = ""
    while cursor is not None and len(alike) < limit:
        page = read(query, limit, cursor)
        graphs = {name: _graph(store, name) for name in {one.run_id for one in page}}
        alike += [one for one in page if likeness(one, graphs[one.run_id]) == expected]
        cursor = page.next
    return alike[:limit]


def _graph(store: Store, run_id: str) -> str:
    run = store.peek(run_id)
    return run.graph_id if run else ""


def _view(
    interrupt: Interrupt, standing: Standing, absences: Sequence[Absence]
) -> QuestionView:
    """Make the view of a question; with a rule it includes the standing of its votes."""
    view = _untouched(interrupt)
    if standing == Standing() and not absences:
        return view
    now = time.time_ns() // 1_000_000
    tally = standing.tally
    away = tuple(
        away_view(absence)
        for absence in standing_in(absences, interrupt, tally.stage, now)
        if interrupt.is_open
    )
    changes: JSONObject = {"away": away}
    if interrupt.is_open and standing.claimed_until > now:
        changes |= {"claim": standing.claim, "claim_ends_at": standing.claimed_until}
    if interrupt.rule is not None:
        changes |= {
            "have": max(tally.effects.values(), default=0),
            "need": Rule.thawed(interrupt.rule).steps[tally.stage].need,
            "against": tally.against,
            "stage": tally.stage,
            "delegated": standing.loans(now),
            "delegation_ends": {by: end for by, end in standing.ends.items() if end > now},
            "undo": undo_of(standing) if interrupt.is_open else None,
        }
    return replace(view, **changes)


@kept
def _untouched(interrupt: Interrupt) -> QuestionView:
    """Make the view of a question without votes."""
    if interrupt.rule is None:
        return question_view(QuestionView, interrupt)
    return question_view(
        QuestionView,
        interrupt,
        need=Rule.thawed(interrupt.rule).steps[0].need,
        rule_words=_rule_words(
            codec.dump_json(interrupt.rule),
            interrupt.requester,
            tuple(interrupt.on_behalf_of),
            is_bound=interrupt.action is not None,
        ),
    )


@functools.lru_cache(1_000)
def _rule_words(
    rule: bytes, requester: str, on_behalf_of: Sequence[str], *, is_bound: bool
) -> str:
    """Describe a stored rule, once for all questions of a requester that have it."""
    return in_words(
        Rule.thawed(codec.load_json(rule)), requester, on_behalf_of, is_bound=is_bound
    )


def _vote(vote: JSONMapping, standing: Standing) -> VoteView:
    return VoteView(
        **{item.name: plain(vote[item.name]) for item in fields(VoteView) if item.name in vote},
        is_void=vote["round"] < standing.tally.round,
        response=vote.get("body", {}).get("response"),
    )


def _variants(
    view: QuestionView, votes: Sequence[VoteView], standing: Standing
) -> Iterator[Variant]:
    """List the versions of a question: the proposed one, then those with valid votes."""
    proposed = approved(view)
    valid_votes = [vote for vote in votes if vote.effect and not vote.is_void]
    args = (view.action or {}).get("args")
    for effect in dict.fromkeys(
        filter(None, [proposed, *(vote.effect for vote in valid_votes)])
    ):
        backers = [vote for vote in valid_votes if vote.effect == effect]
        is_proposed = effect == proposed
        response = args if is_proposed else next(_shown(view, backers), None)
        decision = "approve" if is_proposed else "edit"
        if view.action is None or any(vote.decision == "respond" for vote in backers):
            decision = "respond"
        yield Variant(
            effect,
            response,
            is_proposed,
            tuple(changes(args, response))
            if decision == "edit" and response is not None
            else (),
            standing.tally.effects.get(effect, 0),
            tuple(vote.by for vote in backers),
            title_of(
                replace(view, decision=decision, response=codec.pack(response, "response"))
            ),
            decision,
        )


def _shown(view: QuestionView, votes: Iterable[VoteView]) -> Iterator[Any]:
    """Yield the responses that match the digest of their votes; nothing else is shown as voted for."""
    for vote in votes:
        response = True if vote.response is None else vote.response
        try:
            if effect_of(view, vote.decision, codec.pack(response, "response")) == vote.effect:
                yield response
        except RunnerError:
            continue  # not this program's message: only its digest can be shown


def edits_of(view: QuestionView) -> dict[str, tuple[Change, ...]]:
    """Return the changes that each edit makes, by the edit's effect, even if its votes are void by now."""
    args = (view.action or {}).get("args")
    return {
        vote.effect: tuple(changes(args, response))
        for vote in view.votes
        if vote.decision == "edit"
        for response in _shown(view, [vote])
    }


def differs(question: Interrupt, arguments: Any, variants: Iterable[Variant] = ()) -> bool:
    """Return whether arguments make a call whose hash a question and its variants don't have.

    Raises:
        UnstorableError: they have values that other languages would read differently.
    """
    value = codec.pack(arguments, "the arguments")
    effects = {approved(question), *(variant.effect for variant in variants)}
    return effect_of(question, "edit", value) not in effects


def changes(before: JSONMapping | None, after: Any) -> Iterator[Change]:
    """Compare two sets of arguments as JSON, because True is not 1."""
    older = dict(before or {})
    newer = dict(after) if isinstance(after, Mapping) else {}
    for name in dict.fromkeys([*older, *newer]):
        pair = [
            json.dumps({name: args[name]} if name in args else {}, sort_keys=True)
            for args in (older, newer)
        ]
        if pair[0] != pair[1]:
            yield Change(name, older.get(name), newer.get(name))
