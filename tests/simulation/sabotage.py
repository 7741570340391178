"""Stores with one mechanism taken out: the simulator must notice each of them within its seeds.

What is taken out, each class says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner import scheduler
from runner.approvals.rules import Principal
from runner.approvals.voting import CastVote
from runner.definition.model import UNDO
from runner.limits.concurrency import Debounce
from runner.limits.setting import LimitSetting
from runner.records.interrupts import InterruptStatus
from runner.records.run import RunRecord, Status, status_of
from runner.scheduler import arrivals
from runner.scheduler.changes import Dispatch, SetTimer, dispatch
from runner.store import apply_transition, requests
from runner.store.apply_transition import OPEN
from runner.store.interface import Reply, Request
from runner.store.memory.store import MemoryStore
from runner.store.redis.transaction.key_lists import KeyLists
from runner.store.requests import (
    AnswerQuestions,
    CancelRun,
    ClaimVisit,
    ParkVisit,
    RewriteRuns,
    SaveCheckpoint,
    SettleVisit,
    StartRun,
    UseDecision,
)
from tests.simulation.voting import EVERY, effect_of


@contextlib.contextmanager
def replaced(module: Any, name: str, instead: Any) -> Iterator[None]:
    """Call something else than a function, as long as the block runs."""
    real = getattr(module, name)
    setattr(module, name, instead)
    try:
        yield
    finally:
        setattr(module, name, real)


class SabotagedStore(MemoryStore):
    """A store that does the requests of one type in a way of its subclass."""

    request_type: type[Request] = Request

    def do(self, request):
        takes = isinstance(request, self.request_type)
        return self.sabotage(request) if takes else super().do(request)

    def as_it_should(self, request):
        """Do a request as a store without a fault does."""
        return super().do(request)

    def sabotage(self, request):
        """Do a request of the type."""
        raise NotImplementedError


class NoFence(SabotagedStore):
    """A worker that lost its lease may still end the visit."""

    request_type = SettleVisit

    def sabotage(self, request):
        run = self._database.runs.get(request.token.run_id)
        node = run.node(request.token.node) if run else None
        if (
            node is not None
            and node.status is Status.RUNNING
            and node.visit == request.token.visit
        ):
            request = replace(request, token=replace(request.token, fence=node.fence))
        return self.as_it_should(request)


class SecondResult(SabotagedStore):
    """A visit that has ended may end again."""

    request_type = SettleVisit

    def sabotage(self, request):
        run = self._database.runs.get(request.token.run_id)
        node = run.node(request.token.node) if run else None
        if (
            node is not None
            and node.status is Status.COMPLETED
            and node.visit == request.token.visit
        ):
            run.nodes[request.token.node] = replace(
                node, status=Status.RUNNING, fence=request.token.fence, nonce=""
            )
            run.record = replace(
                run.record, active=run.record.active + 1, status=Status.EXECUTING
            )
        return self.as_it_should(request)


class SilentSettle(SabotagedStore):
    """What a settled node makes ready is neither rung for nor found by a timer."""

    request_type = SettleVisit

    def sabotage(self, request):
        reply = self.as_it_should(request)
        for bell in reply.doorbells:
            self._database.timers.pop(("node", bell.run_id, bell.node), None)
        return Reply(reply.word)


class NoRingAgain(MemoryStore):
    """A sweep throws the timers of ready nodes away: a lost doorbell stays lost."""

    def sweep(self, limit=100):
        return _forgetting(self, Status.READY, super().sweep, limit)


class NoLostLeases(MemoryStore):
    """A sweep throws the timers of running nodes away: a lost worker's node stays lost."""

    def sweep(self, limit=100):
        return _forgetting(self, Status.RUNNING, super().sweep, limit)


class NoRetries(MemoryStore):
    """A sweep throws the timers of retries away."""

    def sweep(self, limit=100):
        return _forgetting(self, Status.RETRYING, super().sweep, limit)


def _forgetting(store: MemoryStore, status: Status, sweep: Any, limit: int) -> Reply:
    database = store._database
    for kind, run_id, key in list(database.timers):
        due = database.timers[kind, run_id, key] <= database.clock()
        if kind == "node" and due and database.runs[run_id].node(key).status is status:
            del database.timers[kind, run_id, key]
    return sweep(limit)


