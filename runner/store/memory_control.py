"""What people do to runs that have ended or wait, and other systems for nodes, in the memory store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from runner import schedule, sizes
from runner.draft import Step
from runner.events import EventKind
from runner.graph import Topology
from runner.migrating import Migration
from runner.ports import Doorbell, Fork, Reply, Token
from runner.run import Rewrite, Status
from runner.store import forked, renaming
from runner.store import told as say
from runner.store.layout import dump
from runner.store.memory_sizes import MemorySizes
from runner.store.stored import pack_copy

JSON = Any

WAITS = frozenset({Status.INTERRUPTED, Status.NEEDS_MIGRATION})


class MemoryControl(MemorySizes):
    """The part of the memory store that lets runs go on with other records, or by other systems' work."""

    _changed: threading.Condition
    _keys: dict[tuple[str, str], str]

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:  # noqa: ARG002 - a shape knows its name
        with self._changed:
            return self._shelf.shapes.get(fingerprint)

    def told(self, run_id: str, end: int) -> Reply:
        with self._changed:
            return Reply(*self._shelf.apply(run_id, schedule.told, end))

    def release(self, run_id: str, nodes: Sequence[str]) -> Reply:
        with self._changed:
            return self._moved(run_id, schedule.release, nodes)

    def documents(self, run_id: str) -> dict[str, JSON]:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            return {} if run is None else {name: pack_copy(each) for name, each in run.documents.items()}

    def migrate(self, runs: Sequence[Migration], nonce: str) -> Reply:
        with self._changed:
            asked = [self._weigh_move(each) for each in runs]
            kept = [(run, each) for each in runs if (run := self._shelf.runs.get(each.run_id)) is not None]
            if len(kept) < len(runs):
                return Reply("unknown")
            if all(run.reopened == nonce for run, _ in kept):
                return Reply("migrated")
            if any(each.fingerprint not in self._shelf.shapes for each in runs):
                return Reply("unknown_graph")
            if any(run.record.status not in WAITS or len(run.events) != each.events for run, each in kept):
                return Reply("moved")
            bells: list[Doorbell] = []
            for (run, each), written in zip(kept, asked, strict=True):
                renaming.move(run, each)
                run.reopened = nonce
                said: dict[str, Any] = {"questions": each.asked, "told": say.migration(each)}
                bells += self._shelf.apply(each.run_id, schedule.migrate, each, **said)[1]
                self._count_questions(each.run_id, written)
            self._changed.notify_all()
            return Reply("migrated", bells)

    def rewrite(self, runs: Sequence[Rewrite], nonce: str) -> Reply:
        with self._changed:
            found = [self._shelf.runs.get(each.run_id) for each in runs]
            kept = [(run, each) for run, each in zip(found, runs, strict=True) if run is not None]
            if len(kept) < len(runs):
                return Reply("unknown")
            if all(run.reopened == nonce for run, _ in kept):
                return Reply("reopened")
            if any(not run.record.is_final or len(run.events) != each.events for run, each in kept):
                return Reply("moved")
            bells: list[Doorbell] = []
            for run, each in kept:
                run.erase(each)
                run.reopened = nonce
                bells += self._shelf.apply(each.run_id, schedule.reopen, each.records)[1]
            self._changed.notify_all()
            return Reply("reopened", bells)

    def fork(self, fork: Fork) -> Reply:
        with self._changed:
            source, start = self._shelf.runs.get(fork.source), fork.start
            if start.run_id in self._shelf.runs:
                return Reply("forked", run_id=start.run_id)
            if source is None:
                return Reply("unknown")
            if start.fingerprint not in self._shelf.shapes:
                return Reply("unknown_graph")
            run = self._shelf.add(start, start.fingerprint)
            forked.copy(run, source, fork)
            run.weights.add(sum(len(dump(each)) for each in (start.task, start.given, dict(start.tags))))
            if run.weights.total > self.max_run:
                del self._shelf.runs[start.run_id]
                raise sizes.no_room(0, run.weights.total, self.max_run)
            word, bells = self._shelf.apply(start.run_id, schedule.fork, fork.records, fork.source)
            self._changed.notify_all()
            return Reply(word, bells, start.run_id)

    def withdraw(self, interrupt_id: str, reason: str, *, reask: bool) -> Reply:
        with self._changed:
            run = self._shelf.asking(interrupt_id)
            question = run.questions.get(interrupt_id) if run else None
            if run is None or question is None:
                return Reply("unknown")
            given: dict[str, JSON] = {"reason": reason, "reask": reask}
            known = question.withdrawal
            if known is not None and known.items() >= given.items():
                return Reply("withdrawn")
            attempt = self._shelf.draft(run).node(question.node_id).attempt
            told: dict[str, JSON] = {EventKind.INTERRUPT_WITHDRAWN: given}
            where = run.record.run_id
            word, bells = self._shelf.apply(where, schedule.withdraw, interrupt_id, reask=reask, told=told)
            if word == "closed":
                return Reply(word)
            run.weights.add(len(dump(given)))
            closed = replace(run.questions[interrupt_id], withdrawal={**given, "attempt": attempt})
            run.questions[interrupt_id] = closed
            self._changed.notify_all()
            return Reply("withdrawn", bells)

    def remove(self, run_id: str) -> Reply:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            if run is None:
                return Reply("unknown")
            if run.record.parent:
                return Reply("inside")
            if not run.record.is_final or run.record.untold:
                return Reply("goes_on")
            self._shelf.drop(run_id)
            self._keys = {key: run for key, run in self._keys.items() if run != run_id}
            self._changed.notify_all()
            return Reply("removed")

    def leave(self, token: Token) -> Reply:
        with self._changed:
            return self._moved(token.run_id, schedule.leave, token.node, token.visit, token.fence)

    def hand(self, token: Token, reference: str) -> Reply:
        with self._changed:
            at = (token.node, token.visit, token.fence)
            return self._moved(token.run_id, schedule.hand, *at, reference)

    def sent(self, token: Token, reference: str, timeout_ms: int) -> Reply:
        with self._changed:
            at = (token.node, token.visit, token.fence)
            return self._moved(token.run_id, schedule.sent, *at, reference, timeout_ms=timeout_ms)

    def report(self, run_id: str, node: str, visit: int, reference: str, outcome: JSON) -> Reply:
        with self._changed:
            size = len(self._small(Token(run_id, node, visit, 0), outcome))
            run = self._shelf.runs.get(run_id)
            if run is None:
                return Reply("unknown")
            reply = self._moved(run_id, schedule.report, node, visit, reference)
            if reply.word == "reported":
                run.weights.add(0 if reference in run.reports else size)
                run.reports.setdefault(reference, pack_copy(outcome))
            return reply

    def _moved(self, run_id: str, transition: Callable[..., Step], *arguments: object, **named: Any) -> Reply:
        moved = Reply(*self._shelf.apply(run_id, transition, *arguments, **named))
        self._changed.notify_all()
        return moved
