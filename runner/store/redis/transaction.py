"""A transaction on Redis: transitions are planned in Python, and written by one script or not at all.

`commit.lua` checks that what was read is still so, and writes; where something has changed all is read
again, and the transitions run on that. Counters of runs and arrivals are not compared: the script adds to
them, and checks only that what follows from them is what was planned, so that the nodes of one run don't
disturb each other.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from runner import scheduler
from runner.errors import StoreError
from runner.records.codec import JSON
from runner.records.run import NOTICES, OF_RUNS, OF_VOTES, EventKind, RunRecord
from runner.scheduler.changes import (
    Changes,
    JoinQueue,
    LimitAction,
    OfferPlaces,
    ReserveTime,
    ReturnPlace,
    TakePlace,
    TimerKind,
)
from runner.store import encoding, requests
from runner.store.encoding import EVENT_LETTERS, RECORD, doorbells_of, dump
from runner.store.interface import Doorbell, Reply, Start
from runner.store.redis import new_run, questions
from runner.store.redis.connection import Argument
from runner.store.redis.draft import Command, Draft, Reads, Settings
from runner.store.redis.drafted_run import DraftedRun
from runner.store.redis.keys import TEMPLATE, idempotency_key, run_key, shape_key

PATIENT, AT_ONCE, TRIES = 3, 20, 2_000
"""How often others may come in between before a run's stop is left to a timer, before the next try waits, and
in all."""

PAUSE = 0.005
"""Seconds between two tries at first."""

LETTERS, LETTER_BYTES, LETTER_DAYS = 10_000, 1_000, 30
"""Bounds of the dead letters: their number, the bytes of a text, and how long they stay."""

KEPT_NOTICES = 100_000

HEAD = (*RECORD, "created", "idem", "tags", "audit")


class Call(Protocol):
    """Calls a script of the store."""

    def __call__(self, name: str, *arguments: Argument, verb: str = "") -> list[Any]:
        """Run a script for a request of the store, and return its reply."""


class Transaction:
    """All runs of a store, for the length of one atomic step: the `Book` of Redis."""

    def __init__(self, draft: Draft, *, calm: bool = False) -> None:
        self.draft = draft
        self._calm = calm
        self._runs: dict[str, DraftedRun | None] = {}
        self.audits = draft.settings.audit

    def clock(self) -> int:
        return self.draft.reads.now

    def find(self, run_id: str) -> DraftedRun | None:
        if run_id not in self._runs:
            self._runs[run_id] = self._open(run_id)
        return self._runs[run_id]

    def _open(self, run_id: str) -> DraftedRun | None:
        key = run_key(run_id)
        self.draft.reads.want(key, HEAD)
        if self.draft.peek(key, "run") is None:
            return None
        fields = {name.encode(): self.draft.peek(key, name) for name in RECORD}
        stored = {name: value for name, value in fields.items() if value is not None}
        record = encoding.run_record(run_id, stored)
        for name in ("of", "lock"):
            self.draft.get(key, name)
        topology = self.draft.topology(record.graph_id, record.fingerprint)
        return DraftedRun(self.draft, record, topology, calm=self._calm) if topology else None

    def current(self, graph_id: str) -> str:
        fingerprint = (self.draft.get("graphs", graph_id) or b"").decode()
        self.draft.settings.topologies.latest[graph_id] = fingerprint
        return fingerprint

    def has_shape(self, graph_id: str, fingerprint: str) -> bool:
        key = shape_key(fingerprint)
        is_there = self.draft.peek(key, "meta") is not None
        if self.draft.guards.get("graphs", {}).get(graph_id) != fingerprint.encode():
            # That of the current graph is there as long as the graph is current.
            self.draft.forms[key, "meta"] = "." if is_there else "^$"
        return is_there and self.draft.topology(graph_id, fingerprint) is not None

    def started_by(self, graph_id: str, key: str) -> str:
        name = idempotency_key(graph_id, key)
        run_id: bytes | None = self.draft.reads.reply("GET", name)
        if run_id is None:
            self.draft.forms[name, ""] = "^$"
        return (run_id or b"").decode()

    def begin(self, record: RunRecord, start: Start) -> DraftedRun:
        topology = self.draft.topology(record.graph_id, record.fingerprint)
        if topology is None:
            raise AssertionError(f"{record.run_id} begins without the shape {record.fingerprint}")
        run = self._runs[record.run_id] = DraftedRun(self.draft, record, topology, calm=self._calm)
        new_run.write(self.draft, record, start)
        return run

    def changes(self, run: DraftedRun) -> Changes:
        return Changes(run, run.topology, self.clock(), self.draft.settings.lease_ms)

    def set_timer(self, kind: TimerKind, run_id: str, key: str, due: int) -> None:
        self.draft.timer(f"{kind}|{run_id}|{key}", due)

    def drop_timer(self, kind: TimerKind, run_id: str, key: str) -> None:
        self.draft.timer(f"{kind}|{run_id}|{key}", None)

    def event(
        self,
        run: DraftedRun,
        kind: str,
        node: str,
        visit: int,
        *,
        detail: str = "",
        data: JSON = None,
    ) -> None:
        draft, record, now = self.draft, run.record, self.clock()
        text = b"" if data is None else dump(data)
        number = draft.event_number(record.run_id)
        head = "" if draft.reads.now else "\1"
        before = f"{head}{EVENT_LETTERS.get(kind, kind)}\n{draft.moment_within(now)}\n{visit}\n"
        after = f"\n{text.decode()}\n{detail}"
        draft.line(record.run_id).events.append(before + node + after)
        if record.path and not kind.startswith(OF_RUNS):
            draft.line(record.root).events.append(before + record.path + node + after)
        if kind in NOTICES:
            asks = kind in {EventKind.INTERRUPT_ASKED, EventKind.INTERRUPT_REMINDED}
            question = questions.document(draft, run.key, detail) if asks else b""
            withdrawal = text if kind == EventKind.INTERRUPT_WITHDRAWN else b""
            reminded = data["count"] if kind == EventKind.INTERRUPT_REMINDED else 0
            name = f"\1{record.run_id}:{number}"
            about = ("node", node, "visit", visit, "detail", detail, "at", draft.moment(now))
            body = ("question", question, "withdrawal", withdrawal, "reminded", reminded)
            more = ("data", text) if kind in OF_VOTES else ()
            self.draft.command(
                *("XADD", "notices", "MAXLEN", "~", KEPT_NOTICES, "*"),
                *("id", name, "kind", str(kind), "run_id", record.run_id, *about, *body, *more),
            )

    def write_dead_letter(self, run_id: str, node: str, visit: int, reason: str) -> None:
        short = [text.encode()[:LETTER_BYTES] for text in (node, reason)]
        body = (
            "run_id",
            run_id,
            "node",
            short[0],
            "visit",
            visit,
            "reason",
            short[1],
            "at",
            self.clock(),
        )
        self.draft.command("XADD", "dead", "MAXLEN", "~", LETTERS, "*", *body)
        # Ids are the server's time, which is not that of a test's clock.
        oldest = max(0, round(time.time()) - LETTER_DAYS * 86_400) * 1000
        self.draft.command("XTRIM", "dead", "MINID", oldest)

    def limit(self, run_id: str, action: LimitAction) -> Sequence[tuple[str, str]]:
        """Write what becomes of places and rates; who gets a place that is given back, only the script knows.

        It returns those: see `Transactions`.
        """
        draft = self.draft
        match action:
            case ReturnPlace():
                draft.places.append((action.key, action.concurrency, f"{run_id}|{action.node}"))
            case OfferPlaces():
                draft.places.append((action.key, action.concurrency, ""))
            case TakePlace():
                until = "inf" if action.until is None else action.until
                draft.command("ZREM", f"limit:q:{action.key}", f"{run_id}|{action.node}")
                draft.command("ZADD", f"limit:h:{action.key}", until, f"{run_id}|{action.node}")
            case JoinQueue():
                draft.command("ZREM", f"limit:h:{action.key}", f"{run_id}|{action.node}")
                draft.command(
                    "ZADD", f"limit:q:{action.key}", "NX", action.since, f"{run_id}|{action.node}"
                )
            case ReserveTime():
                pass  # before it was planned with: see `Transactions`
        return ()

    def check_room(self, run_id: str) -> None:
        """Refuse what is written if its run has no room for it."""
        run = self.find(run_id)
        if run is not None:
            self.draft.bounded.add(run.record.root)

    def finish(self, doorbells: Sequence[Doorbell]) -> None:
        """Write what all transitions have changed into the draft."""
        for run in self._runs.values():
            if run is not None:
                run.flush()
        draft, settings = self.draft, self.draft.settings
        if draft.reads.is_presumed and doorbells and settings.push:
            draft.forms[TEMPLATE, "template"] = "."
        if doorbells and settings.push and not draft.reads.reply("EXISTS", TEMPLATE):
            # No worker has left a template to ring with: the next sweep rings.
            soon = draft.reads.now + settings.lease_ms
            for bell in doorbells:
                for member in (f"node|{bell.run_id}|{bell.node}", f"callback|{bell.run_id}|"):
                    if draft.timers.get(member) == soon:
                        draft.timers[member] = draft.reads.now


def of_run(run_id: str, *names: str) -> list[tuple[str, str]]:
    """Name the fields of a run that every transition of it needs, and others; each with the key."""
    key = run_key(run_id)
    return [(key, name) for name in (*HEAD, *names)]


def _offer(step: Transaction, run_id: str, node: str) -> Reply:
    return requests.make(step, run_id, scheduler.offer_place, node)


Plan = Callable[[Transaction], Reply]


class Transactions:
    """Plans and commits transactions, each until nothing came in between."""

    def __init__(self, call: Call, confirm: Callable[[str], None], settings: Settings) -> None:
        """`call` runs a script; `confirm` waits until what was written for a request is safe."""
        self._call, self._confirm, self._settings = call, confirm, settings

    def run(
        self,
        verb: str,
        plan: Plan,
        wants: Iterable[tuple[str, str]] = (),
        asks: Iterable[Command] = (),
        *,
        room: bool = False,
        presumed: Reads | None = None,
    ) -> Reply:
        """Plan a request of the store and commit it; return its reply, with doorbells that are still to ring.

        `wants` and `asks` are what it will read: (key, field) and commands. With `room` it is done on a
        server whose memory is full. With `presumed` it is written without a look first, if all that it reads
        is in there, and so.

        Raises:
            StoreError: the store could not be reached or refused, or others came in between again and again.
        """
        reads, conflicts = presumed or Reads(), 0
        for key, field in wants:
            reads.want(key, (field,))
        for command in asks:
            reads.ask(*command)
        if self._settings.push:
            reads.ask("EXISTS", TEMPLATE)
        if not reads.is_presumed:
            self._look(reads, verb)
        while conflicts < TRIES:
            draft = Draft(reads, self._settings, makes_room=room)
            reply = self._draft(draft, plan, calm=conflicts >= PATIENT)
            if reads.is_incomplete:
                self._look(reads, verb)
            elif not draft.is_empty:
                answer = self._call("commit", *draft.arguments(reply.doorbells), verb=verb)
                if answer[0] != b"changed":
                    return self._done(reply, answer)
                if not reads.is_presumed:
                    reads.turns.update(draft.seen_turns(answer[1]))
                    conflicts += 1
                    if conflicts > AT_ONCE:
                        time.sleep(random.uniform(0, PAUSE * min(conflicts - AT_ONCE, 20)))  # noqa: S311 - jitter
                # All of it: what may change meanwhile can't be older than what must not.
                reads.again()
                self._look(reads, verb)
            elif reads.times > 1 or reads.is_presumed:
                # What is refused must be so at one moment.
                reads.again()
                self._look(reads, verb)
            else:
                self._confirm(verb)
                return reply
        raise StoreError(
            f"other requests came in between {TRIES} times, and this one ({verb}) was not done."
        )

    def _draft(self, draft: Draft, plan: Plan, *, calm: bool) -> Reply:
        """Make a draft; one that was made of too little, or of what is not so, may fail, and is not used."""
        transaction = Transaction(draft, calm=calm)
        try:
            reply = plan(transaction)
            transaction.finish(reply.doorbells)
        except Exception:
            if draft.reads.is_presumed:
                draft.reads.again()
            if not draft.reads.is_incomplete:
                raise
            return Reply("unread")
        return reply

    def _look(self, reads: Reads, verb: str) -> None:
        if reads.rates:
            times = self._call(
                "reserve", *(part for rate in reads.rates.items() for part in rate), verb=verb
            )
            reads.reserved(map(int, times))
            if not reads.is_incomplete:
                return
        commands, hashes = reads.questions()
        arguments = (part for command in commands for part in (len(command), *command))
        reads.take(self._call("look", *arguments, verb=verb), hashes)

    def _done(self, reply: Reply, answer: list[Any]) -> Reply:
        """Return the doorbells that were not pushed, and ring for nodes that were offered a place."""
        _, *offered = answer[0].decode().split("\n")
        doorbells: list[Doorbell] = []
        for member in offered:
            run_id, _, node = member.partition("|")
            offer = functools.partial(_offer, run_id=run_id, node=node)
            doorbells += self.run("offer", offer, of_run(run_id, f"n:{node}")).doorbells
        return replace(reply, doorbells=[*doorbells, *doorbells_of(answer)])