class DeafPark(SabotagedStore):
    """A node that parks does not look whether an answer came while it ran."""

    request_type = ParkVisit

    def sabotage(self, request):
        reply = self.as_it_should(request)
        if reply.word == "ready":
            run = self._database.runs[request.token.run_id]
            run.nodes[request.token.node] = replace(
                run.node(request.token.node), status=Status.WAITING
            )
            counted = replace(
                run.record, active=run.record.active - 1, waiting=run.record.waiting + 1
            )
            run.record = replace(counted, status=status_of(counted))
            del self._database.timers["node", request.token.run_id, request.token.node]
        return Reply("waiting") if reply.word == "ready" else reply


class LastAnswerWins(SabotagedStore):
    """An answered question takes another answer."""

    request_type = AnswerQuestions

    def sabotage(self, request):
        for one_answer in request.answers:
            run = requests.asking(self._database, one_answer.interrupt_id)
            asked = run.questions.get(one_answer.interrupt_id) if run else None
            if asked is not None and asked.status is InterruptStatus.ANSWERED:
                run.questions[asked.id] = replace(asked, status=InterruptStatus.OPEN)
        return self.as_it_should(request)


class AnySet(SabotagedStore):
    """Of a set of answers those that can be applied are, whatever becomes of the others."""

    request_type = AnswerQuestions

    def sabotage(self, request):
        sets = [replace(request, answers=[one_answer]) for one_answer in request.answers]
        replies = [self.as_it_should(one_set) for one_set in sets]
        bells = [bell for reply in replies for bell in reply.doorbells]
        receipts = [receipt for reply in replies for receipt in reply.receipts]
        return Reply("answered", bells, receipts=receipts)


class NoDigest(SabotagedStore):
    """An answer to something else than what was shown is taken."""

    request_type = AnswerQuestions

    def sabotage(self, request):
        answers = [replace(one_answer, digest=None) for one_answer in request.answers]
        return self.as_it_should(replace(request, answers=answers))


class SleepyAnswer(SabotagedStore):
    """An answer is taken and wakes nobody."""

    request_type = AnswerQuestions

    def sabotage(self, request):
        reply = self.as_it_should(request)
        for bell in reply.doorbells:
            self._database.timers.pop(("node", bell.run_id, bell.node), None)
        return replace(reply, doorbells=())


class TwoClaims(SabotagedStore):
    """A visit that a worker has is given to another one that asks."""

    request_type = ClaimVisit

    def sabotage(self, request):
        run = self._database.runs.get(request.run_id)
        entry = run.node(request.node) if run else None
        claimed = (Status.RUNNING, request.visit, request.attempt)
        if (
            entry is not None
            and (entry.status, entry.visit, entry.attempt) == claimed
            and entry.nonce != request.nonce
        ):
            run.nodes[request.node] = replace(entry, status=Status.READY)
        return self.as_it_should(request)


class NoKeys(SabotagedStore):
    """A start that is repeated begins another run."""

    request_type = StartRun

    def sabotage(self, request):
        start = replace(request.start, idempotency_key=None)
        return self.as_it_should(replace(request, start=start))


class DeafParent(SabotagedStore):
    """A parent is not told that its child run has ended."""

    request_type = SettleVisit

    def sabotage(self, request):
        run = self._database.runs.get(request.token.run_id)
        parent = self._database.runs.get(run.record.parent) if run else None
        before = dict(parent.nodes) if parent else {}
        record = parent.record if parent else None
        reply = self.as_it_should(request)
        if parent is not None and run.record.is_final:
            parent.nodes, parent.record = before, record
            return replace(reply, doorbells=())
        return reply


class TooLateSettle(SabotagedStore):
    """A node that ends after its run was stopped goes on to those behind it."""

    request_type = SettleVisit

    def sabotage(self, request):
        run = self._database.runs.get(request.token.run_id)
        stopping = run.record.stopping if run else ""
        if stopping and not run.record.is_final:
            run.record = replace(run.record, stopping="")
        return self.as_it_should(request)


