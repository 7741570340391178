"""Plans on the memory store: the same values that the script `apply` gets, applied to dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from runner.definition.model import ROOT, Join, item_id, shape_name
from runner.records.codec import JSON
from runner.records.events import EventKind
from runner.records.interrupts import Interrupt
from runner.records.run import Arrivals, NodeRecord, Status, status_of
from runner.scheduler.changes import AddEvent, DropTimer, SetTimer, TimerKind
from runner.scheduler.plan import Arrival, Plan, PlanView, scopes
from runner.scheduler.steps import IDLE
from runner.store.interface import Doorbell
from runner.store.memory.database import Database
from runner.store.memory.run import StoredRun

NEVER = 1 << 30


def view(database: Database, run: StoredRun) -> PlanView:
    """Return everything that a plan may look at, as it is now."""
    return PlanView(database.shapes[run.record.fingerprint], run.nodes, run.loops, run.record.stopping)


class Applying:
    """The application of one plan; the caller holds the store's lock, so the view is what there is."""

    def __init__(self, database: Database, run: StoredRun, plan: Plan) -> None:
        self.database, self.run, self.plan = database, run, plan
        self.topology = database.shapes[run.record.fingerprint]
        self.run_id = run.record.run_id
        self.bells: list[Doorbell] = []
        self.follow: list[str] = []
        self.timers: list[tuple[TimerKind, str, int]] = []

    def apply(
        self,
        asked: Mapping[str, Interrupt],
        payloads: dict[str, JSON],
        before: Callable[[], None] = lambda: None,
    ) -> bool:
        """Apply it; False for a follow-up that was done. `before` writes what belongs to it besides."""
        plan, run, database = self.plan, self.run, self.database
        if (
            plan.follow_up
            and database.timers.pop((TimerKind.FOLLOW, self.run_id, plan.follow_up), None) is None
        ):
            return False
        before()
        for arrival in plan.arrivals.values():
            self._arrive(arrival)
        active, started = plan.active + len(self.bells), plan.started + len(self.bells)
        if plan.item_of:
            active += self._end_item(plan.item_of)
        for number, loop in plan.loops.items():
            settled = loop.settled if loop.round == run.loop(number).round else 0
            run.loops[number] = replace(loop, settled=settled)
        for number, settled in plan.counts.items():
            loop = run.loop(number)
            run.loops[number] = replace(loop, settled=loop.settled + settled)
            if loop.settled + settled == self.topology.loops[number].size:
                self.follow.append(f"turn {number} {loop.round}")
        for name, record in plan.nodes.items():
            self._put(name, record)
        counted = replace(
            run.record,
            active=run.record.active + active,
            waiting=run.record.waiting + plan.waiting,
            held=run.record.held + plan.held,
            failed=run.record.failed + plan.failed,
            started=run.record.started + started,
        )
        if not (counted.active + len(self.follow) or counted.waiting or counted.held):
            self.follow.append("end")
        run.record = replace(counted, active=counted.active + len(self.follow), lock="")
        self._set_timers()
        for event in plan.events:
            database.add_event(run, event, asked, payloads)
        for bell in plan.bells:
            self._ring(bell.node, bell.visit, bell.attempt)
        status = status_of(run.record)
        if status is not run.record.status:
            run.record = replace(run.record, status=status)
            database.add_event(run, AddEvent(EventKind.RUN_STATUS, detail=status), asked, {})
        return True

    def _put(self, name: str, record: NodeRecord) -> None:
        self.run.nodes[name] = record
        (self.run.idle.add if record.status in IDLE else self.run.idle.discard)(name)

    def _ring(self, node: str, visit: int, attempt: int) -> None:
        shape = self.topology.nodes[shape_name(node)]
        graph = self.run.record.graph_id
        self.bells.append(Doorbell(self.run_id, node, visit, attempt, shape.queue, shape.priority, graph))

    def _arrive(self, arrival: Arrival) -> None:
        run, node, where = self.run, arrival.node, (arrival.scope, arrival.node)
        old = run.arrivals(*where)
        old = old if old.stamp == arrival.stamp else Arrivals(arrival.stamp)
        new = Arrivals(arrival.stamp, old.arrived + arrival.number, old.live + arrival.live)
        run.arrived[where] = new
        if node in self.plan.nodes:
            return  # the plan itself decides about it
        shape, record = self.topology.nodes[node], run.node(node)
        if record.stamp == arrival.own and record.status is not Status.PENDING:
            return
        arrived, alive = self._total(node)
        full = arrived >= shape.needs
        if full and not alive:
            self.follow.append(f"dead {node}")
        elif (arrival.live and shape.join is Join.ANY) or (full and alive):
            begun = NodeRecord(
                Status.READY, record.visit + 1, 1, record.fence, arrival.own, nonce=record.nonce
            )
            self._put(node, begun)
            self.timers.append((TimerKind.NODE, node, self.database.lease_ms))
            self._ring(node, begun.visit, 1)

    def _total(self, node: str) -> tuple[int, int]:
        """Sum what has arrived at a node over all scopes, in their present rounds."""
        arrived = alive = 0
        for scope in scopes(self.topology, node):
            counts = self.run.arrivals(scope, node)
            loop = self.plan.loops.get(scope) or self.run.loop(scope)
            if counts.stamp == (0 if scope == ROOT else loop.round):
                arrived, alive = arrived + counts.arrived, alive + counts.live
        return arrived, alive

    def _end_item(self, owner: str) -> int:
        """Count an item that has ended; begin the next one, or let what is rarer follow."""
        run, items, shape = self.run, self.run.map(owner), self.topology.nodes[owner]
        window, number = shape.map.window if shape.map else 0, len(run.events)
        items, item, more = replace(items, active=items.active - 1), item_id(owner, items.next), 0
        if items.next == items.total:
            if not items.active and not items.waiting:
                self.follow.append(f"map {owner} {number}")
        elif not window or items.active + 1 < window or items.next + 1 == items.total or item in run.nodes:
            self.follow.append(f"map {owner} {number}")
        elif items.active < window:
            own = 0 if shape.scope == ROOT else run.loop(shape.scope).round
            self._put(item, NodeRecord(Status.READY, items.visit, 1, 0, own))
            self.timers.append((TimerKind.NODE, item, self.database.lease_ms))
            self._ring(item, items.visit, 1)
            items, more = replace(items, next=items.next + 1, active=items.active + 1), 1
        run.maps[owner] = items
        return more

    def _set_timers(self) -> None:
        database, now = self.database, self.database.clock()
        for timer in self.plan.timers:
            if isinstance(timer, DropTimer):
                database.timers.pop((timer.kind, self.run_id, timer.key), None)
            elif isinstance(timer, SetTimer):
                delay = database.lease_ms if timer.at < 0 else timer.at
                database.set_timer(timer.kind, self.run_id, timer.key, now + delay)
        for kind, key, delay in self.timers:
            database.set_timer(kind, self.run_id, key, now + delay)
        for what in self.follow:
            database.set_timer(TimerKind.FOLLOW, self.run_id, what, now + database.lease_ms)
