"""The store in Redis: one script for each transition, atomic, at a cost that does not grow with the graph.

It behaves as `memory.MemoryStore` does; a contract and a property test hold the two equal. Every
method raises StoreError when Redis can't be reached; the transition can then be repeated safely.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from runner.definition.model import Topology
from runner.errors import ConflictError, StoreError
from runner.records.codec import JSON
from runner.records.interrupts import Answer, Interrupt, Receipt, ReceiptStatus, address_of
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.records.migration import Migration
from runner.records.outcomes import Saved, Session
from runner.records.run import Rewrite, RunRecord, Status, VisitEntry, no_such_run
from runner.records.size_limits import MAX_RESULT, MAX_RUN, MAX_STATE, no_room
from runner.store import encoding, event_payloads, interface
from runner.store.encoding import doorbells_of, dump, reply_of, topology_of
from runner.store.interface import Claim, Event, Fetched, Fork, Reply, RunSnapshot, Settlement, Start, Token
from runner.store.receipts import CRASHED, receipts_for
from runner.store.redis import measurements, script_values
from runner.store.redis.connection import Argument, RedisConnection
from runner.store.redis.doorbell import DoorbellTemplate
from runner.store.redis.durability import FAST, WORKERS_OWN, Durability
from runner.store.redis.keys import PARTITION, Keys
from runner.store.redis.large_values import LargeValues
from runner.store.redis.planned import Planned
from runner.store.redis.queries import Queries
from runner.store.redis.script_values import claimed, fetched
from runner.store.redis.scripts import Scripts

log = logging.getLogger(__name__)

WEEK = 7 * 86_400.0

ANSWER_TRIES = 20
"""How often a set of answers is judged again because another answer came in between."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries while the store is away or full: at first, and in the end."""


