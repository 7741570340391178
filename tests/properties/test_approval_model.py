"""Vote, decide, use and expire: every order of three voters, a clock and a crash, by the library's rules.

Each invariant has a control: a machine that forgets one thing, and the way to where that shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from runner.approvals import ballots
from runner.approvals.ballots import Ballot
from runner.approvals.digests import Action
from runner.approvals.judgement import Evidence, judge
from runner.approvals.rules import Count, DecisionKind, Principal, Rule, Tally, Vote, Voter
from runner.approvals.voting import CastVote
from runner.records.codec import JSON
from runner.records.interrupts import InterruptStatus
from runner.store.memory.store import MemoryStore
from runner.store.requests import ParkVisit
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.properties.approval_model import (
    EDITED,
    KEYS,
    REQUESTER,
    SHOWN,
    Invariant,
    Limits,
    Machine,
    State,
    search,
)

FOUR_EYES = Rule(eligible=["anyone"], need=2, exclude=["requester"])

RULES = {
    "four eyes": FOUR_EYES,
    "majority": Rule(need=2, veto="majority"),
    "edits keep": Rule(need=2, veto=None, edit="keeps"),
    "one of three": Rule(eligible=["ana", "ben", "eva"]),
    "two stages": Rule(stages=[Rule(eligible=["ana", "ben"]), Rule(eligible=["eva"])]),
    "approve or reject": Rule(need=3, decisions=["approve", "reject"]),
}


# The invariants say what a rule means without its arithmetic: from the votes that were counted alone.


def standing(machine: Machine, votes: Sequence[Vote]) -> Sequence[Vote]:
    """Return the votes that no later edit has voided."""
    edits = [place for place, vote in enumerate(votes) if vote.decision == "edit"]
    return votes[edits[-1] :] if edits and machine.rule.edit == "resets" else votes


def supporters(machine: Machine, state: State, effect: str) -> set[str]:
    counting = [vote for vote in standing(machine, state.votes) if vote.weight]
    return {vote.principal for vote in counting if vote.effect == effect}


def needed(machine: Machine) -> int:
    return sum(step.need for step in machine.rule.steps)


def enough_people_want_what_runs(machine: Machine, state: State) -> bool:
    return all(
        len(supporters(machine, state, effect)) >= needed(machine)
        for _, effect in state.effects
    )


def enough_people_want_what_is_decided(machine: Machine, state: State) -> bool:
    if state.decided is None or state.forged or state.decided[0] == "reject":
        return True
    return len(supporters(machine, state, state.decided[1])) >= needed(machine)


def a_veto_ends_it(machine: Machine, state: State) -> bool:
    """As soon as the rejections weigh a veto, nothing is approved any more."""
    veto = machine.rule.need if machine.rule.veto == "majority" else machine.rule.veto
    rejections = [vote for vote in standing(machine, state.votes) if vote.decision == "reject"]
    if veto is None or len(rejections) < veto:
        return True
    return state.forged or (state.decided is not None and state.decided[0] == "reject")


def one_person_counts_once(machine: Machine, state: State) -> bool:
    people = [vote.principal for vote in standing(machine, state.votes) if vote.weight]
    return len(people) == len(set(people))


def nobody_excluded_counts(machine: Machine, state: State) -> bool:
    return "requester" not in machine.rule.exclude or all(
        v.principal != REQUESTER for v in state.votes
    )


def it_is_decided_once(machine: Machine, state: State) -> bool:
    del machine
    return state.decisions <= 1


def it_is_decided_in_time(machine: Machine, state: State) -> bool:
    return state.decided is None or state.forged or state.decided[2] < machine.limits.expires


def no_decision_is_lost(machine: Machine, state: State) -> bool:
    """As soon as enough people want the same, it is decided."""
    wanted = {vote.effect for vote in state.votes if vote.effect}
    enough = any(
        len(supporters(machine, state, effect)) >= needed(machine) for effect in wanted
    )
    return not enough or state.decided is not None


def one_key_has_an_effect(machine: Machine, state: State) -> bool:
    del machine
    return len({key for key, _ in state.effects}) <= 1 and len(state.effects) <= 1


def it_is_used_in_time(machine: Machine, state: State) -> bool:
    if state.decided is None or state.forged:
        return True
    return all(at - state.decided[2] <= machine.limits.use_within for _, at in state.used)


def what_was_begun_goes_on(machine: Machine, state: State) -> bool:
    """After a crash there is a next step of the worker, until the call has ended."""
    if state.forged:
        return True
    labels = [label for label, _ in machine.steps(state)]
    return not state.used or state.done or any(label.startswith(KEYS) for label in labels)


INVARIANTS: Mapping[str, Invariant] = {
    function.__name__: function
    for function in (
        enough_people_want_what_runs,
        enough_people_want_what_is_decided,
        a_veto_ends_it,
        one_person_counts_once,
        nobody_excluded_counts,
        it_is_decided_once,
        it_is_decided_in_time,
        no_decision_is_lost,
        one_key_has_an_effect,
        it_is_used_in_time,
        what_was_begun_goes_on,
    )
}


@pytest.mark.full
@pytest.mark.parametrize("name", RULES)
def test_no_order_of_steps_breaks_an_invariant(name):
    """All states that three voters, a clock and a crash can reach, with three votes or four."""
    limits = Limits(votes=4 if name == "approve or reject" else 3)
    states, broken = search(Machine(RULES[name], limits), INVARIANTS)

    assert broken == {}
    assert states > 1_000


@pytest.mark.full
def test_no_decision_that_somebody_writes_has_an_effect():
    """Who can write a decision to the store, but no votes, runs nothing that was not voted for."""
    states, broken = search(Machine(FOUR_EYES, Limits(votes=2, forges=True)), INVARIANTS)

    assert broken == {}
    assert states > 1_000


# The controls.


def without(machine: Machine, **changes: Callable[..., object]) -> Machine:
    """Return the machine with other methods; each gets the machine's own one first."""
    for name, change in changes.items():
        own = getattr(machine, name)
        setattr(
            machine, name, lambda *arguments, own=own, change=change: change(own, *arguments)
        )
    return machine


