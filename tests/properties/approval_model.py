"""A model of one question with a rule: votes, the clock, a worker that uses the decision, and crashes.

It is explored whole: every state that any order of steps can reach. The steps are the functions of
`runner.approvals.rules`, and of `Machine` what the store and a worker do around them. `search` returns the
shortest way to a state in which an invariant does not hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from runner.approvals import rules
from runner.approvals.rules import (
    Count,
    DecisionKind,
    Principal,
    Rule,
    Tally,
    Vote,
    Voter,
    VoterFacts,
)
from tests.records.counting import recount

SHOWN, EDITED = "the call as shown", "the call with other arguments"

# An approval of other arguments than were shown is an edit, until somebody has voted for these.
CHOICES: Mapping[str, tuple[DecisionKind, str]] = MappingProxyType(
    {
        "approve": ("approve", SHOWN),
        "edit": ("edit", EDITED),
        "edit back": ("edit", SHOWN),
        "agree to the edit": ("approve", EDITED),
        "reject": ("reject", ""),
    }
)

REQUESTER = "human:|eva"

KEYS = ("visit", "fork")
"""Who may use a decision: the visit that asked, and a fork of its run, each with its idempotency key."""


@dataclass(frozen=True)
class Limits:
    """How far the exploration goes."""

    voters: Sequence[str] = ("ana", "ben", "eva")
    votes: int = 3
    votes_each: int = 2
    ticks: int = 3
    crashes: int = 1
    expires: int = 2
    use_within: int = 1
    forges: bool = False


@dataclass(frozen=True)
class Frozen:
    """A tally, as a value that can be in a set."""

    stage: int = 0
    round: int = 0
    effects: tuple[tuple[str, int], ...] = ()
    against: int = 0
    settled: str = ""

    @classmethod
    def of(cls, tally: Tally) -> Frozen:
        return cls(
            tally.stage,
            tally.round,
            tuple(sorted(tally.effects.items())),
            tally.against,
            tally.settled,
        )

    def tally(self) -> Tally:
        return Tally(self.stage, self.round, dict(self.effects), self.against, self.settled)


@dataclass(frozen=True)
class State:
    """What is stored, what the worker has in its memory (`judged`), and what has happened in the world.

    `votes` are those that were counted, `cast` names who has voted. `decided` is decision, effect and time;
    `forged` says that somebody has written it who can write to the store. `used` are the keys under which
    the checkpoint names the call, with the time of the judgement; `effects` is what ran, by key.
    """

    now: int = 0
    tally: Frozen = field(default_factory=Frozen)
    votes: tuple[Vote, ...] = ()
    rounds: tuple[tuple[str, int], ...] = ()
    cast: tuple[str, ...] = ()
    decided: tuple[str, str, int] | None = None
    decisions: int = 0
    expired: bool = False
    forged: bool = False
    judged: tuple[str, str, int] | None = None
    used: tuple[tuple[str, int], ...] = ()
    effects: frozenset[tuple[str, str]] = frozenset()
    done: bool = False
    crashes: int = 0


Step = tuple[str, State]


class Machine:
    """What happens to a question. A control replaces one method by one that forgets something."""

    def __init__(self, rule: Rule, limits: Limits = Limits()) -> None:
        self.rule, self.limits = rule, limits
        self._voters = {name: Voter(Principal(name)) for name in limits.voters}

    # -- what stands in the library ----------------------------------------------------------------

    def cast(
        self, tally: Tally, voter: str, vote: Vote, voted_in: int | None, voted_for: str = ""
    ) -> tuple[Count, Vote]:
        facts = VoterFacts((REQUESTER,), original=SHOWN, voted_in=voted_in, voted_for=voted_for)
        return rules.cast(self.rule, tally, self._voters[voter], vote, facts)

    def recount(self, votes: Sequence[Vote]) -> Count:
        return recount(self.rule, votes)

    # -- the store ---------------------------------------------------------------------------------

    def accepts(self, state: State) -> bool:
        """Whether the question still takes votes: a sweep may come later than its time."""
        return state.decided is None and not state.expired and state.now < self.limits.expires

    def vote(self, state: State, voter: str, choice: str) -> State:
        state = replace(state, cast=tuple(sorted((*state.cast, voter))))
        if not self.accepts(state):
            return state
        rounds, key = dict(state.rounds), self._voters[voter].principal.key
        asked = Vote(key, *CHOICES[choice])
        own = [vote.effect for vote in state.votes if vote.principal == key]
        count, vote = self.cast(
            state.tally.tally(), voter, asked, rounds.get(key), "".join(own[-1:])
        )
        if count.word not in {"counted", "accepted"}:
            return state
        if vote.weight:
            rounds[key] = count.tally.round
        state = replace(
            state,
            tally=Frozen.of(count.tally),
            votes=(*state.votes, vote),
            rounds=tuple(sorted(rounds.items())),
        )
        if count.word == "counted":
            return state
        decision = "edit" if count.effect == EDITED else str(count.decision)
        decided = (decision, count.effect, state.now)
        return replace(state, decided=decided, decisions=state.decisions + 1)

    # -- the worker --------------------------------------------------------------------------------

    def stale(self, state: State) -> bool:
        return (
            state.decided is not None and state.now - state.decided[2] > self.limits.use_within
        )

    def judge(self, state: State) -> str:
        """Return the effect that the worker may run: what the votes come to when they are counted again."""
        count = self.recount(state.votes)
        approved = count.word == "accepted" and count.decision in {"approve", "edit"}
        return (
            count.effect
            if approved and state.decided and count.effect == state.decided[1]
            else ""
        )

    def may_use(self, state: State, key: str) -> bool:
        """An approval is for one key, and goes on under that after a crash, however late."""
        if state.used:
            return key in dict(state.used)
        return key == KEYS[0] and not self.stale(state)

    def crash(self, state: State) -> State:
        return replace(state, judged=None, crashes=state.crashes + 1)

    # -- all steps ---------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._people(state)
        yield from self._time(state)
        yield from self._worker(state)

    def _people(self, state: State) -> Iterator[Step]:
        limits = self.limits
        if len(state.cast) < limits.votes and not state.used:
            for voter in limits.voters:
                if state.cast.count(voter) < limits.votes_each:
                    for choice in CHOICES:
                        yield f"{voter}: {choice}", self.vote(state, voter, choice)
        if limits.forges and not state.forged and not state.used:
            decided = ("edit", EDITED, state.now)
            yield "somebody writes a decision", replace(state, decided=decided, forged=True)

    def _time(self, state: State) -> Iterator[Step]:
        if state.now < self.limits.ticks:
            yield "tick", replace(state, now=state.now + 1)
        if state.now >= self.limits.expires and state.decided is None and not state.expired:
            yield "expire", replace(state, expired=True)

    def _worker(self, state: State) -> Iterator[Step]:
        may_crash = state.crashes < self.limits.crashes and not state.done
        if state.judged is None:
            effect = "" if state.done or state.decided is None else self.judge(state)
            for key in KEYS:
                if effect and self.may_use(state, key):
                    yield f"{key} judges", replace(state, judged=(key, effect, state.now))
            return
        key, effect, at = state.judged
        if key not in dict(state.used):
            yield f"{key} stores the checkpoint", replace(state, used=(*state.used, (key, at)))
        else:
            called = replace(state, effects=state.effects | {(key, effect)})
            yield f"{key} calls and ends", replace(called, judged=None, done=True)
            if may_crash:
                yield f"{key} calls, and its worker dies", self.crash(called)
        if may_crash:
            yield "the worker dies", self.crash(state)


Invariant = Callable[[Machine, State], bool]


def search(
    machine: Machine, invariants: Mapping[str, Invariant]
) -> tuple[int, dict[str, list[str]]]:
    """Visit every state; return how many there are, and for each broken invariant the shortest way there."""
    start = State()
    came: dict[State, tuple[State, str] | None] = {start: None}
    broken: dict[str, list[str]] = {}
    queue = deque([start])
    while queue and len(broken) < len(invariants):
        state = queue.popleft()
        for name, holds in invariants.items():
            if name not in broken and not holds(machine, state):
                broken[name] = _way(came, state)
        for label, following in machine.steps(state):
            if following not in came:
                came[following] = (state, label)
                queue.append(following)
    return len(came), broken


def _way(came: Mapping[State, tuple[State, str] | None], state: State) -> list[str]:
    way: list[str] = []
    at = came[state]
    while at is not None:
        way.append(at[1])
        at = came[at[0]]
    return way[::-1]
