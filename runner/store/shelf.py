"""All runs that the memory store keeps, and how the actions of a transition change them.

One transition is applied whole before another begins: the caller holds the store's lock.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner import reminders, schedule
from runner.actions import (
    Action,
    Announce,
    Bury,
    Close,
    Conclude,
    Dispatch,
    DropTimer,
    Leave,
    PassOn,
    PlaceAction,
    Queue,
    Reserve,
    SetTimer,
    StopChild,
    Take,
    TellParent,
    TimerKind,
)
from runner.draft import Draft, Step
from runner.events import NOTICES, OF_RUNS, EventKind
from runner.graph import Topology
from runner.interrupts import Interrupt, address_of
from runner.listings import (
    InterruptQuery,
    Page,
    RunQuery,
    RunSummary,
    asked_place,
    cut,
    place_of,
)
from runner.ports import Doorbell, Event, Start
from runner.run import RunRecord, Status
from runner.store import told as say
from runner.store.kept import KeptRun
from runner.store.places import Places
from runner.store.receipts import CRASHED
from runner.store.stored import pack_copy
from runner.store.weights import Weights

JSON = Any


def wall_clock() -> int:
    """Return the time in milliseconds."""
    return time.time_ns() // 1_000_000


class Shelf:
    """Runs, graphs' shapes and timers, in dictionaries."""

    def __init__(self, clock: Callable[[], int], lease_ms: int) -> None:
        """`clock` gives milliseconds, as `lease_ms` is."""
        self.clock, self.lease_ms = clock, lease_ms
        self.shapes: dict[str, Topology] = {}
        self.current: dict[str, str] = {}
        self.runs: dict[str, KeptRun] = {}
        self.timers: dict[tuple[TimerKind, str, str], int] = {}
        self._earliest = 0
        self._orphans: deque[str] = deque()
        self.places = Places()
        self.notices: list[dict[str, JSON]] = []
        self.dead: list[dict[str, JSON]] = []
        self._asked: Mapping[str, Interrupt] = {}
        self._told: Mapping[str, JSON] = {}

    def add(self, start: Start, fingerprint: str) -> KeptRun:
        """Put a new run on the shelf."""
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
        )
        kept = replace(start, task=pack_copy(start.task), given=pack_copy(start.given))
        root = self.runs.get(record.root)
        tags, weights = (root.root_tags, root.weights) if root else (start.tags, Weights(record.root))
        run = KeptRun(record, kept, self.clock(), self.places, tags, weights)
        self.runs[start.run_id] = run
        return run

    def newest(self, query: RunQuery, limit: int, cursor: str) -> Page[RunSummary]:
        """List the runs that are wanted, newest first."""
        before = place_of(cursor) if cursor else None
        found = [run.summary() for run in self.runs.values()]
        wanted = [run for run in found if query.fits(run) and (before is None or run.place < before)]
        wanted.sort(key=lambda run: run.place, reverse=True)
        return cut(wanted, lambda run: run.place, limit)

    def open_interrupts(self, query: InterruptQuery, limit: int, cursor: str) -> Page[Interrupt]:
        """List the open questions that are wanted, oldest first."""
        after = place_of(cursor) if cursor else (-1, "")
        found = [
            asked
            for run in self.runs.values()
            for asked in run.questions.values()
            if asked.is_open
            and asked_place(asked) > after
            and query.fits(asked, run.record.graph_id, run.record.root)
        ]
        return cut(sorted(found, key=asked_place), asked_place, limit)

    def draft(self, run: KeptRun) -> Draft:
        """Open a transition of a run."""
        return Draft(run, self.shapes[run.record.fingerprint], self.clock(), self.lease_ms)

    def apply(
        self,
        run_id: str,
        transition: Callable[..., Step],
        *arguments: object,
        questions: Sequence[Interrupt] = (),
        told: Mapping[str, JSON] | None = None,
        **named: object,
    ) -> tuple[str, list[Doorbell]]:
        """Do a transition, and then what it means for a parent run and for child runs.

        `told` are the data of events, by the event's kind or its question.
        """
        run = self.runs.get(run_id)
        if run is None:
            return "stale", []
        self._asked = {asked.id: asked for asked in questions}
        self._told = told or {asked.id: say.question(asked) for asked in questions}
        bells: list[Doorbell] = []
        step = transition(self.draft(run), *arguments, **named)
        todo = deque(self._write(run, step))
        while todo:
            of, action = todo.popleft()
            if isinstance(action, Dispatch):
                bells.append(_doorbell(of, action))
            else:
                todo.extend(self._act(of, action))
        return step.reply, bells

    def asking(self, interrupt_id: str) -> KeptRun | None:
        """Find the run that asked a question, by the question's id."""
        address = address_of(interrupt_id)
        return self.runs.get(address.run_id) if address else None

    def renew(self, run_id: str, node: str) -> None:
        """Let a node's lease begin anew."""
        self._set_timer(TimerKind.NODE, run_id, node, self.clock() + self.lease_ms)

    def _set_timer(self, kind: TimerKind, run_id: str, key: str, at: int) -> None:
        self.timers[kind, run_id, key] = at
        self._earliest = min(self._earliest, at)

    def due(self, limit: int) -> list[tuple[TimerKind, str, str]]:
        """Take the timers that are due away, the oldest first."""
        now = self.clock()
        if now < self._earliest:
            return []
        found = sorted((at, "|".join(timer), timer) for timer, at in self.timers.items() if at <= now)
        due = [timer for _, _, timer in found[:limit]]
        for timer in due:
            del self.timers[timer]
        self._earliest = min(self.timers.values(), default=sys.maxsize)
        return due

    def drop(self, run_id: str) -> None:
        """Take a run away; the runs inside it are left to `forget`."""
        self._orphans.extend(self.runs.pop(run_id).children)

    def forget(self, limit: int) -> None:
        """Take away runs whose parent is gone, at most so many."""
        for _ in range(limit):
            if not self._orphans:
                return
            run = self.runs.get(self._orphans.popleft())
            if run is not None and run.record.is_final:
                self.drop(run.record.run_id)

    def event(
        self, run: KeptRun, kind: str, node: str, visit: int, *, detail: str = "", data: JSON = None
    ) -> None:
        """Add an event to a run, and to the notices where it is one."""
        record = run.record
        run_id = record.run_id
        event = run.events.add(Event("", kind, self.clock(), node, visit, detail, data))
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

    def _write(self, run: KeptRun, step: Step) -> list[tuple[KeptRun, Action]]:
        run.write(step)
        return [(run, action) for action in step.actions]

    def _act(self, run: KeptRun, action: Action) -> list[tuple[KeptRun, Action]]:
        """Do one action; what another run does because of it comes back, to be done after all else."""
        run_id = run.record.run_id
        match action:
            case SetTimer():
                self._set_timer(action.kind, run_id, action.key, action.at)
            case DropTimer():
                self.timers.pop((action.kind, run_id, action.key), None)
            case Announce():
                self._announce(run, action)
            case Close():
                run.close(action.interrupt_id, action.status, self.clock())
            case Bury() | Conclude():
                self._end(run, action)
            case TellParent() | StopChild():
                return self._follow(run, action)
            case Reserve() | Take() | Queue() | Leave() | PassOn():
                return self._place(run_id, action)
        return []

    def _place(self, run_id: str, action: PlaceAction) -> list[tuple[KeptRun, Action]]:
        now, found = self.clock(), list[tuple[KeptRun, Action]]()
        for other, node in self.places.act(run_id, action, (now, now + self.lease_ms)):
            run = self.runs[other]
            found += self._write(run, schedule.pass_on(self.draft(run), node))
        return found

    def _follow(self, run: KeptRun, action: TellParent | StopChild) -> list[tuple[KeptRun, Action]]:
        if isinstance(action, StopChild):
            run.idle.discard(action.node)
            child = self.runs[action.run_id]
            return self._write(child, schedule.cancel(self.draft(child), "its parent run stops"))
        record = run.record
        parent, status = self.runs[record.parent], Status(action.status)
        step = schedule.child_moved(self.draft(parent), record.parent_node, record.run_id, status)
        return self._write(parent, step)

    def _announce(self, run: KeptRun, action: Announce) -> None:
        if action.kind is EventKind.INTERRUPT_ASKED:
            self._open(run, self._asked[action.detail])
        if action.kind is EventKind.INTERRUPT_REMINDED:
            self._told = run.remind(action.detail)
        if action.kind is EventKind.RUN_ENDED:
            run.ended_at = self.clock()
        data = self._told.get(action.detail, self._told.get(action.kind))
        if action.kind in {EventKind.INTERRUPT_WITHDRAWN, EventKind.INTERRUPT_EXPIRED}:
            data = self._told.get(action.kind)
        self.event(run, action.kind, action.node, action.visit, detail=action.detail, data=pack_copy(data))

    def _open(self, run: KeptRun, question: Interrupt) -> None:
        asked, run_id = replace(question, asked_at=self.clock(), reminded=0), run.record.run_id
        run.open(asked)
        if asked.expires_in is not None:
            at = asked.asked_at + round(asked.expires_in * 1000)
            self._set_timer(TimerKind.EXPIRE, run_id, asked.id, at)
        if first := reminders.first(asked):
            self._set_timer(TimerKind.REMIND, run_id, asked.id, asked.asked_at + first)

    def _end(self, run: KeptRun, action: Bury | Conclude) -> None:
        """Write what a node leaves behind that ends without a worker."""
        if isinstance(action, Conclude):
            self._told = run.conclude(action)
            return
        run.entries[action.node, action.visit] = {"error": pack_copy(CRASHED)}
        self._told = {EventKind.NODE_FAILED: say.error({"error": CRASHED})}
        where = {"run_id": run.record.run_id, "node": action.node, "visit": action.visit}
        self.dead.append({**where, "reason": CRASHED["message"]})


def _doorbell(run: KeptRun, action: Dispatch) -> Doorbell:
    record = run.record
    where = (record.run_id, action.node, action.visit, action.attempt)
    return Doorbell(*where, action.queue, action.priority, record.graph_id)
