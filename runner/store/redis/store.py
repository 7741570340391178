"""The store in Redis: atomic transitions, at a cost that does not grow with the graph.

It makes the transitions of the scheduler, as `memory.MemoryStore` does for one run; a contract and a model
in the tests hold both to them. Every method raises StoreError when Redis can't be reached; the transition
can then be repeated safely.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any, cast

from runner.approvals import ballots
from runner.approvals.absences import Absence
from runner.approvals.ballots import Standing
from runner.approvals.freezes import Freeze
from runner.audit.entries import Mode
from runner.definition.model import ROOT, Topology
from runner.errors import CorruptDocument, StoreError
from runner.limits.setting import LimitSetting
from runner.records import budgets, codec
from runner.records.budgets import Sum, Tagged
from runner.records.checkpoints import Session
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.interrupts import (
    SEPARATOR,
    Interrupt,
    address_of,
    run_of,
)
from runner.records.listings import (
    InterruptQuery,
    Page,
    RunQuery,
    RunSummary,
)
from runner.records.run import (
    EventKind,
    NodeRecord,
    RunRecord,
    VisitKey,
    existing,
    no_such_run,
    outermost,
)
from runner.records.size_limits import MAX_RESULT, MAX_RUN, MAX_STATE, no_room
from runner.store import encoding, interface
from runner.store.addresses import NAMESPACE, PartitionAddress
from runner.store.apply_transition import question_payload
from runner.store.encoding import doorbells_of, dump, load, question_fields, topology_of
from runner.store.interface import (
    Doorbell,
    Event,
    Fetched,
    R,
    Reply,
    Request,
    RunSnapshot,
    Signed,
    Token,
)
from runner.store.redis import (
    absences,
    archive_queue,
    due_timers,
    freezes,
    grants,
    layout,
    measurements,
    packed_runs,
)
from runner.store.redis.connection import TIMEOUT, Argument, RedisConnection, mapping_of
from runner.store.redis.doorbell_template import DoorbellTemplate
from runner.store.redis.durability import FAST, WORKERS_OWN, Durability
from runner.store.redis.fast.fast_path import FastPath
from runner.store.redis.keys import PARTITION, Keys, run_key, shape_key
from runner.store.redis.large_values import LargeValues
from runner.store.redis.ledger import AuditLog
from runner.store.redis.limit_slots import LimitSlots
from runner.store.redis.listings import Listings
from runner.store.redis.requests import Requests, token_arguments
from runner.store.redis.scripts import Scripts, script
from runner.store.redis.sessions import SessionStore
from runner.store.redis.streams import trim_notices
from runner.store.redis.transaction import early_answers
from runner.store.redis.transaction.questions import votes_field
from runner.store.redis.transaction.sets import Command, StoreSettings, Topologies
from runner.store.redis.transaction.transaction import Transaction, Transactions

WEEK = 7 * 86_400.0

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""The first and the longest pause, in seconds, between tries while the store is unreachable or full."""


LONGEST_BLOCK = TIMEOUT / 2
"""Seconds of one blocking read: it must end before the connection counts as dead."""


EXPIRIES = 20
"""The most batches of expired runs that one sweep takes off the lists, so that a busy fleet's lists stay
short, and of ended runs that it packs."""

MOST_VOTES = 100_000
"""The most votes of a question that are read: a damaged count would fill the reader's memory."""

TRIM_EVERY = 60.0
"""Seconds after which a sweep again deletes read notices and packs ended runs."""


