"""A transaction from its first read to its commit; the package's docstring explains it."""

from __future__ import annotations

import functools
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.definition.model import Topology
from runner.errors import CorruptDocument, StoreError
from runner.limits.concurrency import share
from runner.limits.setting import LimitSetting
from runner.limits.slots import (
    JoinQueue,
    LimitAction,
    OfferSlots,
    ReserveTime,
    ReturnSlot,
    TakeSlot,
)
from runner.records.codec import JSON, JSONObject
from runner.records.interrupts import SEPARATOR
from runner.records.run import (
    FINAL,
    NOTICES,
    OF_RUNS,
    OF_VOTES,
    EventKind,
    RunRecord,
    claim_name,
)
from runner.scheduler.changes import Changes, TimerKind
from runner.store import encoding
from runner.store.encoding import EVENT_LETTERS, OF_INTERRUPTS, RECORD, doorbells_of, dump
from runner.store.interface import Doorbell, Reply, Start
from runner.store.redis import ledger, packed_runs
from runner.store.redis.connection import Argument, RedisConnection
from runner.store.redis.keys import (
    LIMITS,
    PASSKEYS,
    STATUSES,
    TEMPLATE,
    idempotency_key,
    node_of,
    run_key,
    shape_key,
)
from runner.store.redis.scripts import Scripts
from runner.store.redis.transaction import new_run, questions
from runner.store.redis.transaction.key_lists import KeyLists
from runner.store.redis.transaction.run_view import RunInTransaction, slot_member
from runner.store.redis.transaction.sets import (
    EITHER,
    FEWER_TOGETHER,
    Command,
    ReadSet,
    StoreSettings,
    WriteSet,
)

log = logging.getLogger(__name__)

DEFER_AFTER, IMMEDIATE_TRIES, TRIES = 3, 20, 2_000
"""The number of conflicts before a run's stop, or a map's next items, are left to a timer; before the next
try waits; and before the request fails."""

SAME_TRIES = 50
"""Conflicts in a row, without a change between them, after which the stored data count as contradictory."""

PAUSE = 0.005
"""Seconds of the first wait between two tries at most; later waits may be longer."""

LETTERS, LETTER_BYTES, LETTER_DAYS = 10_000, 1_000, 30
"""Bounds of the dead letters: their number, the bytes of a text, and the days that they stay."""

KEPT_NOTICES = 100_000

OPEN = tuple(status for status in STATUSES if status not in FINAL)

HEAD = (*RECORD, "idem", "tags", "audit")


Call = Callable[..., list[Any]]
"""A function that runs a script of the store, by its name and arguments, and returns its reply."""


class LimitAway(StoreError):
    """The partition that counts a key of a limit can't be reached: the node stays ready, and waits."""


class _PackedRun(Exception):
    """A run must be unpacked before the plan."""