class NoEndTold(MemoryStore):
    """An end that nobody was rung for in time is never told."""

    def sweep(self, limit=100):
        for timer in [timer for timer in self._database.timers if timer[0] == "callback"]:
            del self._database.timers[timer]
        return super().sweep(limit)


class WorkersTime(MemoryStore):
    """Times are those of the worker that asks, not of the store."""

    world: Any = None

    def __init__(self, clock, lease):
        super().__init__(lambda: self._now(clock), lease)

    def _now(self, clock):
        actor = self.world.current if self.world else None
        return round(actor.process.clock() * 1000) if actor else clock()


class ManyNames(SabotagedStore):
    """Who votes twice counts twice, under another name."""

    request_type = CastVote

    def sabotage(self, request):
        name = Principal(
            f"{request.ballot.voter.principal.sub} {request.ballot.idempotency_key}"
        )
        voter = replace(request.ballot.voter, principal=name)
        return self.as_it_should(replace(request, ballot=replace(request.ballot, voter=voter)))


class EveryGroup(SabotagedStore):
    """Everybody is taken for a member of every group."""

    request_type = CastVote

    def sabotage(self, request):
        voter = replace(request.ballot.voter, groups=frozenset(EVERY))
        return self.as_it_should(replace(request, ballot=replace(request.ballot, voter=voter)))


class AnyEffect(SabotagedStore):
    """Votes for different effects add up."""

    request_type = CastVote

    def sabotage(self, request):
        (question,) = self.interrupts([request.ballot.interrupt_id])
        if request.ballot.decision == "edit" and question is not None:
            effect = effect_of(question, None)
            ballot = replace(request.ballot, decision="approve", effect=effect)
            request = replace(request, ballot=ballot)
        return self.as_it_should(request)


class NoUse(SabotagedStore):
    """It is not noted that a decision is used."""

    request_type = UseDecision

    def sabotage(self, request):
        reply = self.as_it_should(SaveCheckpoint(request.token, request.saved))
        return Reply("used") if reply.word == "saved" else reply


class ForgetsVoidVotes(SabotagedStore):
    """Of each person the last vote stays alone, so the worker can't count again."""

    request_type = CastVote

    def sabotage(self, request):
        reply = self.as_it_should(request)
        for run in self._database.runs.values():
            for votes in run.votes.values():
                last = {vote["by"]: number for number, vote in votes.items()}
                for number in set(votes) - set(last.values()):
                    del votes[number]
        return reply


class SleepyVote(SabotagedStore):
    """A vote decides and wakes nobody."""

    request_type = CastVote

    def sabotage(self, request):
        reply = self.as_it_should(request)
        for bell in reply.doorbells:
            self._database.timers.pop(("node", bell.run_id, bell.node), None)
        return replace(reply, doorbells=())


class LateVotes(SabotagedStore):
    """A vote counts after the question's time, as long as no sweep came by."""

    request_type = CastVote

    def sabotage(self, request):
        run = self._database.runs.get(request.ballot.interrupt_id.partition(".")[0])
        question = run.questions.get(request.ballot.interrupt_id) if run else None
        if question is not None:
            run.questions[question.id] = replace(question, expires_in=None)
        reply = self.as_it_should(request)
        if question is not None:
            run.questions[question.id] = replace(
                run.questions[question.id], expires_in=question.expires_in
            )
        return reply


class Replaced:
    """Have a store in Redis call `instead` where it should call another function."""

    request_type: type[Request] = Request
    owner: Any
    name: str
    instead: Any

    @classmethod
    def spoil(cls, store: Any) -> None:
        """Take the mechanism out of a store."""
        do, sweep = store.do, store.sweep

        def do_spoilt(request):
            return cls.sabotage(store, do, request)

        def sweep_spoilt(limit=100):
            with replaced(cls.owner, cls.name, cls.instead):
                return sweep(limit)

        store.do = do_spoilt
        if cls.request_type is Request:
            store.sweep = sweep_spoilt

    @classmethod
    def sabotage(cls, store, do, request):  # noqa: ARG003 - a subclass reads it
        """Do a request, with the other function if it is of the type."""
        if not isinstance(request, cls.request_type):
            return do(request)
        with replaced(cls.owner, cls.name, cls.instead):
            return do(request)


