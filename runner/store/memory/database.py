"""All runs that the memory store keeps, and how the actions of a transition change them.

A transition is applied with all that follows from it for parent and child runs; the caller holds the
store's lock meanwhile.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner import scheduler
from runner.definition.model import Topology
from runner.records import interrupts
from runner.records.codec import JSON
from runner.records.events import NOTICES, OF_RUNS, EventKind
from runner.records.interrupts import Interrupt, address_of
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary, asked_place, cut, place_of
from runner.records.outcomes import Remembered, Session
from runner.records.run import RunRecord, Status
from runner.scheduler.changes import (
    Action,
    AddEvent,
    Changes,
    CloseQuestion,
    Dispatch,
    DropTimer,
    EndExpired,
    JoinQueue,
    NotifyParent,
    OfferPlaces,
    ReserveTime,
    ReturnPlace,
    SetTimer,
    StopChild,
    TakePlace,
    TimerKind,
    TransitionResult,
    WriteDeadLetter,
)
from runner.store import event_payloads
from runner.store.encoding import pack_copy
from runner.store.interface import Doorbell, Event, Start
from runner.store.memory.run import StoredRun
from runner.store.memory.semaphores import Semaphores
from runner.store.receipts import CRASHED


class Sessions:
    """The sessions of one or more memory stores, by id, in stored form. Thread-safe."""

    def __init__(self) -> None:
        """Start with none."""
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def read(self, session_id: str) -> Session:
        """Copy a session; one that was never written is empty."""
        with self._lock:
            session = self._sessions.get(session_id, Session())
            return Session(pack_copy(session.messages), pack_copy(session.state))

    def add(self, update: Remembered, messages: Sequence[JSON]) -> None:
        """Append what a visit adds; `messages` are all of its node's."""
        with self._lock:
            session = self._sessions.setdefault(update.session_id, Session())
            session.messages.extend(pack_copy(list(messages[update.first :])))
            session.state.update(pack_copy(update.state))
            for name in update.gone:
                session.state.pop(name, None)

    def forget(self, session_id: str) -> bool:
        """Delete a session; False when there was none."""
        with self._lock:
            return self._sessions.pop(session_id, None) is not None


def wall_clock() -> int:
    """Return the time in milliseconds."""
    return time.time_ns() // 1_000_000