class Transaction:
    """All runs of a store, for one try of a transaction: the `UnitOfWork` of Redis."""

    def __init__(self, write_set: WriteSet, *, defers_to_timer: bool = False) -> None:
        self.write_set = write_set
        self.defers_to_timer = defers_to_timer
        self._runs: dict[str, RunInTransaction | None] = {}
        self.audits = write_set.settings.audit

    @functools.cached_property
    def lists(self) -> KeyLists:
        return KeyLists(self.write_set)

    def clock(self) -> int:
        return self.write_set.read_set.now

    def find(self, run_id: str) -> RunInTransaction | None:
        if run_id not in self._runs:
            self._runs[run_id] = self._open(run_id)
        return self._runs[run_id]

    def _open(self, run_id: str) -> RunInTransaction | None:
        key = run_key(run_id)
        fields = self.write_set.read_set.fields(key, HEAD)
        if b"run" not in fields:
            return None
        record = encoding.run_record(run_id, fields)
        if encoding.is_packed(fields[b"of"]):
            raise _PackedRun(run_id)
        expected_fields = self.write_set.expected.setdefault(key, {})
        expected_fields |= {name: fields.get(name.encode(), b"") for name in ("of", "lock")}
        topology = self.write_set.topology(record.graph_id, record.fingerprint)
        if topology:
            return RunInTransaction(
                self.write_set, record, topology, defers_to_timer=self.defers_to_timer
            )
        return None

    def current(self, graph_id: str) -> str:
        fingerprint = (self.write_set.read("graphs", graph_id) or b"").decode()
        self.write_set.settings.topologies.latest[graph_id] = fingerprint
        return fingerprint

    def shape(self, graph_id: str, fingerprint: str) -> Topology | None:
        key = shape_key(fingerprint)
        is_there = self.write_set.read_unvalidated(key, "meta", EITHER) is not None
        if self.write_set.expected.get("graphs", {}).get(graph_id) != fingerprint.encode():
            # The current shape exists as long as the graph is current.
            self.write_set.patterns[key, "meta"] = "." if is_there else "^$"
        return self.write_set.topology(graph_id, fingerprint) if is_there else None

    def note_start(self, graph_id: str, key: str, run_id: str) -> None:
        retention = self.write_set.settings.retention_ms
        expiry = ("PX", retention) if retention else ()
        self.write_set.command("SET", idempotency_key(graph_id, key), run_id, *expiry)

    def bound(self, graph_id: str, declared: int) -> int | None:
        settings = self.write_set.settings
        bound = declared if graph_id else settings.max_open_runs
        return share(bound, settings.number, settings.partitions) if bound else None

    def open_runs(self, graph_id: str, bound: int) -> int:
        read_set = self.write_set.read_set
        known: list[bytes] = [] if graph_id else read_set.reply("HKEYS", "graphs")
        graphs = (
            [graph_id] if graph_id else [name.decode() for name in known if b"/" not in name]
        )
        indexes = [f"runs:{status}:{graph}" for graph in graphs for status in OPEN]
        count = sum(read_set.reply("ZCARD", index) or 0 for index in indexes)
        if count < bound:
            self.write_set.scores["\0".join(indexes), FEWER_TOGETHER] = bound
        return count

    def started_by(self, graph_id: str, key: str) -> str:
        name = idempotency_key(graph_id, key)
        run_id: bytes | None = self.write_set.read_set.reply("GET", name)
        if run_id is None:
            self.write_set.patterns[name, ""] = "^$"
        return (run_id or b"").decode()

    def begin(self, record: RunRecord, start: Start) -> RunInTransaction:
        topology = self.write_set.topology(record.graph_id, record.fingerprint)
        if topology is None:
            raise AssertionError(
                f"{record.run_id} begins without the shape {record.fingerprint}"
            )
        run = self._runs[record.run_id] = RunInTransaction(
            self.write_set, record, topology, defers_to_timer=self.defers_to_timer
        )
        new_run.write(self.write_set, record, start)
        return run

    def changes(self, run: RunInTransaction) -> Changes:
        write_set = self.write_set
        return Changes(run, run.topology, write_set.read_set.now, write_set.settings.lease_ms)

    def set_timer(self, kind: TimerKind, run_id: str, key: str, due: int) -> None:
        self.write_set.timers[f"{kind}|{run_id}|{key}"] = due

    def drop_timer(self, kind: TimerKind, run_id: str, key: str) -> None:
        self.write_set.timers[f"{kind}|{run_id}|{key}"] = None

    def event(
        self,
        run: RunInTransaction,
        kind: str,
        node: str,
        visit: int,
        *,
        detail: str = "",
        data: JSON = None,
    ) -> None:
        write_set = self.write_set
        record = run.record
        now = self.clock()
        text = b"" if data is None else dump(data)
        counters = write_set.counters(record.run_id)
        mark = "" if write_set.read_set.now else "\1"
        prefix = (
            f"{mark}{EVENT_LETTERS.get(kind, kind)}\n{write_set.time_within(now)}\n{visit}\n"
        )
        suffix = f"\n{text.decode()}\n"
        is_own = kind.startswith(OF_INTERRUPTS) and detail.startswith(record.run_id + SEPARATOR)
        short = suffix + (detail.removeprefix(record.run_id) if is_own else detail)
        if kind == EventKind.INTERRUPT_ASKED and is_own and data is not None:
            # The rest is in the question, which may also have people who were added later.
            short = f"\n{len(data.get('assignees', ()))}\n{detail.removeprefix(record.run_id)}"
        counters.events.append(prefix + node + short)
        if record.path and not kind.startswith(OF_RUNS):
            root_event = prefix + record.path + node + suffix + detail
            write_set.counters(record.root).events.append(root_event)
        if kind in NOTICES:
            asks = kind in {EventKind.INTERRUPT_ASKED, EventKind.INTERRUPT_REMINDED}
            question = questions.document(write_set, run.key, detail) if asks else b""
            name = f"\1{record.run_id}:{counters.event_number(len(counters.events))}"
            about = ("node", node, "visit", visit, "detail", detail, "at", write_set.time(now))
            body = {
                "question": question,
                "withdrawal": text if kind == EventKind.INTERRUPT_WITHDRAWN else b"",
                "reminded": data["count"] if kind == EventKind.INTERRUPT_REMINDED else 0,
                "data": text if kind in OF_VOTES else b"",
            }
            optional = (part for pair in body.items() if pair[1] for part in pair)
            head = ("id", name, "kind", str(kind), "run_id", record.run_id)
            bounded = ("XADD", "notices", "MAXLEN", "~", KEPT_NOTICES, "*")
            write_set.command(*bounded, *head, *about, *optional)

    def write_dead_letter(self, run_id: str, node: str, visit: int, reason: str) -> None:
        place, why = (text.encode()[:LETTER_BYTES] for text in (node, reason))
        about = ("visit", visit, "reason", why, "at", self.clock())
        # The script counts the letters that these delete.
        self.write_set.command("XADD", "dead", "*", "run_id", run_id, "node", place, *about)
        self.write_set.command("XTRIM", "dead", "MAXLEN", "~", LETTERS)
        # Ids contain the server's time, which differs from a test's clock.
        oldest = max(0, round(time.time()) - LETTER_DAYS * 86_400) * 1000
        self.write_set.command("XTRIM", "dead", "MINID", oldest)

    def signature_count(self, passkey: str) -> int:
        return int(self.write_set.read(PASSKEYS, passkey) or 0)

    def put_signature_count(self, passkey: str, count: int) -> None:
        self.write_set.put(PASSKEYS, passkey, count)

    def size_window(self, queue: str, size: int) -> None:
        self.write_set.put("fair:windows", queue, size)

    def limit_setting(self, name: str) -> LimitSetting | None:
        text = self.write_set.read(LIMITS, name)
        return LimitSetting.read(name, text) if text else None

    def put_limit_setting(self, setting: LimitSetting, entry: JSONObject | None) -> None:
        if setting.is_empty:
            self.write_set.drop(LIMITS, setting.id)
        else:
            self.write_set.put(
                LIMITS,
                setting.id,
                dump(setting.document(self.write_set.read(LIMITS, setting.id))),
            )
        if entry:
            ledger.append(self.write_set, entry)

    def limit(self, run_id: str, action: LimitAction) -> Sequence[tuple[str, str]]:
        """Write changes of slots and queues; `Transactions._offer_slots` starts nodes with an offer."""
        write_set = self.write_set
        if write_set.settings.elsewhere(action.key) is not None:
            self._limit_elsewhere(run_id, action)
            return ()
        match action:
            case ReturnSlot():
                write_set.slots.append(
                    (action.key, action.concurrency, f"{run_id}|{action.node}")
                )
            case OfferSlots():
                write_set.slots.append((action.key, action.concurrency, ""))
            case TakeSlot():
                until = "inf" if action.until is None else action.until
                write_set.command("ZREM", f"limit:q:{action.key}", f"{run_id}|{action.node}")
                write_set.command(
                    "ZADD", f"limit:h:{action.key}", until, f"{run_id}|{action.node}"
                )
            case JoinQueue():
                write_set.command("ZREM", f"limit:h:{action.key}", f"{run_id}|{action.node}")
                write_set.command(
                    "ZADD",
                    f"limit:q:{action.key}",
                    "NX",
                    action.since,
                    f"{run_id}|{action.node}",
                )
                write_set.command("ZADD", "limit:waiting", "NX", action.since, action.key)
            case ReserveTime():
                pass  # lua/reserve.lua has done it: see `Transactions.look`
        return ()

    def _limit_elsewhere(self, run_id: str, action: LimitAction) -> None:
        """Note what the partition that counts a key does after the commit; a slot there is held before it."""
        write_set = self.write_set
        run = self.find(run_id)
        key = action.key
        arguments: tuple[Argument, ...] = ()
        match action:
            case ReturnSlot() if run:
                claim = action.ran or claim_name(run.node(action.node))
                member = slot_member(run_id, action.node, claim)
                version = write_set.read_set.own_slots.get((key, member), b"")
                how = "drop" if action.ran or version else "leave"
                arguments = (how, key, action.concurrency, member, version)
            case TakeSlot(until=int(until)) if run:
                member = slot_member(run_id, action.node, claim_name(run.node(action.node)))
                version = write_set.read_set.held_slots[key, member]
                arguments = ("keep", key, 0, member, version, until - write_set.read_set.now)
        if arguments:
            write_set.slots_elsewhere.append((key, arguments))

    def bound_size(self, run_id: str) -> None:
        """Refuse the commit if the run has no room for its writes."""
        run = self.find(run_id)
        if run is not None:
            self.write_set.bounded_roots.add(run.record.root)

    def finish(self, doorbells: Sequence[Doorbell]) -> None:
        """Add the changes of all transitions to the write set."""
        for run in self._runs.values():
            if run is not None:
                run.flush()
        write_set = self.write_set
        settings = self.write_set.settings
        if write_set.read_set.is_speculative and doorbells and settings.push:
            is_there = write_set.read_set.reply("EXISTS", TEMPLATE)
            write_set.patterns[TEMPLATE, "template"] = "." if is_there else "^$"
        if doorbells and settings.push and not write_set.read_set.reply("EXISTS", TEMPLATE):
            # No worker has left a template for doorbells: the next sweep rings.
            soon = write_set.read_set.now + settings.lease_ms
            for bell in doorbells:
                for member in (f"node|{bell.run_id}|{bell.node}", f"callback|{bell.run_id}|"):
                    if write_set.timers.get(member) == soon:
                        write_set.timers[member] = write_set.read_set.now