class AnyFork(Replaced):
    """A fork is written whatever has become of the results that it takes over."""

    owner, name, instead = requests, "_as_planned", staticmethod(lambda *_: True)


class SleepyRetry(Replaced):
    """A retry reopens a run and wakes nobody."""

    owner, name, reopen = scheduler, "reopen", staticmethod(scheduler.reopen)

    @staticmethod
    def instead(*arguments):
        result = SleepyRetry.reopen(*arguments)
        wakes = Dispatch | SetTimer
        actions = [action for action in result.actions if not isinstance(action, wakes)]
        return replace(result, actions=actions)


class SecondRetry(Replaced):
    """A run is reopened again while it goes on."""

    request_type, owner, name = RewriteRuns, RunRecord, "is_final"
    instead = property(lambda _: True)

    @classmethod
    def sabotage(cls, store, do, request):
        if not isinstance(request, RewriteRuns):
            return do(request)
        runs = [
            replace(rewrite, events=snapshot.events)
            for rewrite in request.runs
            if (snapshot := store.read(rewrite.run_id))
        ]
        return super().sabotage(store, do, replace(request, runs=runs))


class AnyNumber(Replaced):
    """A key has any number of open runs."""

    owner, name, count = KeyLists, "count", KeyLists.count

    def instead(self, name, bound):
        return 0 if name.startswith(OPEN) else AnyNumber.count(self, name, bound)


class SleepyKey(Replaced):
    """The end of a run begins no other run of its key."""

    owner, name, instead = apply_transition, "admitted", staticmethod(lambda *_: ())


class LastFirst(Replaced):
    """Of the runs that wait the last begins first."""

    owner, name, first = KeyLists, "first", KeyLists.first

    def instead(self, name, most):
        return LastFirst.first(self, name, 100)[::-1][:most]


class ManyDelays(Replaced):
    """A start begins a run although one of its key is delayed."""

    owner, name, instead = requests, "_debounced", staticmethod(lambda *_: None)


class LongDelay(Replaced):
    """Each start delays a run again, without an end."""

    owner, name = Debounce, "due"

    def instead(self, _created_at, now):
        return now + round(self.seconds * 1000)


class NoPause(Replaced):
    """Nodes start under a paused limit."""

    owner, name, instead = LimitSetting, "paused_until", staticmethod(lambda *_: 0)


class StartsHeld(Replaced):
    """A node that is held before its turn begins with it."""

    owner, name = arrivals, "dispatch"

    @staticmethod
    def instead(changes, node, record):
        dispatch(changes, node, replace(record, hold=""))


class OldestUndo(SabotagedStore):
    """What completed first is undone first."""

    request_type = SettleVisit

    def sabotage(self, request):
        run = self._database.runs.get(request.token.run_id)
        undos = run.nodes.get(UNDO) if run else None
        if undos:
            run.nodes[UNDO] = replace(undos, via=undos.via[::-1])
        return self.as_it_should(request)


class NoUndo(SabotagedStore):
    """A run that stops forgets what it has to undo."""

    request_type = CancelRun

    def sabotage(self, request):
        if run := self._database.runs.get(request.run_id):
            run.nodes.pop(UNDO, None)
        return self.as_it_should(request)


OF_UNDOS = (OldestUndo, NoUndo)

OF_KEYS = (AnyNumber, SleepyKey, LastFirst, ManyDelays, LongDelay, NoPause)

OF_RECOVERY = (AnyFork, SleepyRetry, SecondRetry)

OF_VOTES = (ManyNames, EveryGroup, AnyEffect, NoUse, ForgetsVoidVotes, SleepyVote, LateVotes)

SABOTEURS = (
    NoFence,
    SecondResult,
    SilentSettle,
    NoRingAgain,
    NoLostLeases,
    NoRetries,
    DeafPark,
    LastAnswerWins,
    AnySet,
    NoDigest,
    SleepyAnswer,
    TwoClaims,
    NoKeys,
    DeafParent,
    TooLateSettle,
    NoEndTold,
    WorkersTime,
)