class RedisStore:
    """Runs in one partition of a Redis database. Thread-safe, and usable after a fork."""

    def __init__(
        self,
        url: str,
        *,
        partition: str = PARTITION,
        lease: float = 30.0,
        retention: float | None = WEEK,
        push: bool = True,
        max_bytes: int = MAX_RESULT,
        max_state: int = MAX_STATE,
        max_run: int = MAX_RUN,
        retry_for: float = 0,
        durability: str = FAST,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """Open a database; nothing is connected yet.

        Args:
            url: as redis-py reads it.
            partition: which part of the keys to use; a run stays in its own.
            lease: seconds a worker may be silent before its node runs again.
            retention: seconds that a finished run is kept; None keeps it for ever.
            push: ring the task queue from the scripts, once a template is installed. Only right where
                the queue is in the same database, and not a cluster.
            max_bytes: how large one value may be; larger ones are refused before they get here.
            max_state: the same for a node's checkpoint.
            max_run: how many bytes a run may have with all runs inside it.
            retry_for: seconds for which a worker's requests are repeated while the store is away or full.
            durability: how safe a write is before it is acknowledged: "fast", "fsync" or "replica".
            clock: milliseconds, for tests; without it the time is the server's.
        """
        self.lease_ms, self.max_bytes = round(lease * 1000), max_bytes
        self.max_state, self.max_run = max_state, max_run
        self.clock = clock
        self._retry_for = retry_for
        self._keys = Keys(partition)
        self._redis = RedisConnection(url, self._keys.prefix)
        safe = Durability(durability, self._keys.durable, self._redis.place, patient=retry_for > 0)
        self._scripts = Scripts(self._redis, self._keys.prefix, safe)
        self._large = LargeValues(self._redis, self._keys, self._call)
        self._queries = Queries(self._redis, self._keys, self._large)
        self._push, self._retention_ms = push, round((retention or 0) * 1000)
        self.planned = Planned(self) if "1" in (os.environ.get("RUNNER_PLANS"), os.environ.get("SPIKE_PLANS")) else None

    def close(self) -> None:
        """Close the connections of this thread and the idle ones."""
        self._redis.close()

    def install_doorbell(self, template: DoorbellTemplate) -> None:
        """Store the message that scripts ring the task queue with; every process uses it from now on."""
        with self._redis.translated():
            self._redis.client.hset(self._keys.doorbell, mapping=template.fields())

    # Graphs

    def publish(self, topologies: Sequence[Topology]) -> None:
        if self.planned:
            self.planned.publish(topologies)
        for topology in topologies:
            if self._call("publish", topology.graph_id, topology.fingerprint)[0] == b"missing":
                key = self._keys.shape(topology.fingerprint)
                with self._redis.translated(), self._redis.client.pipeline(transaction=True) as pipe:
                    pipe.hset(key, mapping=dict(encoding.shape_fields(topology)))
                    pipe.execute()
                self._call("publish", topology.graph_id, topology.fingerprint)

    def graphs(self) -> dict[str, str]:
        return self._queries.graphs()

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        fields = self._queries.shape(fingerprint)
        return topology_of(graph_id, fingerprint, fields) if fields else None

    # One visit on a worker

    def start(self, start: Start, nonce: str) -> Reply:  # noqa: ARG002 - the run id identifies a repeat
        reply = self._call(
            "start",
            start.run_id,
            start.graph_id,
            start.fingerprint or "",
            self._written(start.parent, start.task),
            self._written(start.parent, start.given),
            dump(dict(start.tags)),
            start.idempotency_key or "",
            start.root,
            start.on_end,
            start.trace,
            *(_token(start.parent) if start.parent else ()),
        )
        word = reply[0].decode()
        if word == "exists":
            return Reply(word, run_id=reply[1].decode())
        return Reply(word, doorbells_of(reply), start.run_id if word == "started" else "")

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        if self.planned and (claim := self.planned.claim(run_id, node, visit, attempt, nonce)):
            return claim
        reply = self._call("claim", run_id, node, visit, attempt, nonce)
        if reply[0] != b"claimed":
            return reply_of(reply)
        return claimed(run_id, node, reply, self._large, self.read)

    def save(self, token: Token, saved: Saved) -> Reply:
        reply = reply_of(self._call("save", *_token(token), *encoding.saved_arguments(saved)))
        if self.planned and reply.word == "saved":
            self.planned.keep(token, saved)
        return reply

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        if self.planned and (planned := self.planned.ask("ask", token, interrupts, saved)):
            return planned
        questions = script_values.question_arguments(interrupts, self._written, token)
        return reply_of(self._call("ask", *_token(token), *questions, *encoding.saved_arguments(saved)))

    def park(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        if self.planned and (planned := self.planned.ask("park", token, interrupts, saved)):
            return planned
        questions = script_values.question_arguments(interrupts, self._written, token)
        return reply_of(self._call("park", *_token(token), *questions, *encoding.saved_arguments(saved)))

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        if self.planned and (planned := self.planned.settle(token, settlement, nonce)):
            return planned
        # A failed visit has no output: its event's data take that place, and nothing of it is refused.
        if settlement.status is Status.FAILED:
            output = self._written(token, event_payloads.error(settlement.entry))
            entry = dump(settlement.entry)
        else:
            output = self._written(token, settlement.output)
            entry = self._written(token, settlement.entry)
        return reply_of(
            self._call(
                "settle",
                *_token(token),
                nonce,
                settlement.status,
                settlement.edges,
                output,
                entry,
                "1" if settlement.insist else "0",
                len(settlement.reads),
                *(part for read in settlement.reads for part in read),
                *encoding.remembered_arguments(settlement.session),
                *encoding.saved_arguments(settlement.saved),
            )
        )

    def follow(self, run_id: str, what: str) -> Reply:
        return self.planned.follow(run_id, what) if self.planned else Reply("stale")

    def retry(self, token: Token, delay_ms: int, entry: VisitEntry | None, saved: Saved | None) -> Reply:
        error = b"" if entry is None else dump(entry)
        payload = dump(event_payloads.error(entry))
        kept = encoding.saved_arguments(saved)
        return reply_of(self._call("retry", *_token(token), delay_ms, error, payload, *kept))

    def expand(self, token: Token, items: Sequence[JSON] | None) -> Reply:
        replies = (
            reply_of(self._call("expand", *_token(token), *chunk))
            for chunk in encoding.item_arguments(items, functools.partial(self._written, token))
        )
        return next(reply for reply in replies if reply.word != "more")

    def hold(self, token: Token) -> Reply:
        return reply_of(self._call("hold", *_token(token)))

    def leave(self, token: Token) -> Reply:
        return reply_of(self._call("leave", *_token(token)))

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        if not tokens:
            return []
        words = self._call("renew", *(part for token in tokens for part in _token(token)))
        return [word.decode() for word in words]

    # External tasks

    def hand(self, token: Token, reference: str) -> Reply:
        return reply_of(self._call("hand", *_token(token), reference))

    def sent(self, token: Token, reference: str, timeout_ms: int) -> Reply:
        return reply_of(self._call("sent", *_token(token), reference, timeout_ms))

    def report(self, run_id: str, node: str, visit: int, reference: str, outcome: JSON) -> Reply:
        data = self._large.put(run_id, dump(outcome))
        return reply_of(self._call("report", run_id, node, visit, reference, data))

    # Questions

    def answer(
        self, answers: Sequence[Answer], nonce: str, questions: Sequence[Interrupt | None] = ()
    ) -> tuple[list[Receipt], Reply]:
        if questions and all(question is not None and question.is_open for question in questions):
            # The script checks that they are open, in time and not asked again: no need to read them again.
            receipts, fresh = receipts_for(answers, questions, lambda _: "", nonce, 0)
            if fresh and self.planned and (planned := self.planned.answer(fresh, nonce, questions)):
                self._measure_answers(questions)
                return receipts, planned
            if fresh:
                reply = self._call("answer", nonce, *script_values.answer_arguments(fresh, questions))
                if reply[0] == b"answered":
                    self._measure_answers(questions)
                    return receipts, reply_of(reply)
        for _ in range(ANSWER_TRIES):
            ids = [answer.interrupt_id for answer in answers]
            read = self.planned.questions if self.planned else self._queries.questions
            current, winners, now, *_ = read(ids)
            now = self.clock() if self.clock else now
            receipts, fresh = receipts_for(answers, current, winners.__getitem__, nonce, now)
            if not fresh or any(receipt.status is not ReceiptStatus.ACCEPTED for receipt in receipts):
                self._scripts.confirm("answer")
                return receipts, Reply("answered")
            if self.planned and (planned := self.planned.answer(fresh, nonce, current)):
                self._measure_answers(current)
                return receipts, planned
            reply = self._call("answer", nonce, *script_values.answer_arguments(fresh, current))
            if reply[0] == b"answered":
                self._measure_answers(current)
                return receipts, reply_of(reply)
        raise ConflictError(
            f"other answers to the same questions came in between {ANSWER_TRIES} times; none of these was "
            "applied. Send them again."
        )

    def _measure_answers(self, questions: Sequence[Interrupt | None]) -> None:
        """Record for how long questions were open that were just answered."""
        now = self.clock() if self.clock else time.time_ns() // 1_000_000
        try:
            for question in questions:
                if question is not None:
                    seconds = max(0, now - question.asked_at) / 1000
                    self.measure(measurements.increments(measurements.ANSWER, seconds))
        except StoreError:
            log.info("metrics.lost: the time to an answer is missing in `runner metrics`.")

    # Measured times

    def measure(self, increments: measurements.Increments) -> None:
        """Add to the histograms that `runner metrics` shows."""
        with self._redis.translated(), self._redis.client.pipeline(transaction=False) as pipe:
            for field, number in increments.items():
                pipe.hincrbyfloat(self._keys.metrics, field, number)
            pipe.execute()

    def waited(self, run_id: str, node: str) -> float | None:
        """Return how many seconds ago a ready node's doorbell was first rung; None where it is not ready.

        It is computed from the timer that rings again: each time it waits twice as long.
        """
        with self._redis.translated(), self._redis.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zscore(self._keys.timers, f"node|{run_id}|{node}")
            pipe.hget(self._keys.run(run_id), f"n:{node}")
            (seconds, micros), due, stored = pipe.execute()
        if due is None or stored is None or not stored.startswith(b"ready "):
            return None
        record, _ = encoding.node_record(stored)
        first = due - self.lease_ms * (2 ** (record.rings + 1) - 1)
        return float(max(0.0, seconds + micros / 1_000_000 - first / 1000))

    def withdraw(self, interrupt_id: str, reason: str, *, reask: bool) -> Reply:
        address = address_of(interrupt_id)
        if address is None:
            return Reply("unknown")
        decision = dump({"reason": reason, "reask": reask})
        visit = (address.run_id, address.node_id, address.visit)
        return reply_of(self._call("withdraw", *visit, interrupt_id, decision, "1" if reask else "0"))

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        if self.planned:
            return self.planned.interrupts(ids)
        return self._queries.questions(ids)[0]

    def open_interrupts(
        self, query: InterruptQuery = interface.EVERY_QUESTION, limit: int = 100, cursor: str = ""
    ) -> Page[Interrupt]:
        return self._queries.open_interrupts(query, limit, cursor)

    # What people do to runs

    def cancel(self, run_id: str, reason: str, nonce: str = "") -> Reply:
        return reply_of(self._call("cancel", run_id, reason, nonce))

    def fork(self, fork: Fork) -> Reply:
        reply = reply_of(self._call("fork", *script_values.fork_arguments(fork)))
        return replace(reply, run_id=fork.start.run_id) if reply.word == "forked" else reply

    def rewrite(self, runs: Sequence[Rewrite], nonce: str) -> Reply:
        arguments = (part for run in runs for part in script_values.rewrite_arguments(run))
        return reply_of(self._call("rewrite", nonce, *arguments))

    def migrate(self, runs: Sequence[Migration], nonce: str) -> Reply:
        arguments = (part for run in runs for part in script_values.migration_arguments(run, self._large.put))
        return reply_of(self._call("migrate", nonce, *arguments))

    def release(self, run_id: str, nodes: Sequence[str]) -> Reply:
        return reply_of(self._call("release", run_id, *nodes))

    def remove(self, run_id: str) -> Reply:
        return reply_of(self._call("remove", run_id))

    # Time

    def sweep(self, limit: int = 100) -> Reply:
        word, *doorbells = self._call("sweep", limit, dump({"error": CRASHED}), CRASHED["message"])
        count, *failures = word.decode(errors="replace").split("\n")
        follow = [tuple(line[1:].split("|", 1)) for line in failures if line.startswith("+")]
        for failure in failures:
            if failure.startswith("+"):
                continue
            kind, run_id, key, problem = failure.split("|", 3)
            log.error(
                "timer.failed: run %r: what is due for it (%s %r) fails: %s. It is tried again later; other "
                "runs are not affected. See `runner doctor`.",
                run_id,
                kind,
                key,
                problem,
            )
        return Reply(count, doorbells_of([count, *doorbells]), follow=follow)

    def end_reported(self, run_id: str, end: int) -> Reply:
        return reply_of(self._call("end_reported", run_id, end))

    # Reading

    def read(self, run_id: str) -> RunSnapshot | None:
        return self._queries.read(run_id)

    def peek(self, run_id: str) -> RunRecord | None:
        return self._queries.peek(run_id)

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[Fetched]:
        word, *values = self._call("fetch", run_id, *nodes)
        if word != b"found":
            raise no_such_run(run_id)
        return fetched(values, self._large)

    def documents(self, run_id: str) -> dict[str, JSON]:
        return self._queries.documents(run_id)

    def children(self, run_id: str) -> list[str]:
        return self._queries.children(run_id)

    def runs(
        self, query: RunQuery = interface.EVERY_RUN, limit: int = 100, cursor: str = ""
    ) -> Page[RunSummary]:
        return self._queries.runs(query, limit, cursor)

    # Events

    def emit(self, run_id: str, kind: str, node: str, visit: int, data: JSON) -> None:
        self._call("emit", run_id, kind, node, visit, dump(data))

    def events(self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0) -> list[Event]:
        return self._queries.events(run_id, after, limit, wait)

    # Sessions

    def session(self, session_id: str) -> Session:
        return self._queries.session(session_id)

    def forget_session(self, session_id: str) -> bool:
        with self._redis.translated():
            return bool(self._redis.client.delete(*self._keys.session(session_id)))

    # Calling scripts

    def _call(self, name: str, *arguments: Argument) -> list[Any]:
        """Run a script and return its reply: a word, then what the script's header says.

        What a worker asks for its node is repeated for `retry_for` seconds while the store is away or
        full: the node's work is done and must not be lost. Each such request has a nonce or a fence.

        Raises:
            StoreError: the store did not take it. PayloadTooLarge: the run has no room for it.
        """
        now: Argument = self.clock() if self.clock else ""
        settings = (self.lease_ms, "1" if self._push else "0", self._retention_ms, self.max_run)
        return self._retried(name, name, now, *settings, *arguments)

    def _retried(self, verb: str, name: str, *arguments: Argument, head: str = "") -> list[Any]:
        ends = time.monotonic() + (self._retry_for if verb in WORKERS_OWN else 0)
        pause = FIRST_PAUSE
        while True:
            try:
                reply = self._scripts.run(name, *arguments, head=head, verb=verb)
            except StoreError as error:
                if not error.passing or time.monotonic() + pause > ends:
                    raise
            else:
                if reply and reply[0] == b"full":
                    raise no_room(reply[1], reply[2], self.max_run)
                return reply
            # Many nodes wait for the same store: they must not all come back at one moment.
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter is no secret
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _written(self, token: Token | None, value: JSON) -> bytes:
        """Write a value, or a reference to it where it is large and its run exists."""
        data = dump(value)
        return self._large.put(token.run_id, data) if token else data


def _token(token: Token) -> tuple[Argument, ...]:
    return (token.run_id, token.node, token.visit, token.fence)
