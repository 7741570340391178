"""The reference store: dictionaries, one lock, and the transitions of `schedule.py` as they are.

It keeps values in their stored form (packed, encoded), so that what works here works in Redis.
The Redis store is held equal to this one by a contract and a property test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runner import schedule
from runner.draft import Step
from runner.graph import Topology
from runner.interrupts import Answer, Interrupt, Receipt, ReceiptStatus
from runner.outcomes import NextBatch, Saved
from runner.ports import Claim, Doorbell, Reply, Settlement, Start, Token
from runner.run import Status
from runner.sizes import MAX_RESULT, MAX_RUN, MAX_STATE
from runner.store import questions
from runner.store import told as say
from runner.store.kept import KeptRun
from runner.store.layout import dump
from runner.store.memory_control import MemoryControl
from runner.store.memory_reader import MemoryReader
from runner.store.receipts import by_visit, receipts_for
from runner.store.sessions import Sessions
from runner.store.shelf import wall_clock
from runner.store.stored import pack_copy, replied

JSON = Any


class MemoryStore(MemoryControl, MemoryReader):
    """Runs in this process's memory; they end with it. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], int] = wall_clock,
        lease: float = 30.0,
        sessions: Sessions | None = None,
        max_bytes: int = MAX_RESULT,
        *,
        max_state: int = MAX_STATE,
        max_run: int = MAX_RUN,
    ) -> None:
        """`clock` gives milliseconds; `lease` is in seconds; `sessions` may be another store's, too."""
        self.lease_ms, self.max_bytes = round(lease * 1000), max_bytes
        self.max_state, self.max_run = max_state, max_run
        super().__init__(clock, self.lease_ms, sessions)
        self._keys: dict[tuple[str, str], str] = {}

    @property
    def notices(self) -> Sequence[dict[str, JSON]]:
        """What approval services would be told, oldest first."""
        return self._shelf.notices

    @property
    def dead(self) -> Sequence[dict[str, JSON]]:
        """The nodes that used up their crash budget, oldest first."""
        return self._shelf.dead

    def next_due(self, after: int) -> int | None:
        """Return the time of the next timer after that one, in milliseconds; None where there is none."""
        with self._changed:
            return min((at for at in self._shelf.timers.values() if at > after), default=None)

    # -- transitions -----------------------------------------------------------------------------

    def publish(self, topologies: Sequence[Topology]) -> None:
        with self._changed:
            for topology in topologies:
                self._shelf.shapes[topology.fingerprint] = topology
                self._shelf.current[topology.graph_id] = topology.fingerprint

    def graphs(self) -> dict[str, str]:
        with self._changed:
            return dict(self._shelf.current)

    def start(self, start: Start, nonce: str) -> Reply:  # noqa: ARG002 - the run id tells a repeat
        with self._changed:
            size = len(dump(dict(start.tags)))
            size += sum(len(self._small(start.parent, value)) for value in (start.task, start.given))
            fingerprint = start.fingerprint or self._shelf.current.get(start.graph_id, "")
            if fingerprint not in self._shelf.shapes:
                return Reply("unknown_graph")
            key = (start.graph_id, start.idempotency_key or "")
            if start.idempotency_key and key in self._keys:
                return Reply("exists", run_id=self._keys[key])
            if start.run_id in self._shelf.runs:
                return Reply("started", run_id=start.run_id)
            reply = self._begin(start, fingerprint, size)
            if start.idempotency_key and reply.run_id:
                self._keys[key] = start.run_id
            return reply

    def _begin(self, start: Start, fingerprint: str, size: int) -> Reply:
        parent = start.parent
        bells: list[Doorbell] = []
        self._check_start(start, size)
        if parent is not None:
            word, bells = self._apply(parent.run_id, schedule.delegate, *_at(parent), start.run_id)
            if word != "delegated":
                return Reply(word, bells)
            self._shelf.runs[parent.run_id].children.append(start.run_id)
        self._shelf.add(start, fingerprint).weights.add(size)
        word, own = self._apply(start.run_id, schedule.start)
        return Reply(word, [*bells, *own], start.run_id)

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            if run is None:
                return Reply("unknown")
            word, bells = self._apply(run_id, schedule.claim, node, visit, attempt, nonce)
            return self._claimed(run, node) if word == "claimed" else replied(word, bells)

    def _claimed(self, run: KeptRun, node: str) -> Claim:
        draft, current = self._shelf.draft(run), self._shelf.current.get(run.record.graph_id, "")
        child = draft.node(node).child
        return run.claim(draft, node, current, self.read(child) if child else None)

    def save(self, token: Token, saved: Saved) -> Reply:
        with self._changed:
            run = self._shelf.runs.get(token.run_id)
            if run is not None and self._holds(token) and not run.record.stopping:
                run.weights.room(run.weights.more(token.run_id, token.node, saved), self.max_run)
            return Reply("saved" if self._keep(token, saved) else "stale")

    def _keep(self, token: Token, saved: Saved | None) -> bool:
        """Write what a node keeps, if the worker still holds it."""
        held = self._holds(token)
        if held:
            self._shelf.runs[token.run_id].keep(token.node, saved)
        return held

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        return self._question(schedule.ask, token, interrupts, saved)

    def park(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        return self._question(schedule.park, token, interrupts, saved)

    def _question(
        self,
        transition: Callable[..., Step],
        token: Token,
        interrupts: Sequence[Interrupt],
        saved: Saved | None,
    ) -> Reply:
        with self._changed:
            written = self._weigh_questions(token, interrupts)
            opened = self._opened(token, written)
            self._room(token, sum(map(sum, opened.values())), saved)
            self._keep(token, saved)
            reply = Reply(
                *self._apply(token.run_id, transition, *_at(token), list(written), questions=interrupts)
            )
            if opened:
                self._count_questions(token.run_id, opened)
            return reply

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        with self._changed:
            held = self._holds(token)
            entry, output = self._weigh_result(token, settlement)
            if settlement.status is Status.COMPLETED:
                self._room(token, entry + output, settlement.saved)
            word, bells = self._apply(
                token.run_id,
                schedule.settle,
                *_at(token),
                nonce=nonce,
                status=settlement.status,
                edges=settlement.edges,
                reads=settlement.reads,
                insist=settlement.insist,
                alone=settlement.alone,
                told=say.settled(settlement),
            )
            if held and word == "settled":
                run = self._shelf.runs[token.run_id]
                run.finish(token.node, token.visit, settlement)
                run.weights.add(entry)
                run.weights.put(run.output_piece(token.node, token.visit), output)
                if settlement.session is not None:
                    self._sessions.add(settlement.session, run.messages.get(token.node, []))
            return Reply(word, bells)

    def advance(self, token: Token, batch: NextBatch, nonce: str) -> Reply:
        with self._changed:
            self._keep(token, batch.saved)
            at = (token.visit, token.fence)
            return Reply(*self._apply(token.run_id, schedule.advance, *at, nonce=nonce, batch=batch))

    def retry(self, token: Token, delay_ms: int, entry: dict[str, JSON] | None, saved: Saved | None) -> Reply:
        with self._changed:
            if self._keep(token, saved) and entry is not None:
                self._shelf.runs[token.run_id].entries[token.node, token.visit] = pack_copy(entry)
            word, bells = self._apply(
                token.run_id,
                schedule.retry,
                *_at(token),
                delay_ms,
                counts=entry is not None,
                told=say.retried(entry),
            )
            return Reply(word, bells)

    def expand(self, token: Token, items: Sequence[JSON] | None) -> Reply:
        with self._changed:
            held, total = self._holds(token), None if items is None else len(items)
            size = sum(len(self._small(token, item)) for item in items or ())
            run = self._shelf.runs.get(token.run_id)
            known = run is not None and run.map(token.node).visit == token.visit
            if not known:
                self._room(token, size)
            word, bells = self._apply(token.run_id, schedule.expand, *_at(token), total)
            if items is not None and held and word == "expanded":
                run = self._shelf.runs[token.run_id]
                run.items.setdefault((token.node, token.visit), pack_copy(items))
                run.weights.add(0 if known else size)
            return Reply(word, bells)

    def hold(self, token: Token) -> Reply:
        with self._changed:
            return Reply(*self._apply(token.run_id, schedule.hold, *_at(token)))

    def answer(self, answers: Sequence[Answer], nonce: str) -> tuple[list[Receipt], Reply]:
        with self._changed:
            found = self.interrupts([each.interrupt_id for each in answers])
            receipts, fresh = receipts_for(answers, found, self._winner, nonce, self._shelf.clock())
            bells: list[Doorbell] = []
            if all(receipt.status is ReceiptStatus.ACCEPTED for receipt in receipts):
                for (run_id, node, visit), group in by_visit(fresh).items():
                    for each in group:
                        self._shelf.runs[run_id].decide(each, nonce, self._shelf.clock())
                        self._shelf.runs[run_id].weights.add(len(questions.decision(each)))
                    told = {each.interrupt_id: say.answer(each) for each in group}
                    bells += self._apply(run_id, schedule.answer, node, visit, list(told), told=told)[1]
            return receipts, Reply("answered", bells)

    def _winner(self, interrupt_id: str) -> str:
        run = self._shelf.asking(interrupt_id)
        return run.winners.get(interrupt_id, "") if run else ""

    def cancel(self, run_id: str, reason: str) -> Reply:
        with self._changed:
            if run_id not in self._shelf.runs:
                return Reply("unknown")
            return Reply(*self._apply(run_id, schedule.cancel, reason))

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        with self._changed:
            return [self._renew(token) for token in tokens]

    def _renew(self, token: Token) -> str:
        if not self._holds(token):
            return "stale"
        self._shelf.renew(token.run_id, token.node)
        stopping = self._shelf.runs[token.run_id].record.stopping
        return "cancelled" if stopping == Status.CANCELLED else "ok"

    def sweep(self, limit: int = 100) -> Reply:
        with self._changed:
            due = self._shelf.due(limit)
            bells: list[Doorbell] = []
            for kind, run_id, key in due:
                bells += self._apply(run_id, schedule.due, kind, key)[1]
            self._shelf.forget(limit)
            return Reply(str(len(due)), bells)

    def emit(self, run_id: str, kind: str, node: str, visit: int, data: JSON) -> None:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            if run is not None:
                self._shelf.event(run, kind, node, visit, data=pack_copy(data))
                for each in {run.record.run_id, run.record.root} & self._shelf.runs.keys():
                    self._shelf.runs[each].events.thin(len(dump(data)), self.max_run)
                self._changed.notify_all()

    def _apply(
        self, run_id: str, transition: Callable[..., Step], *arguments: object, **named: Any
    ) -> tuple[str, list[Doorbell]]:
        applied = self._shelf.apply(run_id, transition, *arguments, **named)
        self._changed.notify_all()
        return applied


def _at(token: Token) -> tuple[str, int, int]:
    return token.node, token.visit, token.fence