def sums_all(
    cast: Callable[..., tuple[Count, Vote]], tally: Tally, *vote: object
) -> tuple[Count, Vote]:
    """Add up what is wanted, whatever it is."""
    count, counted = cast(
        replace(tally, effects=dict.fromkeys((SHOWN, EDITED), tally.against)), *vote
    )
    more = replace(count.tally, against=max(count.tally.effects.values(), default=0))
    return replace(count, tally=more), counted


def only_counts(cast: Callable[..., tuple[Count, Vote]], *vote: object) -> tuple[Count, Vote]:
    """Take a rejection that ends it for one that is only counted."""
    count, counted = cast(*vote)
    return (replace(count, word="counted") if count.decision == "reject" else count), counted


def never_decides(cast: Callable[..., tuple[Count, Vote]], *vote: object) -> tuple[Count, Vote]:
    count, counted = cast(*vote)
    return replace(count, word="counted"), counted


CONTROLS: Mapping[str, dict[str, Callable[..., Any]]] = {
    "one_person_counts_once": {
        "cast": lambda own, tally, who, vote, *_: own(tally, who, vote, None)
    },
    "enough_people_want_what_is_decided": {"cast": sums_all},
    "a_veto_ends_it": {"cast": only_counts},
    "nobody_excluded_counts": {
        "cast": lambda _, *vote: Machine(replace(FOUR_EYES, exclude=())).cast(*vote)
    },
    "it_is_decided_once": {"accepts": lambda own, state: own(replace(state, decided=None))},
    "it_is_decided_in_time": {"accepts": lambda _, state: state.decided is None},
    "no_decision_is_lost": {"cast": never_decides},
    "one_key_has_an_effect": {
        "may_use": lambda _, state, key: key == KEYS[min(state.crashes, 1)]
    },
    "it_is_used_in_time": {"stale": lambda _, state: False},
    "what_was_begun_goes_on": {
        "may_use": lambda own, state, key: not state.used and own(state, key)
    },
}


@pytest.mark.full
@pytest.mark.parametrize("name", CONTROLS)
def test_a_machine_that_forgets_something_is_found(name):
    """The control of each invariant: it is broken, in a few steps."""
    _, broken = search(without(Machine(FOUR_EYES), **CONTROLS[name]), {name: INVARIANTS[name]})

    assert 1 <= len(broken[name]) <= 8


def test_a_worker_that_believes_a_decision_is_found():
    """The control of what runs: without the second count, a written decision runs."""
    machine = without(
        Machine(FOUR_EYES, Limits(votes=2, forges=True)),
        judge=lambda _, state: state.decided[1],
    )
    name = "enough_people_want_what_runs"
    _, broken = search(machine, {name: INVARIANTS[name]})

    assert broken[name] == [
        "somebody writes a decision",
        "visit judges",
        "visit stores the checkpoint",
        "visit calls and ends",
    ]


