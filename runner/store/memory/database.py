"""All runs of the memory store: the unit of work of its transitions (see `store/apply_transition.py`).

The caller holds the store's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from runner.audit.entries import Mode
from runner.definition.model import Topology
from runner.limits.setting import LimitSetting
from runner.limits.slots import LimitAction
from runner.records.codec import JSON, JSONObject
from runner.records.run import OF_RUNS, RunRecord
from runner.scheduler.changes import Changes, TimerKind
from runner.store.apply_transition import RunLists
from runner.store.encoding import pack_copy
from runner.store.interface import Event, Start
from runner.store.memory.run import MemoryRun
from runner.store.memory.semaphores import Member, Semaphores
from runner.store.memory.sessions import Sessions


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


Timer = tuple[TimerKind, str, str]
"""A kind, a run and a key."""


class Database:
    """Runs, shapes of graphs, timers, limits and dead letters."""

    audits: Mode = "off"
    lists: RunLists
    """Unset: no graph of this store has rules for its starts."""

    def __init__(self, clock: Callable[[], int], lease_ms: int, sessions: Sessions) -> None:
        """Take a clock in milliseconds; other stores may share the `sessions`."""
        self.sessions = sessions
        self.clock, self.lease_ms = clock, lease_ms
        self.shapes: dict[str, Topology] = {}
        self.latest: dict[str, str] = {}
        self.started: dict[tuple[str, str], str] = {}
        self.runs: dict[str, MemoryRun] = {}
        self.timers: dict[Timer, int] = {}
        self.semaphores = Semaphores()
        self.dead: list[JSONObject] = []
        self.signature_counts: dict[str, int] = {}

    def current(self, graph_id: str) -> str:
        return self.latest.get(graph_id, "")

    def shape(self, graph_id: str, fingerprint: str) -> Topology | None:  # noqa: ARG002 - a shape has its name
        return self.shapes.get(fingerprint)

    def bound(self, graph_id: str, declared: int) -> None:
        """Return None: a start is never refused."""

    def started_by(self, graph_id: str, key: str) -> str:
        return self.started.get((graph_id, key), "")

    def begin(self, record: RunRecord, start: Start) -> MemoryRun:
        stored = replace(
            start,
            task=pack_copy(start.task),
            invocation_state=pack_copy(start.invocation_state),
        )
        shared = (self.semaphores, self.sessions)
        run = MemoryRun(record, stored, self.clock(), *shared, root=self.runs.get(record.root))
        self.runs[record.run_id] = run
        if start.idempotency_key:
            self.started[record.graph_id, start.idempotency_key] = record.run_id
        if record.parent:
            self.runs[record.parent].children.append(record.run_id)
        return run

    def changes(self, run: MemoryRun) -> Changes:
        return Changes(run, self.shapes[run.record.fingerprint], self.clock(), self.lease_ms)

    def find(self, run_id: str) -> MemoryRun | None:
        return self.runs.get(run_id)

    def limit(self, run_id: str, action: LimitAction) -> Sequence[Member]:
        now = self.clock()
        return self.semaphores.act(run_id, action, (now, now + self.lease_ms))

    def set_timer(self, kind: TimerKind, run_id: str, key: str, due: int) -> None:
        self.timers[kind, run_id, key] = due

    def drop_timer(self, kind: TimerKind, run_id: str, key: str) -> None:
        self.timers.pop((kind, run_id, key), None)

    def signature_count(self, passkey: str) -> int:
        return self.signature_counts.get(passkey, 0)

    def put_signature_count(self, passkey: str, count: int) -> None:
        self.signature_counts[passkey] = count

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
        """Add an event to a run, and to its root if it is inside one."""
        record = run.record
        event = Event("", str(kind), self.clock(), node, visit, detail, pack_copy(data))
        run.events.add(event)
        if (
            record.path
            and not kind.startswith(OF_RUNS)
            and (above := self.runs.get(record.root))
        ):
            above.events.add(replace(event, node=record.path + node))

    def limit_setting(self, name: str) -> LimitSetting | None:
        return self.semaphores.settings.get(name)

    def put_limit_setting(self, setting: LimitSetting, entry: object) -> None:  # noqa: ARG002 - the audit is off
        self.semaphores.settings[setting.id] = setting
        if setting.is_empty:
            del self.semaphores.settings[setting.id]

    def write_dead_letter(self, run_id: str, node: str, visit: int, reason: str) -> None:
        self.dead.append({"run_id": run_id, "node": node, "visit": visit, "reason": reason})
