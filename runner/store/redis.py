"""The store in Redis: one script for each transition, atomic and at a cost that no graph size moves.

It behaves as `memory.MemoryStore` does; a contract and a property test hold the two equal. Every
method raises StoreError when Redis can't be reached; the transition can then be repeated safely.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from runner import ports
from runner.errors import ConflictError
from runner.graph import Topology
from runner.interrupts import Answer, Interrupt, Receipt, ReceiptStatus
from runner.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.missing import no_such_run
from runner.outcomes import NextBatch, Saved, Session
from runner.ports import Claim, Event, Fetched, Reply, RunSnapshot, Settlement, Start, Token
from runner.run import RunRecord, Status
from runner.sizes import MAX_RESULT, MAX_RUN, MAX_STATE, no_room
from runner.store import layout, questions, told
from runner.store.blobs import Blobs
from runner.store.claims import claimed, fetched
from runner.store.doorbell import DoorbellTemplate
from runner.store.durability import FAST, Durability
from runner.store.keys import PARTITION, Keys
from runner.store.link import Argument, Link
from runner.store.lister import Lister
from runner.store.patience import Patience
from runner.store.reader import Reader
from runner.store.receipts import CRASHED, receipts_for
from runner.store.redis_control import RedisControl
from runner.store.scripts import Scripts
from runner.store.stored import doorbells_of, reply_of

JSON = Any

WEEK = 7 * 86_400.0
JUDGE_AGAIN = 20
"""How often a set of answers is judged anew because another answer came in between."""


class RedisStore(RedisControl):
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
        patience: float = 0,
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
            max_state: the same for what a node keeps.
            max_run: how many bytes a run may have with all runs inside it.
            patience: seconds that a worker's requests are repeated while the store is away or full.
            durability: how safe a write is before it is acknowledged: "fast", "fsync" or "replica".
            clock: milliseconds, for tests; without it the time is the server's.
        """
        self.lease_ms, self.max_bytes = round(lease * 1000), max_bytes
        self.max_state, self.max_run = max_state, max_run
        self.clock = clock
        self._keys = Keys(partition)
        self._link = Link(url, self._keys.prefix)
        safe = Durability(durability, self._keys.durable, self._link.place, patient=patience > 0)
        self._scripts = Scripts(self._link, self._keys.prefix, safe)
        self._blobs = Blobs(self._link, self._keys, self._run)
        self._reader = Reader(self._link, self._keys, self._blobs)
        self._lister = Lister(self._link, self._keys, self._reader)
        self._patience = Patience(patience)
        self._settings = (self.lease_ms, "1" if push else "0")
        self._retention_ms = round((retention or 0) * 1000)

    def close(self) -> None:
        """Close the connections of this thread and those at rest."""
        self._link.close()

    def install_doorbell(self, template: DoorbellTemplate) -> None:
        """Keep the message that scripts ring the task queue with; every process uses it from now on."""
        with self._link.translated():
            self._link.client.hset(self._keys.doorbell, mapping=template.fields())

    # -- transitions -------------------------------------------------------------------------------

    def publish(self, topologies: Sequence[Topology]) -> None:
        for topology in topologies:
            if self._run("publish", topology.graph_id, topology.fingerprint)[0] == b"missing":
                key = self._keys.shape(topology.fingerprint)
                with self._link.translated(), self._link.client.pipeline(transaction=True) as pipe:
                    pipe.hset(key, mapping=dict(layout.shape_fields(topology)))
                    pipe.execute()
                self._run("publish", topology.graph_id, topology.fingerprint)

    def start(self, start: Start, nonce: str) -> Reply:  # noqa: ARG002 - the run id tells a repeat
        parent = _token(start.parent) if start.parent else ()
        said = self._run(
            "start",
            start.run_id,
            start.graph_id,
            start.fingerprint or "",
            self._small(start.parent, start.task),
            self._small(start.parent, start.given),
            layout.dump(dict(start.tags)),
            start.idempotency_key or "",
            start.root,
            start.on_end,
            *parent,
        )
        if said[0] == b"exists":
            return Reply("exists", run_id=said[1].decode())
        word = said[0].decode()
        return Reply(word, doorbells_of(said), start.run_id if word == "started" else "")

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        said = self._run("claim", run_id, node, visit, attempt, nonce)
        if said[0] != b"claimed":
            return reply_of(said)
        return claimed(run_id, node, said, self._blobs, self.read)

    def save(self, token: Token, saved: Saved) -> Reply:
        return self._reply("save", *_token(token), *layout.saved_arguments(saved))

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        asked = questions.question_arguments(interrupts, self._small, token)
        return self._reply("ask", *_token(token), *asked, *layout.saved_arguments(saved))

    def park(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        asked = questions.question_arguments(interrupts, self._small, token)
        return self._reply("park", *_token(token), *asked, *layout.saved_arguments(saved))

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        # A failed visit leaves no output; in its place is what its event tells. Nothing of it is refused.
        failed = settlement.status is Status.FAILED
        output, entry = told.error(settlement.entry) if failed else settlement.output, settlement.entry
        return self._reply(
            "settle",
            *_token(token),
            nonce,
            "alone" if failed and settlement.alone else settlement.status,
            settlement.edges,
            self._small(token, output),
            layout.dump(entry) if failed else self._small(token, entry),
            "1" if settlement.insist else "0",
            len(settlement.reads),
            *(part for read in settlement.reads for part in read),
            *layout.remembered_arguments(settlement.session),
            *layout.saved_arguments(settlement.saved),
        )

    def advance(self, token: Token, batch: NextBatch, nonce: str) -> Reply:
        return self._reply(
            "advance",
            token.run_id,
            token.visit,
            token.fence,
            nonce,
            layout.dump(batch.taken),
            layout.dump(batch.following),
            batch.reason,
            *layout.saved_arguments(batch.saved),
        )

    def retry(self, token: Token, delay_ms: int, entry: dict[str, JSON] | None, saved: Saved | None) -> Reply:
        error = b"" if entry is None else layout.dump(entry)
        why = layout.dump(told.error(entry))
        return self._reply("retry", *_token(token), delay_ms, error, why, *layout.saved_arguments(saved))

    def expand(self, token: Token, items: Sequence[JSON] | None) -> Reply:
        replies = (
            self._reply("expand", *_token(token), *chunk)
            for chunk in layout.item_arguments(items, functools.partial(self._small, token))
        )
        return next(reply for reply in replies if reply.word != "more")

    def hold(self, token: Token) -> Reply:
        return self._reply("hold", *_token(token))

    def answer(self, answers: Sequence[Answer], nonce: str) -> tuple[list[Receipt], Reply]:
        for _ in range(JUDGE_AGAIN):
            found, winners, now = self._reader.standing([each.interrupt_id for each in answers])
            now = self.clock() if self.clock else now
            receipts, fresh = receipts_for(answers, found, winners.__getitem__, nonce, now)
            if not fresh or any(receipt.status is not ReceiptStatus.ACCEPTED for receipt in receipts):
                self._scripts.confirm("answer")
                return receipts, Reply("answered")
            said = self._run("answer", nonce, *questions.grouped(fresh))
            if said[0] == b"answered":
                return receipts, reply_of(said)
        raise ConflictError(
            f"other answers to the same questions came in between {JUDGE_AGAIN} times; none of these was "
            "applied. Send them again."
        )

    def cancel(self, run_id: str, reason: str) -> Reply:
        return self._reply("cancel", run_id, reason)

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        if not tokens:
            return []
        return [
            word.decode()
            for word in self._run("renew", *(part for token in tokens for part in _token(token)))
        ]

    def sweep(self, limit: int = 100) -> Reply:
        return self._reply("sweep", limit, layout.dump({"error": CRASHED}), CRASHED["message"])

    def emit(self, run_id: str, kind: str, node: str, visit: int, data: JSON) -> None:
        self._run("emit", run_id, kind, node, visit, layout.dump(data))

    # -- reading -----------------------------------------------------------------------------------

    def graphs(self) -> dict[str, str]:
        return self._reader.graphs()

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        return self._reader.standing(ids)[0]

    def open_interrupts(
        self, query: InterruptQuery = ports.EVERY_QUESTION, limit: int = 100, cursor: str = ""
    ) -> Page[Interrupt]:
        return self._lister.open_interrupts(query, limit, cursor)

    def read(self, run_id: str) -> RunSnapshot | None:
        return self._reader.read(run_id)

    def peek(self, run_id: str) -> RunRecord | None:
        return self._reader.peek(run_id)

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[Fetched]:
        word, *found = self._run("fetch", run_id, *nodes)
        if word != b"found":
            raise no_such_run(run_id)
        return fetched(found, self._blobs)

    def runs(self, query: RunQuery = ports.EVERY_RUN, limit: int = 100, cursor: str = "") -> Page[RunSummary]:
        return self._lister.runs(query, limit, cursor)

    def session(self, session_id: str) -> Session:
        return self._reader.session(session_id)

    def forget_session(self, session_id: str) -> bool:
        with self._link.translated():
            return bool(self._link.client.delete(*self._keys.session(session_id)))

    def children(self, run_id: str) -> list[str]:
        return self._reader.children(run_id)

    def events(self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0) -> list[Event]:
        return self._reader.events(run_id, after, limit, wait)

    def _small(self, token: Token | None, value: JSON) -> bytes:
        """Write a value, or a reference to it where it is large and its run is there."""
        data = layout.dump(value)
        return self._blobs.put(token.run_id, data) if token else data

    # -- calling scripts ---------------------------------------------------------------------------

    def _run(self, name: str, *arguments: Argument) -> list[Any]:
        now: Argument = self.clock() if self.clock else ""
        settings = (*self._settings, f"{self._retention_ms} {self.max_run}")
        said = self._patience.call(name, lambda: self._scripts.run(name, now, *settings, *arguments))
        if said and said[0] == b"full":
            raise no_room(said[1], said[2], self.max_run)
        return said

    def _reply(self, name: str, *arguments: Argument) -> Reply:
        return reply_of(self._run(name, *arguments))


def _token(token: Token) -> tuple[Argument, ...]:
    return (token.run_id, token.node, token.visit, token.fence)