def test_every_invariant_has_a_control():
    """An invariant that no sabotaged model breaks would show nothing."""
    assert set(INVARIANTS) == {*CONTROLS, "enough_people_want_what_runs"}


# The memory store does what the model does: with the same votes it gives the same receipts and decides alike.

GRAPH = shape("a")

SHOWN_ACTION = Action("runner", "tool", "pay", {"amount": "10"})

STORED: Mapping[str, tuple[DecisionKind, JSON]] = {
    "approve": ("approve", True),
    "edit": ("edit", {"amount": "5"}),
    "edit back": ("edit", {"amount": "10"}),
    "agree to the edit": ("approve", {"amount": "5"}),
    "reject": ("reject", None),
}


class Asked:
    """The question of the model, in a memory store."""

    def __init__(self, rule: Rule, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.store = MemoryStore(clock=self.clock)
        worker = ManualWorker(self.store, self.clock)
        requester = {"principal": REQUESTER}
        _, self.token = worker.begin(GRAPH, requester=requester)
        question = worker.question(
            self.token,
            "pay?",
            rule=rule,
            action=SHOWN_ACTION,
            expires_in=2.0,
            on_expire="reject",
        )
        self.store.do(ParkVisit(self.token, [question], None))
        (self.question,) = self.store.interrupts([question.id])

    def vote(self, voter: str, choice: str, nonce: str) -> str:
        decision, response = STORED[choice]
        effect = ballots.effect_of(self.question, decision, response)
        ballot = Ballot(self.question.id, Voter(Principal(voter)), decision, response, effect)
        (receipt,) = self.store.do(CastVote(ballot, nonce)).receipts
        return str(receipt.status)

    @property
    def decided(self) -> tuple[str, str] | None:
        (now,) = self.store.interrupts([self.question.id])
        if now.status is not InterruptStatus.ANSWERED:
            return None
        judged = judge(self.question, now, Evidence(self.store.votes(self.question.id)))
        assert (judged.decision, judged.effect) == (now.decision, now.effect)
        return now.decision, now.effect


def differences(
    rule: Rule, machine: Machine, votes: Sequence[tuple[str, str]], tick_before: int
) -> list[str]:
    """Give a question of the store and the model the same votes, and name where they part."""
    asked, state = Asked(rule), State()
    names = {"": "", SHOWN: ballots.approved(asked.question)}
    names[EDITED] = ballots.effect_of(asked.question, "edit", {"amount": "5"})
    parted = []
    for number, (voter, choice) in enumerate(votes):
        if number == tick_before:
            asked.clock.advance(2)
            state = replace(state, now=2)
        before = state
        state = machine.vote(state, voter, choice)
        word = asked.vote(voter, choice, f"{number}")
        counted = len(state.votes) > len(before.votes)
        expected = state.decided and (state.decided[0], names[state.decided[1]])
        if counted != (word in {"counted", "accepted"}) or asked.decided != expected:
            parted.append(f"{voter}: {choice}: {word}, {asked.decided}, not {expected}")
    return parted


def every(rule: Rule, machine: Machine, length: int, ticks: Iterable[int]) -> list[str]:
    choices = list(itertools.product(Limits().voters, STORED))
    return [
        difference
        for votes in itertools.product(choices, repeat=length)
        for tick_before in ticks
        for difference in differences(rule, machine, votes, tick_before)
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", RULES)
def test_the_store_counts_as_the_model_does(name):
    """Every two votes of three people, before and after the question's time."""
    assert every(RULES[name], Machine(RULES[name]), 2, (-1, 0, 1)) == []


@pytest.mark.slow
def test_the_store_counts_every_three_votes_as_the_model_does():
    """So an edit, and who agrees to it, decide in the store as in the model."""
    assert every(FOUR_EYES, Machine(FOUR_EYES), 3, (-1,)) == []


@pytest.mark.full
def test_a_model_that_counts_otherwise_differs_from_the_store():
    """The control of the comparison."""
    machine = without(Machine(FOUR_EYES), **CONTROLS["one_person_counts_once"])

    assert every(FOUR_EYES, machine, 2, (-1,))


class Ticking(ManualClock):
    """A clock that never shows a time twice."""

    def __call__(self) -> int:
        self.advance(0.001)
        return super().__call__()


def test_a_decision_has_the_time_of_its_last_vote():
    """The worker compares the two, so that a vote which takes two milliseconds is not held as a forgery."""
    asked = Asked(RULES["one of three"], Ticking())
    asked.vote("ana", "approve", "1")

    assert asked.decided