class Database:
    """Runs, shapes of graphs, timers, limits, notices and dead letters."""

    def __init__(self, clock: Callable[[], int], lease_ms: int) -> None:
        """`clock` gives milliseconds, as `lease_ms` is."""
        self.clock, self.lease_ms = clock, lease_ms
        self.shapes: dict[str, Topology] = {}
        self.current: dict[str, str] = {}
        self.runs: dict[str, StoredRun] = {}
        self.timers: dict[tuple[TimerKind, str, str], int] = {}
        self._earliest = 0
        self._orphans: deque[str] = deque()
        self.semaphores = Semaphores()
        self.notices: list[dict[str, JSON]] = []
        self.dead: list[dict[str, JSON]] = []

    def add(self, start: Start, fingerprint: str) -> StoredRun:
        """Add a new run."""
        parent = start.parent
        above = self.runs[parent.run_id].record if parent else None
        record = RunRecord(
            start.run_id,
            start.graph_id,
            fingerprint,
            parent=parent.run_id if parent else "",
            parent_node=parent.node if parent else "",
            root=start.root or (above.root if above else start.run_id),
            path=f"{above.path}{parent.node}/" if above and parent else "",
            on_end=start.on_end,
            trace=start.trace,
        )
        kept = replace(start, task=pack_copy(start.task), given=pack_copy(start.given))
        root = self.runs.get(record.root)
        tags = root.root_tags if root else start.tags
        run = StoredRun(record, kept, self.clock(), self.semaphores, tags)
        self.runs[start.run_id] = run
        return run

    def list_runs(self, query: RunQuery, limit: int, cursor: str) -> Page[RunSummary]:
        """List the runs that match, newest first."""
        before = place_of(cursor) if cursor else None
        summaries = [run.summary() for run in self.runs.values()]
        matches = [run for run in summaries if query.fits(run) and (before is None or run.place < before)]
        matches.sort(key=lambda run: run.place, reverse=True)
        return cut(matches, lambda run: run.place, limit)

    def list_questions(self, query: InterruptQuery, limit: int, cursor: str) -> Page[Interrupt]:
        """List the open questions that match, oldest first."""
        after = place_of(cursor) if cursor else (-1, "")
        matches = [
            question
            for run in self.runs.values()
            for question in run.questions.values()
            if question.is_open
            and asked_place(question) > after
            and query.fits(question, run.record.graph_id, run.record.root)
        ]
        return cut(sorted(matches, key=asked_place), asked_place, limit)

    def changes(self, run: StoredRun) -> Changes:
        """Open a transition of a run."""
        return Changes(run, self.shapes[run.record.fingerprint], self.clock(), self.lease_ms)

    def apply(
        self,
        run_id: str,
        transition: Callable[..., TransitionResult],
        *arguments: object,
        questions: Sequence[Interrupt] = (),
        payloads: Mapping[str, JSON] | None = None,
        **named: object,
    ) -> tuple[str, list[Doorbell]]:
        """Apply a transition, and then what follows from it for a parent run and for child runs.

        `questions` are those that it may ask; `payloads` are the data of events, by the event's kind or
        the question's id.
        """
        run = self.runs.get(run_id)
        if run is None:
            return "stale", []
        asked = {question.id: question for question in questions}
        data = dict(payloads or {each: event_payloads.question(asked[each]) for each in asked})
        doorbells: list[Doorbell] = []
        result = transition(self.changes(run), *arguments, **named)
        actions = deque(self._write(run, result))
        while actions:
            owner, action = actions.popleft()
            record, run_id = owner.record, owner.record.run_id
            match action:
                case Dispatch():
                    visit = (run_id, action.node, action.visit, action.attempt)
                    doorbells.append(Doorbell(*visit, action.queue, action.priority, record.graph_id))
                case SetTimer():
                    self.set_timer(action.kind, run_id, action.key, action.at)
                case DropTimer():
                    self.timers.pop((action.kind, run_id, action.key), None)
                case AddEvent():
                    self.add_event(owner, action, asked, data)
                case CloseQuestion():
                    owner.close(action.interrupt_id, action.status, self.clock())
                case EndExpired():
                    data |= owner.end_expired(action)
                case WriteDeadLetter():
                    data |= self._write_dead_letter(owner, action)
                case StopChild():
                    owner.idle.discard(action.node)
                    child = self.runs[action.run_id]
                    actions += self._write(
                        child, scheduler.cancel(self.changes(child), "its parent run stops")
                    )
                case NotifyParent():
                    parent, status = self.runs[record.parent], Status(action.status)
                    changes = self.changes(parent)
                    actions += self._write(
                        parent, scheduler.child_changed(changes, record.parent_node, run_id, status)
                    )
                case ReserveTime() | TakePlace() | JoinQueue() | ReturnPlace() | OfferPlaces():
                    now = self.clock()
                    for other, node in self.semaphores.act(run_id, action, (now, now + self.lease_ms)):
                        run = self.runs[other]
                        actions += self._write(run, scheduler.offer_place(self.changes(run), node))
        return result.reply, doorbells

    def asking(self, interrupt_id: str) -> StoredRun | None:
        """Find the run that asked a question, by the question's id."""
        address = address_of(interrupt_id)
        return self.runs.get(address.run_id) if address else None

    def renew(self, run_id: str, node: str) -> None:
        """Extend a node's lease."""
        self.set_timer(TimerKind.NODE, run_id, node, self.clock() + self.lease_ms)

    def set_timer(self, kind: TimerKind, run_id: str, key: str, at: int) -> None:
        self.timers[kind, run_id, key] = at
        self._earliest = min(self._earliest, at)

    def due(self, limit: int) -> list[tuple[TimerKind, str, str]]:
        """Remove the timers that are due and return them, the oldest first."""
        now = self.clock()
        if now < self._earliest:
            return []
        ordered = sorted((at, "|".join(timer), timer) for timer, at in self.timers.items() if at <= now)
        due = [timer for _, _, timer in ordered[:limit]]
        for timer in due:
            del self.timers[timer]
        self._earliest = min(self.timers.values(), default=sys.maxsize)
        return due

    def remove(self, run_id: str) -> None:
        """Remove a run; the runs inside it are left to `remove_orphans`."""
        self._orphans.extend(self.runs.pop(run_id).children)

    def remove_orphans(self, limit: int) -> None:
        """Remove runs whose parent is gone, at most so many."""
        for _ in range(limit):
            if not self._orphans:
                return
            run = self.runs.get(self._orphans.popleft())
            if run is not None and run.record.is_final:
                self.remove(run.record.run_id)

    def event(
        self, run: StoredRun, kind: str, node: str, visit: int, *, detail: str = "", data: JSON = None
    ) -> None:
        """Add an event to a run, and to the notices where it is one."""
        record = run.record
        run_id = record.run_id
        event = run.events.add(Event("", str(kind), self.clock(), node, visit, detail, data))
        position = event.position
        if record.path and not kind.startswith(OF_RUNS) and (above := self.runs.get(record.root)):
            above.events.add(replace(event, node=record.path + node))
        if kind in NOTICES:
            notice = {"id": f"{run_id}:{position}", "kind": str(kind), "run_id": run_id}
            if kind == EventKind.INTERRUPT_WITHDRAWN and data is not None:
                notice["withdrawal"] = pack_copy(data)
            if kind == EventKind.INTERRUPT_REMINDED:
                notice["reminded"] = data["count"]
            self.notices.append({**notice, "node": node, "visit": visit, "detail": detail})

    def _write(self, run: StoredRun, result: TransitionResult) -> list[tuple[StoredRun, Action]]:
        run.write(result)
        return [(run, action) for action in result.actions]

    def add_event(
        self, run: StoredRun, action: AddEvent, asked: Mapping[str, Interrupt], payloads: dict[str, JSON]
    ) -> None:
        kind = action.kind
        if kind is EventKind.INTERRUPT_ASKED:
            self._open(run, asked[action.detail])
        if kind is EventKind.INTERRUPT_REMINDED:
            payloads |= run.remind(action.detail)
        if kind is EventKind.RUN_ENDED:
            run.ended_at = self.clock()
        if kind in {
            EventKind.INTERRUPT_WITHDRAWN,
            EventKind.INTERRUPT_EXPIRED,
            EventKind.INTERRUPT_REMINDED,
        }:
            data = payloads.get(kind)
        else:
            data = payloads.get(action.detail, payloads.get(kind))
        self.event(run, kind, action.node, action.visit, detail=action.detail, data=pack_copy(data))

    def _open(self, run: StoredRun, question: Interrupt) -> None:
        now, run_id, before = self.clock(), run.record.run_id, run.questions.get(question.id)
        # A later time than before, as in parts/questions.lua: there it tells apart what was judged.
        asked_at = now if before is None else max(now, before.asked_at + 1)
        opened = replace(question, asked_at=asked_at, reminded=0)
        run.open(opened)
        if opened.expires_in is not None:
            expires_at = now + round(opened.expires_in * 1000)
            self.set_timer(TimerKind.EXPIRE, run_id, opened.id, expires_at)
        if first := interrupts.first_reminder(opened):
            self.set_timer(TimerKind.REMIND, run_id, opened.id, now + first)

    def _write_dead_letter(self, run: StoredRun, action: WriteDeadLetter) -> dict[str, JSON]:
        """Write the error of a node that used up its restarts; return the data of its event, by kind."""
        run.entries[action.node, action.visit] = {"error": pack_copy(CRASHED)}
        visit = {"run_id": run.record.run_id, "node": action.node, "visit": action.visit}
        self.dead.append({**visit, "reason": CRASHED["message"]})
        return {EventKind.NODE_FAILED: event_payloads.error({"error": CRASHED})}