def of_run(run_id: str, *names: str) -> list[tuple[str, str]]:
    """Name the fields of a run that every transition needs, and `names`; each with the run's key."""
    key = run_key(run_id)
    return [(key, name) for name in (*HEAD, *names)]


Plan = Callable[[Transaction], Reply]


@dataclass
class Transactions:
    """Runs requests as transactions: each is planned and committed, and retried after a conflict.

    `_confirm` waits until a request's writes are safe.
    """

    _call: Call
    _confirm: Callable[[str], None]
    _settings: StoreSettings

    def run(
        self,
        verb: str,
        plan: Plan,
        wants: Iterable[tuple[str, str]] = (),
        asks: Iterable[Command] = (),
        *,
        makes_room: bool = False,
        speculation: ReadSet | None = None,
    ) -> Reply:
        """Plan a request and commit it; return its reply, with the doorbells that are still to be rung.

        `wants` and `asks` are the (key, field) pairs and commands that it will read. With `makes_room` it is
        done even if the server's memory is full. With `speculation` the first commit comes without a look, if
        that has all values that the plan reads.

        Raises:
            StoreError: the store could not be reached or refused, or each of many tries met a conflict.
            CorruptDocument: the store refuses a plan that was made on exactly its contents.
        """
        read_set = speculation or ReadSet()
        conflicts = 0
        repeats = 0
        contents_at_conflict: tuple[object, ...] = ()
        read_set.request(wants, [*asks, ("EXISTS", TEMPLATE)] if self._settings.push else asks)
        if not read_set.is_speculative:
            self.look(read_set, verb)
        while conflicts < TRIES:
            write_set = WriteSet(read_set, self._settings, makes_room=makes_room)
            defers = conflicts >= (1 if verb in {"cancel", "drain"} else DEFER_AFTER)
            reply = self._plan(write_set, plan, defers_to_timer=defers)
            if read_set.is_incomplete:
                self.look(read_set, verb)
                continue
            if not write_set.is_empty:
                answer = self._call("commit", *write_set.arguments(reply.doorbells), verb=verb)
                if answer[0] != b"changed":
                    write_set.committed_at = int(answer[0].split()[1])
                    offered = self._offer_slots(answer[0].split(b"\n")[1:])
                    is_local = not write_set.slots_elsewhere
                    returned = () if is_local else self._return_elsewhere(write_set)
                    doorbells = [
                        *read_set.doorbells,
                        *offered,
                        *returned,
                        *doorbells_of(answer),
                    ]
                    return replace(reply, doorbells=doorbells)
                if not read_set.is_speculative:
                    conflicts += 1
                    repeats = repeats + 1 if read_set.contents == contents_at_conflict else 0
                    contents_at_conflict = read_set.contents
                    if repeats == SAME_TRIES:
                        raise CorruptDocument(
                            "what is stored contradicts itself, by damage or a write from outside: this "
                            f"request ({verb}) was not done. Restore the run, or remove it."
                        )
                    positions = zip(write_set.limit_positions, answer[1], strict=True)
                    read_set.limit_positions.update(positions)
                    self._wait(conflicts)
            elif read_set.looks == 1 and not read_set.is_speculative:
                self._confirm(verb)
                return reply
            # A conflict, or a refusal that was planned on several looks or on a guess: a refusal must be
            # right at one moment. A commit may follow several looks: it compares the validated values with
            # the stored ones, and unvalidated ones may change: see `Because`. Reading single values again
            # after a conflict would break GUARDED, so everything is read again.
            read_set.reread_all()
            self.look(read_set, verb)
        raise StoreError(
            f"other requests came in between {TRIES} times, and this one ({verb}) was not done."
        )

    def _plan(self, write_set: WriteSet, plan: Plan, *, defers_to_timer: bool) -> Reply:
        """Run a plan. On an incomplete or wrong read set it may fail, and its reply isn't used."""
        transaction = Transaction(write_set, defers_to_timer=defers_to_timer)
        try:
            reply = plan(transaction)
            transaction.finish(reply.doorbells)
        except _PackedRun as packed:
            packed_runs.unpack(self._call, *packed.args)
            write_set.read_set.reread_all()
            return Reply("unread")
        except Exception:
            if write_set.read_set.is_speculative:
                write_set.read_set.reread_all()
            if not write_set.read_set.is_incomplete:
                raise
            return Reply("unread")
        return reply

    def look(self, read_set: ReadSet, verb: str) -> None:
        """Read the values that the read set lacks, all at one moment."""
        if read_set.rates or read_set.wanted_slots:
            self._reserve(read_set, verb)
            if not read_set.is_incomplete:
                return
        commands, hashes = read_set.missing()
        arguments = [argument for command in commands for argument in (len(command), *command)]
        read_set.fill(self._call("look", *arguments, verb=verb), hashes)

    def _reserve(self, read_set: ReadSet, verb: str) -> None:
        """Reserve times under rates, and hold slots that other partitions count.

        Raises:
            LimitAway: one of those partitions can't be reached.
        """
        times: dict[str, int] = {}
        homes = {key: self._settings.elsewhere(key) for key in read_set.rates}
        for home in set(homes.values()):
            rates = {key: read_set.rates[key] for key in homes if homes[key] == home}
            arguments: Iterator[Argument] = itertools.chain(*rates.items())
            reply = (
                _reached(home, "reserve", *arguments)
                if home
                else self._call("reserve", *arguments, verb=verb)
            )
            times |= zip(rates, map(int, reply), strict=True)
        read_set.reserve(times[key] for key in read_set.rates)
        read_set.held_after = read_set.held_after or read_set.now
        for (key, member), (since, concurrency) in read_set.wanted_slots.items():
            home = self._settings.elsewhere(key)
            if home is None:
                raise AssertionError(f"{key} is counted here")
            word, *offered = _reached(home, "slot", "hold", key, concurrency, member, since, "")
            word, _, version = word.partition(b" ")
            read_set.held_slots[key, member] = version
            if word == b"held":
                read_set.own_slots[key, member] = version
            read_set.doorbells += self._offer_slots(offered)
        read_set.wanted_slots = {}

    def _return_elsewhere(self, write_set: WriteSet) -> Iterator[Doorbell]:
        """Return slots that other partitions count; after a failure, they do it when the lease is over."""
        for key, arguments in write_set.slots_elsewhere:
            home = self._settings.elsewhere(key)
            try:
                if home is not None:
                    yield from self._offer_slots(home("slot", *arguments)[1:])
            except StoreError as error:
                log.warning(
                    "limit.later: %s A slot of %r is free when its lease ends.", error, key
                )

    def _wait(self, conflicts: int) -> None:
        if conflicts > IMMEDIATE_TRIES:
            longest = PAUSE * min(conflicts - IMMEDIATE_TRIES, 20)
            time.sleep(random.uniform(0, longest))  # noqa: S311 - jitter is no secret

    def _offer_slots(self, members: Iterable[bytes]) -> list[Doorbell]:
        """Start the nodes that were offered a limit's slot; return their doorbells."""
        doorbells: list[Doorbell] = []
        for member in map(bytes.decode, members):
            run_id, _, node = node_of(member).partition("|")
            doorbells += self._settings.offer(run_id, node)
        return doorbells


def _reached(home: Callable[..., list[Any]], *arguments: Argument) -> list[Any]:
    try:
        return home(*arguments, verb="hold_slot")
    except StoreError as error:
        raise LimitAway(str(error)) from error


def transactions_of(connection: RedisConnection, prefix: str) -> Transactions:
    """Open transactions on a partition's keys outside of runs, which need no settings of a store."""
    scripts = Scripts(connection, prefix)

    def call(name: str, *arguments: Argument, verb: str = "") -> list[Any]:
        return scripts.run(name, "", 0, 0, 0, 0, *arguments, verb=verb)

    return Transactions(call, scripts.confirm, StoreSettings(prefix))
