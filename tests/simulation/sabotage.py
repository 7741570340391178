"""Stores with one mechanism taken out: the simulator must notice each of them within its seeds.

What is taken out, each class says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.approvals.rules import Principal
from runner.records.interrupts import InterruptStatus
from runner.records.run import Status, status_of
from runner.store import requests
from runner.store.interface import Reply
from runner.store.memory.store import MemoryStore
from tests.simulation.voting import EVERY, effect_of


class NoFence(MemoryStore):
    """A worker that lost its lease may still end the visit."""

    def settle(self, token, settlement, nonce):
        run = self._database.runs.get(token.run_id)
        node = run.node(token.node) if run else None
        if node is not None and node.status is Status.RUNNING and node.visit == token.visit:
            token = replace(token, fence=node.fence)
        return super().settle(token, settlement, nonce)


class SecondResult(MemoryStore):
    """A visit that has ended may end again."""

    def settle(self, token, settlement, nonce):
        run = self._database.runs.get(token.run_id)
        node = run.node(token.node) if run else None
        if node is not None and node.status is Status.COMPLETED and node.visit == token.visit:
            run.nodes[token.node] = replace(
                node, status=Status.RUNNING, fence=token.fence, nonce=""
            )
            run.record = replace(run.record, active=run.record.active + 1, status=Status.EXECUTING)
        return super().settle(token, settlement, nonce)


class SilentSettle(MemoryStore):
    """What a settled node makes ready is neither rung for nor found by a timer."""

    def settle(self, token, settlement, nonce):
        reply = super().settle(token, settlement, nonce)
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


class DeafPark(MemoryStore):
    """A node that parks does not look whether an answer came while it ran."""

    def park(self, token, interrupts, saved):
        reply = super().park(token, interrupts, saved)
        if reply.word == "ready":
            run = self._database.runs[token.run_id]
            run.nodes[token.node] = replace(run.node(token.node), status=Status.WAITING)
            counted = replace(
                run.record, active=run.record.active - 1, waiting=run.record.waiting + 1
            )
            run.record = replace(counted, status=status_of(counted))
            del self._database.timers["node", token.run_id, token.node]
        return Reply("waiting") if reply.word == "ready" else reply


class LastAnswerWins(MemoryStore):
    """An answered question takes another answer."""

    def answer(self, answers, nonce, questions=()):
        for one_answer in answers:
            run = requests.asking(self._database, one_answer.interrupt_id)
            asked = run.questions.get(one_answer.interrupt_id) if run else None
            if asked is not None and asked.status is InterruptStatus.ANSWERED:
                run.questions[asked.id] = replace(asked, status=InterruptStatus.OPEN)
        return super().answer(answers, nonce, questions)


class AnySet(MemoryStore):
    """Of a set of answers those that can be applied are, whatever becomes of the others."""

    def answer(self, answers, nonce, questions=()):
        replies = [super(AnySet, self).answer([one_answer], nonce) for one_answer in answers]
        bells = [bell for _, reply in replies for bell in reply.doorbells]
        return [receipt for receipts, _ in replies for receipt in receipts], Reply(
            "answered", bells
        )


class NoDigest(MemoryStore):
    """An answer to something else than what was shown is taken."""

    def answer(self, answers, nonce, questions=()):
        receipts, reply = super().answer(
            [replace(one_answer, digest=None) for one_answer in answers], nonce, questions
        )
        return receipts, reply


class SleepyAnswer(MemoryStore):
    """An answer is taken and wakes nobody."""

    def answer(self, answers, nonce, questions=()):
        receipts, reply = super().answer(answers, nonce, questions)
        for bell in reply.doorbells:
            self._database.timers.pop(("node", bell.run_id, bell.node), None)
        return receipts, replace(reply, doorbells=())


class TwoClaims(MemoryStore):
    """A visit that a worker has is given to another one that asks."""

    def claim(self, run_id, node, visit, attempt, nonce):
        run = self._database.runs.get(run_id)
        entry = run.node(node) if run else None
        claimed = (Status.RUNNING, visit, attempt)
        if (
            entry is not None
            and (entry.status, entry.visit, entry.attempt) == claimed
            and entry.nonce != nonce
        ):
            run.nodes[node] = replace(entry, status=Status.READY)
        return super().claim(run_id, node, visit, attempt, nonce)


class NoKeys(MemoryStore):
    """A start that is repeated begins another run."""

    def start(self, start, nonce):
        return super().start(replace(start, idempotency_key=None), nonce)


class DeafParent(MemoryStore):
    """A parent is not told that its child run has ended."""

    def settle(self, token, settlement, nonce):
        run = self._database.runs.get(token.run_id)
        parent = self._database.runs.get(run.record.parent) if run else None
        before = dict(parent.nodes) if parent else {}
        record = parent.record if parent else None
        reply = super().settle(token, settlement, nonce)
        if parent is not None and run.record.is_final:
            parent.nodes, parent.record = before, record
            return replace(reply, doorbells=())
        return reply


class TooLateSettle(MemoryStore):
    """A node that ends after its run was stopped goes on to those behind it."""

    def settle(self, token, settlement, nonce):
        run = self._database.runs.get(token.run_id)
        stopping = run.record.stopping if run else ""
        if stopping and not run.record.is_final:
            run.record = replace(run.record, stopping="")
        return super().settle(token, settlement, nonce)


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


class ManyNames(MemoryStore):
    """Who votes twice counts twice, under another name."""

    def vote(self, ballot, nonce):
        name = Principal(f"{ballot.voter.principal.sub} {ballot.idempotency_key}")
        return super().vote(replace(ballot, voter=replace(ballot.voter, principal=name)), nonce)


class EveryGroup(MemoryStore):
    """Everybody is taken for a member of every group."""

    def vote(self, ballot, nonce):
        return super().vote(
            replace(ballot, voter=replace(ballot.voter, groups=frozenset(EVERY))), nonce
        )


class AnyEffect(MemoryStore):
    """Votes for different effects add up."""

    def vote(self, ballot, nonce):
        (question,) = self.interrupts([ballot.interrupt_id])
        if ballot.decision == "edit" and question is not None:
            ballot = replace(ballot, decision="approve", effect=effect_of(question, None))
        return super().vote(ballot, nonce)


class NoUse(MemoryStore):
    """It is not noted that a decision is used."""

    def use(self, token, use, saved):
        reply = super().save(token, saved)
        return Reply("used") if reply.word == "saved" else reply


class ForgetsVoidVotes(MemoryStore):
    """Of each person the last vote stays alone, so the worker can't count again."""

    def vote(self, ballot, nonce):
        reply = super().vote(ballot, nonce)
        for run in self._database.runs.values():
            for votes in run.votes.values():
                last = {vote["by"]: number for number, vote in votes.items()}
                for number in set(votes) - set(last.values()):
                    del votes[number]
        return reply


class SleepyVote(MemoryStore):
    """A vote decides and wakes nobody."""

    def vote(self, ballot, nonce):
        receipt, reply = super().vote(ballot, nonce)
        for bell in reply.doorbells:
            self._database.timers.pop(("node", bell.run_id, bell.node), None)
        return receipt, replace(reply, doorbells=())


class LateVotes(MemoryStore):
    """A vote counts after the question's time, as long as no sweep came by."""

    def vote(self, ballot, nonce):
        run = self._database.runs.get(ballot.interrupt_id.partition(".")[0])
        question = run.questions.get(ballot.interrupt_id) if run else None
        if question is not None:
            run.questions[question.id] = replace(question, expires_in=None)
        reply = super().vote(ballot, nonce)
        if question is not None:
            run.questions[question.id] = replace(
                run.questions[question.id], expires_in=question.expires_in
            )
        return reply


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
