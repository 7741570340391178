"""What must hold after every step, whatever goes wrong. The numbers are those of the fault matrix.

I1 a run goes on or has ended. I2 a visit has one result. I3 a question has one answer. I4 what was
approved is what runs. I5 what was cancelled or denied does not run. I6 events have no gap, ends are ends.
I8 whatever is ready or at work has a timer that finds it. I9 indexes say what the records say.
I12 no two nodes of a limit of one are at work.
I13 a key has as many open runs as it may have, and others begin in order. I14 one run of a key is delayed,
for so long. I15 nothing starts in a pause. I16 nothing starts that a person holds.
I17 a run that fails or is cancelled undoes each completed visit once, the newest first, and then ends.
I10, same seed same history, and I11, same result, are checked over whole histories: see `history.py`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.approvals.voting import ApplyOperation, CastVote
from runner.definition.model import UNDO, map_of
from runner.limits.concurrency import Concurrency
from runner.limits.setting import LimitSetting
from runner.records import codec
from runner.records.interrupts import (
    Decision,
    Interrupt,
    InterruptStatus,
    Receipt,
    ReceiptStatus,
)
from runner.records.run import ACTIVE, MapRecord, NodeRecord, RunRecord, Status, status_of
from runner.scheduler import MAX_REDISPATCH_MS
from runner.store.interface import Claim, Event, Request, Token
from runner.store.memory.store import MemoryStore
from runner.store.requests import (
    AnswerQuestions,
    ChangeLimit,
    ForkRun,
    ParkVisit,
    RewriteRuns,
    SettleVisit,
    StartRun,
)

CALLED = {"progress", "agent", "receipt"}
"""Events that anybody may add at any time."""


class Violation(AssertionError):
    """An invariant does not hold."""


def must(holds: bool, number: str, text: str) -> None:
    """Complain unless it holds."""
    if not holds:
        raise Violation(f"{number}: {text}")


@dataclass(frozen=True)
class Seen:
    """A run as a store has it."""

    record: RunRecord
    nodes: Mapping[str, NodeRecord]
    questions: Mapping[str, Interrupt]
    maps: Mapping[str, MapRecord]
    key: str = ""


Timers = Mapping[tuple[str, str, str], float]
"""When what is due; a sweep sets those that it has in hand between two milliseconds."""


def inside_memory(store: MemoryStore) -> Iterator[tuple[str, Seen]]:
    """Look at every run of a memory store, without copies."""
    for run_id, run in store._database.runs.items():
        yield run_id, Seen(run.record, run.nodes, run.questions, run.maps, run.tag("key"))


class Watch:
    """Sees every request and its reply, and the store after it."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.holders: dict[tuple[str, str, int], Any] = {}
        self.settled: dict[tuple[str, str, int], str] = {}
        self.accepted: dict[str, str] = {}
        self.taken_back: set[str] = set()
        self.keys: dict[str, str] = {}
        self.forks: set[str] = set()
        self.retried: set[str] = set()
        self._nonces: set[str] = set()
        self._repeated: dict[str, set[tuple[str, str, int]]] = defaultdict(set)
        self.unanswered: set[str] = set()
        """Runs whose start has had no reply: they may be there, or not."""
        self._positions: dict[str, int] = {}
        self._ended: dict[str, Status] = {}
        self._stopping: set[str] = set()
        self._starts: Counter[tuple[str, str, int]] = Counter()
        self._chances: Counter[tuple[str, str, int]] = Counter()
        self._ends: Counter[tuple[str, str, int]] = Counter()
        self._decided: dict[str, Interrupt] = {}
        self._accepted_at: dict[str, int] = {}
        self._admitted: list[str] = []
        self._waited: set[str] = set()
        self._held: set[tuple[str, str]] = set()
        self._undoable: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """The completed visits of a run that are not undone, the newest last."""
        self._pauses: list[tuple[int, float]] = []
        """From when till when the limit was paused for certain, in ms."""

    # -- requests ----------------------------------------------------------------------------------

    def _hold(self, token: Token) -> None:
        # In races the reply of a claim may come after that of a later one, which has raised the fence.
        where = token.run_id, token.node, token.visit
        self.holders[where] = max(
            token, self.holders.get(where, token), key=lambda each: each.fence
        )

    def judge(self, request: Request | None, reply: Any) -> None:
        """Judge a reply by what was asked before."""
        if isinstance(request, StartRun):
            self.unanswered.discard(request.start.run_id)
        if isinstance(reply, Claim):
            self._hold(reply.token)
        elif isinstance(request, SettleVisit) and reply.word == "settled":
            token, nonce = request.token, request.nonce
            where = (token.run_id, token.node, token.visit)
            must(
                self.settled.setdefault(where, nonce) == nonce,
                "I2",
                f"{where} was settled twice",
            )
            holder = self.holders.get(where)
            must(token == holder, "I2", f"{where} was settled by {token}, but {holder} has it")
            if reply.claim is not None:
                self._hold(reply.claim.token)
        elif isinstance(request, ParkVisit) and reply.word == "ready":
            token = request.token  # an answer came before it parked
            self._chances[token.run_id, token.node, token.visit] += 1
        elif isinstance(request, StartRun) and request.start.parent and reply.run_id:
            token = request.start.parent  # starts again when its child has ended
            self._chances[token.run_id, token.node, token.visit] += 1
        elif isinstance(request, StartRun) and reply.word == "full":
            key = codec.unpack(request.start.tags)["key"]
            must(
                self.has_no_room(key), "I13", f"a start of {key} was refused, and there is room"
            )
        elif isinstance(request, ChangeLimit) and request.event == "limit.paused":
            (pause,) = request.change(LimitSetting(request.name)).pauses
            self.resumed()  # the new one replaces it
            self._pauses.append((self._world.clock.now, pause.ends_at or math.inf))
        elif isinstance(request, StartRun) and request.start.idempotency_key and reply.run_id:
            key = request.start.idempotency_key
            must(
                self.keys.setdefault(key, reply.run_id) == reply.run_id,
                "I1",
                f"{key} began two runs",
            )
        elif isinstance(request, ForkRun | RewriteRuns) and reply.word in {
            "forked",
            "reopened",
        }:
            self.recovered(request)
        elif isinstance(request, AnswerQuestions):
            self._answered(request.answers, reply.receipts)
        elif (
            isinstance(request, CastVote) and reply.receipts[0].status is ReceiptStatus.ACCEPTED
        ):
            asked, key = request.ballot.interrupt_id, request.ballot.idempotency_key
            first = self.accepted.setdefault(asked, key)
            must(first == key, "I3", f"{asked} was decided by {first} and by {key}")
        elif (
            isinstance(request, ApplyOperation)
            and reply.receipts[0].status is ReceiptStatus.WITHDRAWN_VOTE
        ):
            # A vote that decided can be taken back only while nothing has followed from it.
            taken_back = self.accepted.pop(request.operation.interrupt_id, None)
            self.taken_back |= {taken_back} - {None}

    def _answered(self, answers: Sequence[Decision], receipts: Sequence[Receipt]) -> None:
        taken = [receipt.status is ReceiptStatus.ACCEPTED for receipt in receipts]
        must(
            all(taken) or not any(taken),
            "I3",
            f"of a set of answers a part was taken: {receipts}",
        )
        for answer, receipt in zip(answers, receipts, strict=True):
            if receipt.status is not ReceiptStatus.ACCEPTED:
                continue
            asked = receipt.interrupt_id
            first = self.accepted.setdefault(asked, answer.idempotency_key)
            must(
                first == answer.idempotency_key,
                "I3",
                f"{asked} took the answers of {first} and of another",
            )
            stands = self._world.store.interrupts([asked])[0]
            must(
                stands.idempotency_key == first,
                "I3",
                f"{asked} has another answer than it took",
            )
            must(
                answer.digest in (None, stands.digest),
                "I4",
                f"{asked} took an answer to something else",
            )
            late = (
                stands.expires_in is not None
                and stands.answered_at >= stands.asked_at + stands.expires_in * 1000
            )
            must(not late, "I4", f"{asked} took an answer after its time")

    # -- the store ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at every run and everything new that is told of it."""
        runs, timers = dict(self._world.runs()), self._world.timers()
        self._limited(runs.values())
        for run_id, run in runs.items():
            self._events(run_id)
            self._counters(run)
            for name, node in run.nodes.items():
                if node.status in ACTIVE or node.status is Status.WAITING:
                    self._alive(run, name, node, timers, runs)
            self._questions(run)
        for key in {run.key for run in runs.values()} if self._world.setting.rules else ():
            self._key([run for run in runs.values() if run.key == key], timers)
        for kind, run_id, key in timers:
            is_there = run_id in runs or run_id in self.unanswered
            must(is_there, "I9", f"a timer {kind} {key} for a run that is not there")

    def _limited(self, runs: Iterable[Seen]) -> None:
        """Count the nodes at work that share a limit, over all partitions."""
        names = self._world.setting.plan.limited
        at_work = [
            f"{name} of {run.record.run_id}"
            for run in runs
            for name, node in run.nodes.items()
            if name in names and run.record.graph_id == "plan" and node.status is Status.RUNNING
        ]
        must(len(at_work) <= 1, "I12", f"at work at once: {at_work}")

    @property
    def paused_until(self) -> float:
        """When the last pause of the limit ends, maybe never."""
        return self._pauses[-1][1] if self._pauses else 0

    def resumed(self) -> None:
        """Expect that from now on the limit may be resumed."""
        now = self._world.clock.now
        self._pauses = [(since, min(until, now)) for since, until in self._pauses]

    def has_no_room(self, key: str) -> bool:
        """Tell whether a key has as many open runs as it may have."""
        rules, runs = self._world.setting.rules, self._world.runs()
        bound = rules.concurrency if rules else None
        return bool(bound) and bound.at_most <= sum(
            run.key == key and _counts(run, bound) for _, run in runs
        )

    def _key(self, runs: Sequence[Seen], timers: Timers) -> None:
        """Look at the runs of a key: how many are open, and why others wait (I13, I14)."""
        rules, now = self._world.setting.rules, self._world.clock.now
        queued = [run.record for run in runs if run.record.is_queued and not run.record.parent]
        dues = {run.run_id: timers.get(("begin", run.run_id, "")) for run in queued}
        delayed = [run_id for run_id, due in dues.items() if due is not None]
        must(len(delayed) <= 1, "I14", f"runs of a key are delayed: {delayed}")
        for run_id in delayed:
            at, rule = self._accepted_at[run_id], rules.debounce
            due, swept = (
                dues[run_id],
                dues[run_id] % 1,
            )  # between two ms: a sweep has it in hand
            must(swept or due <= rule.due(at, now), "I14", f"{run_id} begins too late: {due}")
        waiting, bound = [run for run in queued if run.run_id not in delayed], rules.concurrency
        if bound is None:
            must(not waiting, "I8", f"no timer begins {waiting}")
            return
        opened = [run for run in runs if _counts(run, bound)]
        begun = [
            run.record.run_id
            for run in opened
            if bound.while_waiting or run.record.run_id not in self._waited
        ]
        must(len(begun) <= bound.at_most, "I13", f"runs of one key are open: {begun}")
        must(not waiting or len(opened) >= bound.at_most, "I13", f"there is room for {waiting}")
        allowed = bound.when_full in ("queue", "replace")
        must(allowed or not waiting, "I13", f"{waiting} wait, and may not")
        since = {run.run_id: self._accepted_at[run.run_id] for run in waiting}
        mine = {run.record.run_id for run in runs}
        last = max(
            (self._accepted_at[each] for each in self._admitted if each in mine), default=0
        )
        late = [run_id for run_id, at in since.items() if at < last]
        must(not late, "I13", f"{late} wait, and a run that came later has begun")

    def _events(self, run_id: str) -> None:
        last = self._positions.get(run_id, 0)
        new = self._world.store.events(run_id, str(last) if last else "")
        for event in new:
            last += 1
            must(
                event.position == str(last),
                "I6",
                f"event {event.position} of {run_id} comes after {last - 1}",
            )
            if event.kind in CALLED:
                continue
            if event.kind == "run.retried":
                self._reopen(run_id)
            if event.kind == "node.waiting":
                self._waited.add(run_id)
            ended = self._ended.get(run_id)
            if (
                "/" in event.node
            ):  # an event of a child run, told once more; it may outlive its parent's end
                continue
            must(ended is None, "I6", f"{event.kind} {event.node} of {run_id} after it {ended}")
            self._event(run_id, event)
        if any(event.kind == "run.retried" for event in new):
            del self._repeated[run_id]  # of all retries since the last look
        self._positions[run_id] = last

    def recovered(self, request: Request | None) -> None:
        """Expect a fork, or that each visit that a retry repeats has another result; perhaps in vain."""
        if isinstance(request, ForkRun):
            self.forks.add(request.fork.start.run_id)
        if not isinstance(request, RewriteRuns) or request.nonce in self._nonces:
            return
        self._nonces.add(request.nonce)
        for rewrite in request.runs:
            nodes = rewrite.records.nodes
            for name, node in nodes.items():
                repeats = node.status in ACTIVE or node.status is Status.WAITING
                if node.status in {Status.FAILED, Status.CANCELLED} and map_of(name):
                    owner = nodes[map_of(name)]  # a map starts what its visit did not complete
                    repeats = owner.status is Status.READY and owner.visit == node.visit
                if repeats:
                    self._repeated[rewrite.run_id].add((rewrite.run_id, name, node.visit))
                    self.settled.pop((rewrite.run_id, name, node.visit), None)

    def _reopen(self, run_id: str) -> None:
        """Let an ended run go on."""
        must(run_id in self._ended, "I6", f"{run_id} was retried before it had ended")
        del self._ended[run_id]
        self._stopping.discard(run_id)
        self.retried.add(run_id)
        for where in self._repeated[run_id]:
            self._chances[where] += 1
            self._ends.pop(where, None)

    def _event(self, run_id: str, event: Event) -> None:
        where = (run_id, event.node, event.visit)
        match event.kind:
            case "run.queued":
                self._accepted_at[run_id] = event.at
            case "run.admitted":
                self._admitted.append(run_id)
            case "node.held" if event.data and "by" in event.data:
                self._held.add((run_id, event.node))
            case "node.released" | "node.cancelled" | "node.skipped":
                self._held.discard((run_id, event.node))
            case "node.started":
                held = (run_id, event.node) in self._held
                must(not held, "I16", f"{where} was started, and a person holds it")
                if event.node in self._world.setting.plan.limited:
                    paused = [pause for pause in self._pauses if pause[0] < event.at < pause[1]]
                    must(
                        not paused,
                        "I15",
                        f"{where} was started at {event.at} in a pause: {paused}",
                    )
                if event.node.startswith(UNDO) and not self._starts[where]:
                    self._undo(run_id, event.node)
                must(
                    run_id not in self._stopping or event.node.startswith(UNDO),
                    "I5",
                    f"{where} was started although its run stops",
                )
                self._starts[where] += 1
                fits = self._starts[where] <= 1 + self._chances[where]
                must(
                    fits,
                    "I2",
                    f"{where} was started {self._starts[where]} times without a reason",
                )
            case (
                "node.lost"
                | "node.left"
                | "node.retrying"
                | "node.resumed"
                | "node.waiting"
                | "node.expanded"
            ):
                self._chances[where] += 1
            case "node.completed" | "node.failed":
                self._held.discard((run_id, event.node))  # its question expired
                self._ends[where] += 1
                must(self._ends[where] == 1, "I2", f"{where} has two results")
                if is_undoable(event) and self._world.setting.plan.undos:
                    self._undoable[run_id].append((event.node, event.visit))
            case "run.stopping":
                self._stopping.add(run_id)
            case "run.ended":
                status = self._ended[run_id] = self._world.store.peek(run_id).status
                left = self._undoable.pop(run_id, [])
                must(
                    status is Status.COMPLETED or not left,
                    "I17",
                    f"{run_id} is {status}, and nobody undid {left}",
                )

    def _undo(self, run_id: str, name: str) -> None:
        """I17: what a failed run did is undone once all else has ended, the newest first."""
        left = self._undoable[run_id]
        is_next = bool(left) and UNDO + left.pop()[0] == name
        must(is_next, "I17", f"{name} of {run_id} is not the undo of the newest visit")

    def _counters(self, run: Seen) -> None:
        record, nodes = run.record, run.nodes.values()
        waiting = [node for node in nodes if node.status is Status.WAITING]
        active = sum(node.status in ACTIVE for node in nodes) + sum(
            node.busy for node in waiting
        )
        active += record.is_queued
        idle = sum(not node.busy and not node.held for node in waiting)
        counted = (active, idle) == (record.active, record.waiting)
        # The items of a map count for their map, which counts for the run.
        must(
            counted or bool(run.maps),
            "I9",
            f"{record.run_id} counts {record.active}, {record.waiting}, its nodes {active}, {idle}",
        )
        must(record.status is status_of(record), "I9", f"{record.run_id} is {record.status}")
        alive = bool(active or waiting)
        must(
            record.is_final != alive,
            "I1",
            f"{record.run_id} is {record.status}, and at work: {alive}",
        )
        ended = self._ended.get(record.run_id)
        must(
            (record.status if record.is_final else None) == ended,
            "I6",
            f"{record.run_id} {record.status}: {ended}",
        )

    def _alive(
        self, run: Seen, name: str, node: NodeRecord, timers: Timers, runs: Mapping[str, Seen]
    ) -> None:
        """Look for what will make a node go on."""
        run_id, lease = run.record.run_id, self._world.store.lease_ms
        where = f"{name} of {run_id}, visit {node.visit}"
        if node.status in ACTIVE:
            due = timers.get(("node", run_id, name))
            must(due is not None, "I8", f"{where} is {node.status}, and no timer will find it")
            most = self._world.clock.now + (
                lease if node.status is Status.RUNNING else MAX_REDISPATCH_MS
            )
            must(
                int(due) <= most,
                "I8",
                f"{where} is {node.status}, and found late: in {due - self._world.clock.now} ms",
            )
        elif node.child:
            child = runs[node.child].record
            must(not child.is_final, "I1", f"{where} waits for a child run that has ended")
            must(
                child.status is Status.EXECUTING or not node.busy,
                "I1",
                f"{where} does not know that its child waits",
            )
        elif node.items:
            items = run.maps[name]
            must(
                not items.has_ended or bool(run.record.stopping),
                "I1",
                f"{where} waits for items that have ended",
            )
        else:
            opened = [
                question for question in node.questions if run.questions[question].is_open
            ]
            must(bool(opened or node.held), "I1", f"{where} waits for nobody")
        stopped = run.record.stopping or (map_of(name) and run.maps[map_of(name)].stopped)
        busy = node.status is Status.RUNNING or node.busy
        draining = any(kind == "drain" and of == run_id for kind, of, _ in timers)
        draining |= ("map", run_id, map_of(name)) in timers
        must(
            not stopped or busy or draining or name.startswith(UNDO),
            "I5",
            f"{where} is {node.status} although its run stops",
        )

    def _questions(self, run: Seen) -> None:
        named = {question for node in run.nodes.values() for question in node.questions}
        for interrupt in run.questions.values():
            known = self._decided.get(interrupt.id)
            if known is not None and known.used is None:
                known = replace(known, used=interrupt.used)  # once it is decided, it is used
            if not (known is None or known == interrupt or _reasked(known)):
                must(False, "I3", f"{known} became {interrupt}")  # to write them takes long
            if interrupt.is_open:
                must(
                    interrupt.id in named,
                    "I9",
                    f"{interrupt.id} is open, and its node does not know",
                )
                self._decided.pop(interrupt.id, None)
            else:
                must(
                    interrupt.id not in named,
                    "I9",
                    f"{interrupt.id} is {interrupt.status}, and its node has it open",
                )
                self._decided[interrupt.id] = interrupt

    # -- the end -----------------------------------------------------------------------------------

    def indexes(self) -> None:
        """Compare what listings say with the records (I9)."""
        store = self._world.store
        runs = dict(self._world.runs())
        opened = sorted(
            question.id
            for run in runs.values()
            for question in run.questions.values()
            if question.is_open
        )
        must(
            sorted(interrupt.id for interrupt in self._world.asked()) == opened,
            "I9",
            "the open questions",
        )
        listed = {listed_run.run_id: listed_run.status for listed_run in store.runs(limit=1000)}
        must(
            listed == {run_id: run.record.status for run_id, run in runs.items()},
            "I9",
            f"the runs: {listed}",
        )

    def effects(self) -> None:
        """Compare what the code of nodes did with what people said (I2, I4, I5)."""
        ledger = self._world.ledger
        for where, count in ledger.starts.items():
            must(
                count <= self._starts[where],
                "I2",
                f"the code of {where} ran more often than it was claimed",
            )
            must(
                len(ledger.keys[where]) == 1,
                "I2",
                f"{where} had several keys: {ledger.keys[where]}",
            )
        for (*where, key), count in ledger.effects.items():
            must(
                count <= self._starts[tuple(where)],
                "I2",
                f"the effect {key} of {where} was done {count} times",
            )
        questions = [
            interrupt for _, run in self._world.runs() for interrupt in run.questions.values()
        ]
        asked = {
            self._name(open_question): open_question
            for open_question in questions
            if open_question.withdrawal is None
        }
        for where, by in ledger.answerers.items():
            question = asked[where]
            nobody = question.status is InterruptStatus.EXPIRED
            must(
                by == {"nobody" if nobody else question.responder},
                "I4",
                f"{where} was told of {by}: {question}",
            )

    def results(self) -> None:
        """Look for what was taken over from another run and is no result any more (I11)."""
        for run_id in self.forks:
            fork = self._world.store.read(run_id)
            entries = fork.entries if fork else {}
            undone = [visit for visit, entry in entries.items() if entry.get("undone")]
            must(not undone, "I11", f"{run_id} has results that were taken back: {undone}")

    def _name(self, question: Interrupt) -> tuple[str, str, int, str]:
        return question.run_id, question.node_id, question.visit, question.name


def is_undoable(event: Event) -> bool:
    """Tell whether an event completes a node of a plan, not an item or a node of a graph inside."""
    return event.kind == "node.completed" and re.fullmatch(r"n\d+", event.node) is not None


def _counts(run: Seen, bound: Concurrency) -> bool:
    """Tell whether a run takes one of the places of its key."""
    is_begun = not (run.record.parent or run.record.is_queued)
    return is_begun and bound.counts(run.record.status)


def _reasked(known: Interrupt) -> bool:
    """A question withdrawn by its own node may be asked again."""
    return known.status is InterruptStatus.WITHDRAWN and known.withdrawal is None