class RedisStore:
    """Runs in one partition of a Redis database. Thread-safe, and usable after a fork."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = NAMESPACE,
        partition: str = PARTITION,
        places: Sequence[PartitionAddress] = (),
        lease: float = 30.0,
        retention: float | None = WEEK,
        push: bool = True,
        max_bytes: int = MAX_RESULT,
        max_state: int = MAX_STATE,
        max_run: int = MAX_RUN,
        retry_for: float = 0,
        durability: str = FAST,
        audit: Mode = "approvals",
        max_open_runs: int = 0,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """Open a database; nothing is connected yet.

        Args:
            url: a URL that redis-py can read.
            namespace: the beginning of all keys.
            partition: the partition to use; a run stays in its partition.
            places: the addresses of all partitions; a server that has other partitions is refused.
            lease: seconds a worker may be silent before its node runs again.
            retention: seconds that a finished run is kept; None keeps it for ever.
            push: ring the task queue from the scripts, once a template is installed. This needs the queue
                in the same database, which can't be a cluster.
            max_bytes: the most bytes of one value; callers refuse larger ones.
            max_state: the most bytes of a node's checkpoint.
            max_run: the most bytes of a run, with all runs inside it.
            retry_for: seconds for which a worker's requests are repeated while the store is unreachable or
                full.
            durability: how safe a write is before it is acknowledged: "fast", "fsync" or "replica".
            audit: the runs to audit: "off", "approvals" (runs with questions that have a rule) or "all".
            max_open_runs: the most open runs in all partitions together; 0 for any number.
            clock: milliseconds, for tests; without it the time is the server's.
        """
        self.lease_ms = round(lease * 1000)
        self.max_bytes = max_bytes
        self.max_state, self.max_run = max_state, max_run
        self.clock, self.namespace = clock, namespace
        self._retry_for = retry_for
        self._trim_at = 0.0
        self._number = int(partition[1:])
        self._keys = Keys(namespace, partition)
        self._redis = RedisConnection(
            url,
            self._keys.prefix,
            lambda server: layout.check(server, self._keys, places, namespace),
        )
        confirmed = None
        if durability != FAST:
            confirmed = Durability(
                durability, self._keys.durable, self._redis.place, patient=retry_for > 0
            )
        self._scripts = Scripts(self._redis, self._keys.prefix, confirmed)
        self._large = LargeValues(self._redis, self._keys, self._call)
        self._push = push
        self._audit = audit
        self._retention_ms = round((retention or 0) * 1000)
        self._shapes = Topologies()
        settings = StoreSettings(
            prefix=self._keys.prefix,
            lease_ms=self.lease_ms,
            retention_ms=self._retention_ms,
            most=lambda: self.max_run,
            push=push,
            shelve=self._large.put,
            load=self._large.load,
            topologies=self._shapes,
            audit=audit,
            max_open_runs=max_open_runs,
            number=self._number,
            partitions=max(1, len(places)),
            elsewhere=lambda key: self.limits.home(key),  # noqa: PLW0108 - it is replaced later
            offer=lambda *node: self.limits.offer(*node),  # noqa: PLW0108 - it is replaced later
        )
        self._transactions = Transactions(self._call, self._scripts.confirm, settings)
        self.limits = LimitSlots(self._redis, self._keys, self._call, self._transactions)
        self._listings = Listings(
            self._redis,
            self._keys,
            self._call,
            functools.partial(self.interrupts, read=encoding.listed_question),
            self.graphs,
        )
        self.sessions = SessionStore(self._redis, self._keys, self._call)
        self._fast = FastPath(
            self._redis,
            self._keys,
            self._call,
            topology=self.topology,
            snapshot=functools.partial(self.read, lazy=True),
            large=self._large,
            lease_ms=self.lease_ms,
        )
        self.requests = Requests(self._call, self._transactions, self._fast, settings)

    @property
    def connection(self) -> RedisConnection:
        """The store's connection: a thread that uses the store already has it."""
        return self._redis

    def close(self) -> None:
        self._redis.close()

    @property
    def audit_logs(self) -> Sequence[AuditLog]:
        """The audit log of each partition."""
        name = self._keys.prefix.replace("{", "").replace("}", "").rstrip(":").replace(":", "/")
        return [AuditLog(self._redis, self._keys, self._call, name, self._audit)]

    def install_doorbell(self, template: DoorbellTemplate | None) -> None:
        """Store the message with which scripts ring the task queue from now on; with None they ring none."""
        if template is None:
            self._redis.call("DEL", self._keys.doorbell)
            return
        fields = [part for pair in template.fields().items() for part in pair]
        self._redis.call("HSET", self._keys.doorbell, *fields)

    def has_doorbell(self) -> bool:
        """Return whether a message is stored with which scripts ring the task queue."""
        return bool(self._redis.call("EXISTS", self._keys.doorbell))

    # Graphs

    def publish(self, topologies: Sequence[Topology], *, replace: bool = True) -> None:
        for topology in topologies:
            self._fast.remember(topology)
            self._shapes.put(topology.fingerprint, topology)
            rule = topology.admission and topology.admission.concurrency
            arguments = (
                topology.graph_id,
                topology.fingerprint,
                int(replace),
                layout.LAYOUT,
                rule.at_most if rule else 10**9,
            )
            word, *current = self._call("publish", *arguments)
            if word == b"missing":
                key = self._keys.shape(topology.fingerprint)
                pairs = encoding.shape_fields(topology)
                self._redis.call("HSET", key, *(part for pair in pairs for part in pair))
                _, *current = self._call("publish", *arguments)
            self._shapes.latest[topology.graph_id] = current[0].decode()

    def lacking(self, names: Sequence[str]) -> list[str]:
        """Return the names of graphs that aren't published, or no longer are."""
        if not names:
            return []
        known = self._redis.call("HMGET", self._keys.graphs, *names)
        return [
            name for name, fingerprint in zip(names, known, strict=True) if fingerprint is None
        ]

    def graphs(self) -> dict[str, str]:
        return self._redis.texts(self._keys.graphs)

    def remove_graph(self, name: str) -> int:
        """Delete a graph and the graphs inside it, unless runs use them; return the number of those runs."""
        family = [graph for graph in self.graphs() if outermost(graph) == name]
        keys = self._keys.runs(RunQuery(), family)[0]
        indexes = [key.removeprefix(self._keys.prefix) for key in keys]

        def plan(transaction: Transaction) -> Reply:
            write_set = transaction.write_set
            runs = sum(write_set.read_set.reply("ZCARD", index) or 0 for index in indexes)
            for graph in family if not runs else ():
                fingerprint = write_set.read("graphs", graph)
                if fingerprint is not None:
                    write_set.drop("graphs", graph)
                    write_set.command("DEL", shape_key(fingerprint.decode()))
            write_set.patterns.update({(index, ""): "^$" for index in indexes})
            return Reply("done", count=runs)

        wants = [("graphs", graph) for graph in family]
        counts: list[Command] = [("ZCARD", index) for index in indexes]
        return self._transactions.run("remove_graph", plan, wants, counts).count

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        fields = mapping_of(self._redis.call("HGETALL", self._keys.shape(fingerprint)))
        return topology_of(graph_id, fingerprint, fields) if b"meta" in fields else None

    # One visit on a worker

    def partition(self, *_: object) -> int:
        return self._number

    def do(self, request: Request[R]) -> R:
        return self.requests.do(request)

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        if not tokens:
            return []
        words = self._call(
            "renew", *(part for token in tokens for part in token_arguments(token))
        )
        return [word.decode() for word in words]

    # Questions

    def keep_early(self, interrupt_id: str, door: str, message: JSON, seconds: float) -> str:
        """Store an early answer, to a question that its run may still ask.

        It returns to the stream of its door when the question is asked, or after `seconds`. The word is
        "kept", "asked" if the question was asked by now, or "crowded" if no more fit.
        """
        if address_of(interrupt_id) is None:
            return "crowded"
        text = dump(message)

        def plan(transaction: Transaction) -> Reply:
            return Reply(
                early_answers.keep(
                    transaction.write_set, interrupt_id, door, text, round(seconds * 1000)
                )
            )

        return self._transactions.run("keep_early", plan).word

    # Measured times

    def measure(self, increments: measurements.Increments) -> None:
        """Add to the histograms that `runner metrics` shows."""
        fields = map(str, itertools.chain(*increments.items()))
        self._call("measure", measurements.KEPT * 1000, *fields)

    def waited(self, run_id: str, node: str) -> float | None:
        """Return how many seconds ago a ready node's doorbell was first rung; None if it isn't ready.

        It is computed from the timer that rings again, which waits twice as long each time.
        """
        (seconds, micros), due, stored = self._redis.call_all(
            ("TIME",),
            ("ZSCORE", self._keys.timers, f"node|{run_id}|{node}"),
            ("HGET", self._keys.run(run_id), f"n:{node}"),
        )
        if due is None or stored is None or not stored.startswith(b"ready "):
            return None
        record, _ = encoding.node_record(run_id, node, stored)
        first = float(due) - self.lease_ms * (2 ** (record.rings + 1) - 1)
        return float(max(0, int(seconds) + int(micros) / 1_000_000 - first / 1000))

    def votes(self, interrupt_id: str) -> list[JSONObject]:
        run_id = interrupt_id.partition(SEPARATOR)[0]
        numbers = range(1, min(self.standings([interrupt_id])[0].votes, MOST_VOTES) + 1)
        names = [votes_field(interrupt_id, str(number)) for number in numbers]
        (texts,) = self._fields([(run_id, names)]) if names else [[]]
        return [encoding.document(text) for text in texts if text]

    def standings(self, ids: Sequence[str]) -> list[Standing]:
        rows = [(name.partition(SEPARATOR)[0], [votes_field(name)]) for name in ids]
        return [encoding.standing(stored) for (stored,) in self._fields(rows)]

    def answerers(self, run_id: str, node: str, but: str = "") -> frozenset[str]:
        ((asked,),) = self._fields([(run_id, [f"q:{node}"])])
        names: list[str] = load(asked)[1:] if asked else []
        ids = [full for name in names if (full := encoding.full_id(run_id, name)) != but]
        pairs = zip(self.interrupts(ids), map(self.votes, ids), strict=True)
        return ballots.answerers(
            (question, votes) for question, votes in pairs if question is not None
        )

    def requester(self, run_id: str) -> JSONMapping | None:
        return self._of_root(run_id, "requester")

    def _of_root(self, run_id: str, name: str) -> JSONObject | None:
        root, stored = self._redis.call("HMGET", self._keys.run(run_id), "root", name)
        if root:
            stored = self._redis.call("HGET", self._keys.run(root.decode()), name)
        return load(stored) if stored else None

    def interrupts(
        self,
        ids: Sequence[str],
        voter: str = "",
        *,
        read: Callable[..., Interrupt] = encoding.question,
    ) -> list[Interrupt | None]:
        if voter and (question := self.requests.question_before_vote(ids[0], voter)):
            return [question]
        pairs = self._fields([(run_of(name), question_fields(name)) for name in ids])
        return [
            read(interrupt_id, document, decided) if document else None
            for interrupt_id, (document, decided) in zip(ids, pairs, strict=True)
        ]

    def open_interrupts(
        self,
        query: InterruptQuery = interface.EVERY_QUESTION,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[Interrupt]:
        return self._listings.questions(query, limit, cursor)

    def count_questions(self, queries: Sequence[InterruptQuery]) -> list[int]:
        return self._listings.counts(queries)

    def frozen(self) -> dict[str, Freeze]:
        return freezes.read(self._redis.call("HGETALL", self._keys.frozen))

    def signed(self, kind: type[Signed]) -> dict[str, Signed]:
        def uses(grant_id: str) -> dict[bytes, bytes]:
            return mapping_of(self._redis.call("HGETALL", self._keys.grant_uses(grant_id)))

        if kind is Absence:
            fields = self._redis.call("HGETALL", self._keys.absences)
            return cast("dict[str, Signed]", absences.read(fields))
        fields = self._redis.call("HGETALL", self._keys.grants)
        return cast("dict[str, Signed]", grants.read(fields, uses))

    def limit_settings(self) -> dict[str, LimitSetting]:
        return self.limits.settings()

    # The archive: ended runs stay until they are archived

    def archivable(
        self,
        place: str,
        limit: int,
        *,
        pause: float,
        mine: float,
        hold: float,
        problem: str = "",
    ) -> list[str]:
        """Take ended runs to archive, oldest ends first; for `mine` seconds no other caller gets them.

        Fewer than `limit` runs wait `pause` seconds for others. `hold` seconds after its end, a run expires
        unarchived, with a dead letter. For `hold` seconds after this call, ended runs are kept for the
        archive at `place`. `problem` says why the caller's last runs could not be archived.
        """
        search = archive_queue.Search(
            place, limit, round(pause * 1000), round(mine * 1000), round(hold * 1000), problem
        )
        runs: list[str] = []

        def plan(transaction: Transaction) -> Reply:
            return archive_queue.take(transaction, search, runs)

        self._transactions.run("archivable", plan, asks=[search.oldest], makes_room=True)
        return runs

    def archived(self, runs: Mapping[str, int]) -> None:
        """Let archived runs expire: run -> its end (ms) when archived, 0 if it had none."""
        self._transactions.run(
            "archived",
            lambda transaction: archive_queue.let_expire(transaction, runs),
            *archive_queue.reads(runs),
            makes_room=True,
        )

    # Time

    def sweep(self, limit: int = 100) -> Reply:
        _, moved, failing, ended, due = self._call("due", limit)
        doorbells: list[Doorbell] = []
        fired: list[tuple[str, str]] = []
        for member in due:
            name = due_timers.name_of(member)
            if name is None:
                drop = functools.partial(due_timers.drop_malformed, member=member)
                self._transactions.run("sweep", drop, makes_room=True)
                continue
            reply = due_timers.handle(
                self._transactions, name, moved.decode(), failed=failing == b"1"
            )
            doorbells += reply.doorbells
            fired += reply.fired
        left = EXPIRIES * limit if ended == b"1" else 0
        while left > 0:
            expire = functools.partial(due_timers.let_expire, limit=limit)
            handled = self._transactions.run("sweep", expire, makes_room=True).count
            left = left - handled if handled else 0
        if time.monotonic() >= self._trim_at:
            trim_notices(self._redis, self._keys.notices)
            if not all(packed_runs.pack(self._call) for _ in range(EXPIRIES)):
                self._trim_at = time.monotonic() + TRIM_EVERY
        return Reply("swept", doorbells, fired=fired, count=len(due))

    # Reading

    def read(
        self, run_id: str, *, messages: bool = False, lazy: bool = False
    ) -> RunSnapshot | None:
        """Read a whole run as of one moment; its large task and outputs may stay lazy."""
        keys = [self._keys.run(run_id, part) for part in ("", ":m")[: 1 + messages]]
        _, *contents = self._call("snapshot", *keys)
        return self._snapshot(run_id, contents, lazy=lazy)

    def read_unless_executing(self, run_id: str, wait: float = 0) -> RunSnapshot | None:
        """Read a run that isn't executing; it waits in short blocking reads, and reads after each."""
        deadline = time.monotonic() + wait
        found = b""
        while True:
            left = max(0.0, min(deadline - time.monotonic(), LONGEST_BLOCK))
            # Sent as text: a server that has forgotten the script would refuse its hash only after the wait.
            text = script("read_unless_executing").text
            ms = round(left * 1000)
            commands: list[Sequence[Argument]]
            commands = [("EVAL", text, 1, self._keys.prefix, run_id, ms)]
            if found:
                commands.insert(0, _blocking(self._keys.run(run_id, ":s"), found, left))
            *_, (word, found) = self._redis.call_all(*commands)
            if word == b"read":
                return existing(self._snapshot(run_id, [found]), run_id)
            if not left:
                return None

    def _snapshot(
        self, run_id: str, contents: list[Any], *, lazy: bool = False
    ) -> RunSnapshot | None:
        pairs, *conversations = contents
        if not pairs:
            return None
        fields = mapping_of(pairs)
        if encoding.is_packed(fields[b"of"]):
            (packed,) = self._packed([run_id])
            if not packed:
                return self.read(run_id, messages=bool(conversations), lazy=lazy)
            fields |= packed
        fields = self._large.resolve(fields)
        outputs, entries, order = encoding.results(fields)
        decode: Callable[[JSON], JSON] = (lambda value: value) if lazy else codec.read
        return RunSnapshot(
            record=encoding.run_record(run_id, fields),
            nodes=_nodes(run_id, fields),
            task=decode(encoding.load_lazy(fields.get(b"task", b"null"))),
            invocation_state=codec.read(encoding.load_lazy(fields.get(b"state", b"{}"))),
            tags=encoding.load(fields.get(b"tags", b"{}")),
            created_at=int(fields[b"v"].split(b" ")[1]),
            ended_at=int(fields.get(b"ended", 0)),
            order=order,
            outputs={at: decode(output) for at, output in outputs.items()},
            entries=entries,
            interrupts=encoding.questions(run_id, fields),
            messages=_messages(mapping_of(conversations[0])) if conversations else {},
            maps={
                name[2:].decode(): encoding.map_record(value)
                for name, value in fields.items()
                if name.startswith(b"m:")
            },
            events=int(encoding.read_last_event(fields[b"run"])),
            reopened=fields.get(b"again", b"").decode(),
            size=int(fields.get(b"size", 0)),
        )

    def peek(self, run_id: str) -> RunRecord | None:
        values = self._redis.call("HMGET", self._keys.run(run_id), *encoding.RECORD)
        pairs = zip(encoding.RECORD, values, strict=True)
        fields = {name.encode(): value for name, value in pairs if value is not None}
        return encoding.run_record(run_id, fields) if fields else None

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[Fetched]:
        """Read nodes; one command reads all nodes outside of loops with one visit."""

        def read_fields(*names: str) -> dict[str, bytes | None]:
            (values,) = self._fields([(run_id, names)])
            return dict(zip(names, values, strict=True))

        values = read_fields(
            "run", *(f"n:{node}" for node in nodes), *_results((node, 1) for node in nodes)
        )
        if values["run"] is None:
            raise no_such_run(run_id)
        stored = {
            node: encoding.node_record(run_id, node, text)
            for node in nodes
            if (text := values[f"n:{node}"])
        }
        later = [
            *_results(
                (node, record.visit) for node, (record, _) in stored.items() if record.visit > 1
            )
        ]
        later += {f"l:{scope}" for _, scope in stored.values() if scope != ROOT}
        values |= read_fields(*later) if later else {}
        records = {
            node: record.in_round(encoding.loop_record(values.get(f"l:{scope}") or b"{}").round)
            for node, (record, scope) in stored.items()
        }
        rows = [(node, records.get(node, NodeRecord())) for node in nodes]
        outputs = self._large.load(
            [values.get(f"o:{node}.{record.visit}") for node, record in rows]
        )
        texts = [values.get(f"x:{node}.{record.visit}") for node, record in rows]
        entries = self._large.get([text and text.partition(b" ")[2] for text in texts])
        return [
            (
                record,
                codec.read(output),
                encoding.load_entry(entry) if entry else None,
            )
            for (_, record), output, entry in zip(rows, outputs, entries, strict=True)
        ]

    def documents(self, run_id: str) -> JSONObject:
        fields = mapping_of(self._redis.call("HGETALL", self._keys.run(run_id)))
        return {
            name[2:].decode(): encoding.load(value)
            for name, value in fields.items()
            if name.startswith(b"k:") and value != b"1"
        }

    def children(self, run_id: str) -> list[str]:
        children = self._redis.call("LRANGE", self._keys.run(run_id, ":c"), 0, -1)
        return [child.decode() for child in children]

    def runs(
        self, query: RunQuery = interface.EVERY_RUN, limit: int = 100, cursor: str = ""
    ) -> Page[RunSummary]:
        return self._listings.runs(query, limit, cursor)

    # Events

    def events(
        self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0
    ) -> list[Event]:
        """Read events after a position. A wait consists of short blocking reads."""
        known = int(after or 0)
        deadline = time.monotonic() + wait
        while True:
            left = max(0.0, min(deadline - time.monotonic(), LONGEST_BLOCK))
            word, *rest = self._call("events", run_id, known, limit, round(left * 1000))
            if word == b"events":
                first, events, texts = rest
                questions = mapping_of(texts)
                new = list(enumerate(events, first))
                return [_event(run_id, *event, questions) for event in new]
            if word == b"packed":
                fields, events = packed_runs.read(rest[1] or b"")
                first = int(rest[0]) - len(events) + 1
                new = list(enumerate(events, first))[max(0, known + 1 - first) :][:limit]
                return [_event(run_id, *event, fields) for event in new]
            if word == b"unknown" or not left:
                return []
            self._redis.call(*_blocking(self._keys.run(run_id, ":w"), rest[0], left))

    # Budgets

    def spent(self, run_id: str, tagged: Tagged | None = None) -> dict[str, Sum]:
        names = [f"{mark}{counter}" for counter in budgets.COUNTERS for mark in ("", "^", "+")]
        key = self._keys.run(run_id)
        fields = [f"b:{name}" for name in names]
        if tagged is not None:
            key = self._keys.budget(
                tagged.key(self.clock() if self.clock else self._redis.now())
            )
            fields = names
        elif root := self._redis.call("HGET", key, "root"):
            key = self._keys.run(root.decode())
        pairs = zip(names, self._redis.call("HMGET", key, *fields), strict=True)
        return budgets.sums(
            {name: value.decode() for name, value in pairs if value is not None}
        )

    def tags(self, run_id: str) -> dict[str, str]:
        return dict(self._of_root(run_id, "tags") or {})

    # Sessions

    def session(self, session_id: str) -> Session:
        return self.sessions.read(session_id)

    def forget_session(self, session_id: str) -> bool:
        return self.sessions.forget(session_id)

    # For a store of several partitions

    def push(self, doorbells: Sequence[interface.Doorbell]) -> list[interface.Doorbell]:
        """Push doorbells of other servers' runs onto the task queue here; return any that can't be pushed."""
        return doorbells_of(
            self._call("push", *(part for bell in doorbells for part in astuple(bell)[:-1]))
        )

    # Fields of runs, packed or not

    def _fields(self, rows: Sequence[tuple[str, Sequence[str]]]) -> list[list[bytes | None]]:
        """Read fields of runs, including packed runs."""
        replies: list[list[bytes | None]] = self._redis.call_all(
            *(("HMGET", self._keys.run(run_id), *names, "of") for run_id, names in rows)
        )
        values = [row[:-1] for row in replies]
        packed = [
            at for at, row in enumerate(replies) if row[-1] and encoding.is_packed(row[-1])
        ]
        if not packed:
            return values
        for at, fields in zip(
            packed, self._packed([rows[at][0] for at in packed]), strict=True
        ):
            if not fields:
                return self._fields(rows)
            pairs = zip(rows[at][1], values[at], strict=True)
            values[at] = [fields.get(name.encode(), value) for name, value in pairs]
        return values

    def _packed(self, runs: Sequence[str]) -> list[dict[bytes, bytes]]:
        """Read the packed fields of runs; none for a run that was unpacked meanwhile."""
        # A script, because a full server refuses every command of a transaction, even a read.
        reads: list[Argument] = []
        for key in map(run_key, runs):
            reads += 3, "LINDEX", f"{key}:e", 0, 3, "HGET", key, "of"
        _, *replies = self._call("look", *reads)
        texts = zip(runs, replies[::2], replies[1::2], strict=True)
        return [packed_runs.fields_of(run_id, text, of) for run_id, text, of in texts]

    # Calling scripts

    def _call(
        self, name: str, *arguments: Argument, verb: str = "", constants: str = ""
    ) -> list[Any]:
        """Run a script and return its reply: a word, then values as in the script's header.

        `verb` is the request that it belongs to, if that has another name; `constants` is Lua code to put
        first.

        A worker's requests for its node are repeated for `retry_for` seconds while the store is unreachable
        or full: the node's work is done and must not be lost. Each of these requests has a nonce or a fence.

        Raises:
            StoreError: the store did not accept it. PayloadTooLarge: the run has no room for it.
        """
        now: Argument = self.clock() if self.clock else ""
        settings = (self.lease_ms, "1" if self._push else "0", self._retention_ms, self.max_run)
        ends = time.monotonic() + (self._retry_for if (verb or name) in WORKERS_OWN else 0)
        pause = FIRST_PAUSE
        while True:
            try:
                reply = self._scripts.run(
                    name, now, *settings, *arguments, verb=verb or name, constants=constants
                )
            except StoreError as error:
                if not error.passing or time.monotonic() + pause > ends:
                    raise
            else:
                if reply and reply[0] == b"full":
                    raise no_room(reply[1], reply[2], self.max_run)
                return reply
            # Many nodes wait for the same store, and must not all come back at the same moment.
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter is no secret
            pause = min(LONGEST_PAUSE, 2 * pause)


def _blocking(stream: str, entry: bytes, wait: float) -> tuple[Argument, ...]:
    return "XREAD", "BLOCK", max(1, round(wait * 1000)), "STREAMS", stream, entry


def _results(visits: Iterable[VisitKey]) -> Iterator[str]:
    """Name the fields of outputs and entries."""
    return (f"{kind}:{node}.{visit}" for node, visit in visits for kind in "ox")


def _nodes(run_id: str, fields: Mapping[bytes, bytes]) -> dict[str, NodeRecord]:
    rounds = {
        int(name[2:]): encoding.load(value).get("round", 0)
        for name, value in fields.items()
        if name.startswith(b"l:")
    }
    nodes = {}
    for name, value in fields.items():
        if name.startswith(b"n:"):
            node = name[2:].decode()
            record, scope = encoding.node_record(run_id, node, value)
            nodes[node] = record.in_round(rounds.get(scope, 0))
    return nodes


def _messages(fields: Mapping[bytes, bytes]) -> dict[str, list[JSON]]:
    counts = {name[1:]: int(count) for name, count in fields.items() if name.startswith(b"#")}
    return {
        node.decode(): [
            encoding.load(fields[b"%d.%s" % (number, node)]) for number in range(1, count + 1)
        ]
        for node, count in counts.items()
    }


def _event(run_id: str, number: int, text: bytes, fields: Mapping[bytes, bytes]) -> Event:
    """Read an event; the event of an asked question takes its data from the question in `fields`."""
    event = encoding.event(run_id, number, text)
    if event.kind != EventKind.INTERRUPT_ASKED or not isinstance(event.data, int):
        return event
    asked = fields.get(question_fields(event.detail)[0].encode())
    data: JSON = None
    with suppress(CorruptDocument):  # readers of the question report it
        question = encoding.question(event.detail, asked or b"", None)
        data = question_payload(replace(question, assignees=question.assignees[: event.data]))
    return replace(event, data=data)
