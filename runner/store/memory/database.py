"""All runs of the memory store: the unit of work of its transitions (see `store/apply_transition.py`).

The caller holds the store's lock.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from runner.approvals.freezes import Freeze
from runner.audit import entries as audit_entries
from runner.audit.entries import Mode
from runner.definition.model import Topology, shape_name
from runner.limits.fairness import UNKNOWN_WINDOW
from runner.limits.setting import LimitSetting
from runner.limits.slots import LimitAction
from runner.records.codec import JSON
from runner.records.interrupts import Interrupt
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary, cut, position_in
from runner.records.run import NOTICES, OF_RUNS, OF_VOTES, EventKind, RunRecord, Status
from runner.scheduler.changes import Changes, TimerKind
from runner.store.encoding import pack_copy
from runner.store.interface import Doorbell, Event, Start
from runner.store.memory.fair_queue import FairQueue
from runner.store.memory.run import PARTITION, MemoryRun
from runner.store.memory.semaphores import Member, Semaphores
from runner.store.memory.sessions import Sessions


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


TAKEN = sys.maxsize
"""The time of a timer that a sweep has taken but not handled yet."""


class MemoryKeyLists:
    """Lists of runs, by name."""

    def __init__(self) -> None:
        self._runs: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def count(self, name: str, bound: int) -> int:  # noqa: ARG002 - nothing comes in between
        return len(self._runs[name])

    def first(self, name: str, most: int) -> list[str]:
        return list(self._runs[name])[:most]

    def add(self, name: str, run_id: str) -> None:
        self._runs[name][run_id] = None

    def remove(self, name: str, run_id: str) -> None:
        self._runs[name].pop(run_id, None)


class Database:
    """Runs, shapes of graphs, timers, limits, notices and dead letters."""

    def __init__(self, clock: Callable[[], int], lease_ms: int, sessions: Sessions) -> None:
        """Take a clock in milliseconds; other stores may share the `sessions`."""
        self.sessions = sessions
        self.clock, self.lease_ms = clock, lease_ms
        self.shapes: dict[str, Topology] = {}
        self.latest: dict[str, str] = {}
        self.started: dict[tuple[str, str], str] = {}
        self.runs: dict[str, MemoryRun] = {}
        self.timers: dict[tuple[TimerKind, str, str], int] = {}
        self._earliest = 0
        self._orphans: deque[str] = deque()
        self.semaphores = Semaphores()
        self.lists = MemoryKeyLists()
        self.windows: dict[str, int] = {}
        self.fair_queues: dict[tuple[str, int], FairQueue] = defaultdict(
            lambda: FairQueue(self._is_ready)
        )
        self.audits: Mode = "approvals"
        self.entries: list[dict[str, JSON]] = []
        self.frozen: dict[str, Freeze] = {}
        self.notices: list[dict[str, JSON]] = []
        self.dead: list[dict[str, JSON]] = []
        self.signature_counts: dict[str, int] = {}

    def current(self, graph_id: str) -> str:
        return self.latest.get(graph_id, "")

    def note_start(self, graph_id: str, key: str, run_id: str) -> None:
        self.started[graph_id, key] = run_id

    def shape(self, graph_id: str, fingerprint: str) -> Topology | None:  # noqa: ARG002 - a shape has its name
        return self.shapes.get(fingerprint)

    def bound(self, graph_id: str, declared: int) -> int | None:  # noqa: ARG002 - there is one partition
        return declared or None

    def open_runs(self, graph_id: str, bound: int) -> int:  # noqa: ARG002 - nothing comes in between
        records = [run.record for run in self.runs.values()]
        return sum(record.graph_id == graph_id and not record.is_final for record in records)

    def started_by(self, graph_id: str, key: str) -> str:
        return self.started.get((graph_id, key), "")

    def begin(self, record: RunRecord, start: Start) -> MemoryRun:
        stored = replace(
            start,
            task=pack_copy(start.task),
            invocation_state=pack_copy(start.invocation_state),
        )
        root = self.runs.get(record.root)
        tags = root.root_tags if root else start.tags
        asked = root.root_requester if root else dict(start.requester or {})
        beside = (self.semaphores, self.sessions, tags, asked, self.entries)
        run = MemoryRun(record, stored, self.clock(), *beside)
        self.runs[record.run_id] = run
        if start.idempotency_key:
            self.started[record.graph_id, start.idempotency_key] = record.run_id
        if record.parent:
            self.runs[record.parent].children.append(record.run_id)
        return run

    def list_runs(self, query: RunQuery, limit: int, cursor: str) -> Page[RunSummary]:
        before = position_in(cursor) if cursor else None
        summaries = [run.summary() for run in self.runs.values()]
        matches = [
            run
            for run in summaries
            if query.fits(run) and (before is None or run.position < before)
        ]
        matches.sort(key=lambda run: run.position, reverse=True)
        return cut(matches, lambda run: run.position, limit)

    def list_questions(self, query: InterruptQuery, limit: int, cursor: str) -> Page[Interrupt]:
        after = position_in(cursor) if cursor else None
        matches = [
            question
            for question in self._matching(query)
            if after is None or query.position(question) > after
        ]
        return cut(sorted(matches, key=query.position), query.position, limit)

    def count_questions(self, query: InterruptQuery) -> int:
        return sum(1 for _ in self._matching(query))

    def _matching(self, query: InterruptQuery) -> Iterator[Interrupt]:
        for run in self.runs.values():
            root = self.runs.get(run.record.root, run)
            for question in run.questions.values():
                fits = query.fits(
                    question, run.record.graph_id, run.record.root, root.start.tags
                )
                if fits and (question.is_open or question.id in run.closed):
                    yield question

    def changes(self, run: MemoryRun) -> Changes:
        return Changes(run, self.shapes[run.record.fingerprint], self.clock(), self.lease_ms)

    def find(self, run_id: str) -> MemoryRun | None:
        return self.runs.get(run_id)

    def limit(self, run_id: str, action: LimitAction) -> Sequence[Member]:
        now = self.clock()
        return self.semaphores.act(run_id, action, (now, now + self.lease_ms))

    def size_window(self, queue: str, size: int) -> None:
        self.windows[queue] = size

    def in_turn(self, doorbells: Sequence[Doorbell]) -> list[Doorbell]:
        """Keep doorbells whose keys must wait for their turns; return the doorbells to ring now."""
        rung: list[Doorbell] = []
        lanes: dict[tuple[str, int], None] = {}
        for bell in doorbells:
            if bell.share is None:
                rung.append(bell)
            else:
                lanes[bell.queue, bell.priority] = None
                fair_queue = self.fair_queues[bell.queue, bell.priority]
                rung += fair_queue.admit(bell.share, bell, self.clock())
        return [*rung, *(bell for lane in lanes for bell in self._refill(lane))]

    def refill(self, queues: Collection[str]) -> list[Doorbell]:
        """Return the doorbells to ring on these queues after their windows have changed."""
        lanes = sorted(lane for lane in self.fair_queues if lane[0] in queues)
        return [bell for lane in lanes for bell in self._refill(lane)]

    def claimed(self, run_id: str, node: str, visit: int, attempt: int) -> list[Doorbell]:
        """Remove a doorbell that reached a worker from its window; return the next doorbells to ring."""
        run = self.runs.get(run_id)
        shape = self.shapes[run.record.fingerprint] if run else None
        if run is None or shape is None or shape.fairness is None:
            return []
        place = shape.nodes[shape_name(node)]
        lane = place.queue, place.priority
        bell = Doorbell(run_id, node, visit, attempt, *lane, run.record.graph_id)
        self.fair_queues[lane].claimed(bell)
        return self._refill(lane)

    def _refill(self, lane: tuple[str, int]) -> list[Doorbell]:
        now = self.clock()
        window = self.windows.get(lane[0], UNKNOWN_WINDOW)
        return self.fair_queues[lane].refill(window, now)

    def _is_ready(self, bell: Doorbell) -> bool:
        run = self.runs.get(bell.run_id)
        record = run.nodes.get(bell.node) if run else None
        visit = (Status.READY, bell.visit, bell.attempt)
        return record is not None and (record.status, record.visit, record.attempt) == visit

    def renew(self, run_id: str, node: str) -> None:
        self.set_timer(TimerKind.NODE, run_id, node, self.clock() + self.lease_ms)

    def set_timer(self, kind: TimerKind, run_id: str, key: str, due: int) -> None:
        self.timers[kind, run_id, key] = due
        self._earliest = min(self._earliest, due)

    def drop_timer(self, kind: TimerKind, run_id: str, key: str) -> None:
        self.timers.pop((kind, run_id, key), None)

    def signature_count(self, passkey: str) -> int:
        return self.signature_counts.get(passkey, 0)

    def put_signature_count(self, passkey: str, count: int) -> None:
        self.signature_counts[passkey] = count

    def due(self, limit: int) -> list[tuple[TimerKind, str, str]]:
        """Return the due timers, oldest first; `take_timer` then removes each."""
        now = self.clock()
        if now < self._earliest:
            return []
        ordered = sorted(
            (ms, "|".join(timer), timer) for timer, ms in self.timers.items() if ms <= now
        )
        due = [timer for _, _, timer in ordered[:limit]]
        self.timers |= dict.fromkeys(due, TAKEN)
        self._earliest = min(self.timers.values(), default=TAKEN)
        return due

    def take_timer(self, kind: TimerKind, run_id: str, key: str) -> bool:
        """Remove a due timer, unless an earlier timer of the sweep has set it again or dropped it."""
        if self.timers.get((kind, run_id, key)) != TAKEN:
            return False
        del self.timers[kind, run_id, key]
        return True

    def remove(self, run_id: str) -> None:
        """Remove a run; the runs inside it are left to `remove_orphans`."""
        self._orphans.extend(self.runs.pop(run_id).children)
        self.started = {
            key: started for key, started in self.started.items() if started != run_id
        }

    def remove_orphans(self, limit: int) -> None:
        """Remove at most `limit` runs whose parent is gone."""
        for _ in range(limit):
            if not self._orphans:
                return
            run = self.runs.get(self._orphans.popleft())
            if run is not None and run.record.is_final:
                if run.audited and self.audits != "off":
                    run.audit(audit_entries.removed(run.record, self.clock()))
                self.remove(run.record.run_id)

    def event(
        self,
        run: MemoryRun,
        kind: str,
        node: str,
        visit: int,
        *,
        detail: str = "",
        data: JSON = None,
    ) -> None:
        """Add an event to a run, and to the notices if its kind is one."""
        record = run.record
        run_id = record.run_id
        data = pack_copy(data)
        event = run.events.add(Event("", str(kind), self.clock(), node, visit, detail, data))
        position = event.position
        if (
            record.path
            and not kind.startswith(OF_RUNS)
            and (above := self.runs.get(record.root))
        ):
            above.events.add(replace(event, node=record.path + node))
        if kind in NOTICES:
            notice = {"id": f"{run_id}:{position}", "kind": str(kind), "run_id": run_id}
            if kind == EventKind.INTERRUPT_WITHDRAWN and data is not None:
                notice["withdrawal"] = pack_copy(data)
            if kind == EventKind.INTERRUPT_REMINDED:
                notice["reminded"] = data["count"]
            if kind in OF_VOTES:
                notice["data"] = data
            self.notices.append({**notice, "node": node, "visit": visit, "detail": detail})

    def freeze(self, scope: str, reason: str, by: str) -> str:
        if scope in self.frozen:
            return "already"
        self.frozen[scope] = Freeze(scope, reason, by, self.clock())
        self._note_freeze("frozen", scope, reason, by)
        return "frozen"

    def thaw(self, scope: str, reason: str, by: str) -> str:
        if self.frozen.pop(scope, None) is None:
            return "unknown"
        self._note_freeze("thawed", scope, reason, by)
        self.wake_ready_nodes()
        return "thawed"

    def wake_ready_nodes(self) -> None:
        """Make the doorbells of ready nodes that no worker has claimed due at once."""
        now = self.clock()
        for (kind, run_id, key), due in self.timers.items():
            run = self.runs.get(run_id)
            if kind is TimerKind.NODE and run and run.node(key).status is Status.READY:
                self.set_timer(kind, run_id, key, min(due, now))

    def limit_setting(self, name: str) -> LimitSetting | None:
        return self.semaphores.settings.get(name)

    def put_limit_setting(self, setting: LimitSetting, entry: dict[str, JSON] | None) -> None:
        self.semaphores.settings[setting.id] = setting
        if setting.is_empty:
            del self.semaphores.settings[setting.id]
        if entry:
            self.entries.append({**entry, "partition": PARTITION})

    def _note_freeze(self, kind: str, scope: str, reason: str, by: str) -> None:
        now = self.clock()
        self.notices.append(
            {"id": f"{kind}:{scope}:{now}", "kind": f"effects.{kind}", "detail": scope}
        )
        if self.audits != "off":
            entry = audit_entries.of_change(kind, scope, reason, by, now)
            self.entries.append({**entry, "partition": PARTITION})

    def write_dead_letter(self, run_id: str, node: str, visit: int, reason: str) -> None:
        self.dead.append({"run_id": run_id, "node": node, "visit": visit, "reason": reason})
