"""A run in a transaction: the view that transitions read, and the changes that the commit writes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.approvals.ballots import Standing
from runner.definition.model import Topology, index_of, item_id, map_of, shape_name
from runner.limits.limit import input_key
from runner.limits.setting import LimitSetting
from runner.limits.slots import KeyedLimit, QueuePosition
from runner.records import codec
from runner.records.checkpoints import Saved, SessionUpdate
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.interrupts import Decision, Interrupt
from runner.records.metrics import ANSWER
from runner.records.migration import Migration
from runner.records.run import (
    FINAL,
    Arrivals,
    LoopRecord,
    MapRecord,
    NodeRecord,
    RunRecord,
    Status,
    VisitEntry,
    VisitKey,
    claim_name,
)
from runner.records.size_limits import no_room
from runner.scheduler.changes import DRAIN_LIMIT, IDLE, TransitionResult, drain_order
from runner.store import encoding
from runner.store.encoding import (
    FUNCTION_ENTRY,
    MAP,
    NODE,
    NOTHING,
    OF,
    RUN,
    dump,
    load,
    loop_text,
    map_text,
    node_text,
)
from runner.store.interface import Fork, Start
from runner.store.redis import ledger, measurements
from runner.store.redis.keys import LIMITS, run_key
from runner.store.redis.sizes import VISIT_BYTES
from runner.store.redis.transaction import (
    checkpoints,
    migrations,
    new_run,
    questions,
    run_end,
)
from runner.store.redis.transaction.sets import (
    ADDED,
    CONSTANT,
    EITHER,
    GUARDED,
    ArrivalCount,
    LimitPosition,
    WriteSet,
)

TIME_BYTES = len("1795424624342") - len("\1" + "\x010:0\x01")
"""Bytes by which a value grows when the commit writes the time into it."""

MOST_LIMITS = 1_000
"""The most limits without a free slot, and inputs, that a process remembers."""


MOST_READ, FEW = 5_000, 100
"""The most nodes that one step of a stopping run reads to find idle ones: normally, and after conflicts."""


def slot_member(run_id: str, node: str, claim: str) -> str:
    """Name a node's claim under a limit that another partition counts; a run's id never contains "@"."""
    return f"@{claim}|{run_id}|{node}"


read_status = NODE.reader("status")

RECORDS = re.compile(r"[nl]:|a-?\d+:")
"""Prefixes of the fields with records of nodes and loops, and arrivals."""


class RunInTransaction:
    """One run: the view of its transitions, which fills a write set.

    With `defers_to_timer` the nodes of a run that stops are cancelled by a timer, not at once: see `idle`.
    """

    def __init__(
        self,
        write_set: WriteSet,
        record: RunRecord,
        topology: Topology,
        *,
        defers_to_timer: bool,
    ) -> None:
        self.write_set, self.topology = write_set, topology
        self.initial = self.record = record
        self.key = run_key(record.run_id)
        self._defers_to_timer = defers_to_timer
        self._compares_run_field = False
        """True if the commit compares the run's field `run` as a whole, with the number of its events."""
        self._nodes: dict[str, NodeRecord] = {}
        self._read_nodes: dict[str, NodeRecord] = {}
        self._loops: dict[int, LoopRecord] = {}
        self._maps: dict[str, MapRecord] = {}
        self._arrivals: dict[tuple[int, str], Arrivals] = {}
        self.encoded: dict[VisitKey, Sequence[bytes]] = {}
        """Entry and output of completed visits that are encoded already."""

    # The view of a transition

    def run(self) -> RunRecord:
        return self.record

    def node(self, node: str) -> NodeRecord:
        record = self._nodes.get(node) or self._read_nodes.get(node)
        if record is None:
            text = self.write_set.read(self.key, f"n:{node}")
            record = encoding.node_record(self.record.run_id, node, text)[0]
            self._read_nodes[node] = record
        return record

    def text(self, node: str) -> bytes:
        """Return a node's record as it is or will be stored."""
        written = self._nodes.get(node)
        if written:
            return self._text(node, written).encode()
        return self.write_set.read(self.key, f"n:{node}") or b""

    def _text(self, node: str, record: NodeRecord) -> str:
        shape = self.topology.nodes.get(shape_name(node))
        return node_text(node, record, shape.scope if shape else -1)

    def loop(self, loop: int) -> LoopRecord:
        changed_record = self._loops.get(loop)
        if changed_record is not None:
            return changed_record
        text = self.write_set.read(self.key, f"l:{loop}")
        return encoding.loop_record(text) if text else LoopRecord()

    def map(self, node: str) -> MapRecord:
        written = self._maps.get(node)
        return written if written is not None else self._read_map(node)

    def _read_map(self, node: str) -> MapRecord:
        """Read a map's record; unless it is written, its items may begin and end until the commit."""
        text = self.write_set.read_unvalidated(self.key, f"m:{node}", ADDED)
        record = encoding.map_record(text) if text else MapRecord()
        if not self.write_set.changes_field(self.key, f"m:{node}"):
            form = (
                MAP.pattern(
                    f"visit={record.visit} total={record.total} stopped={int(record.stopped)}"
                )
                if text
                else "^$"
            )
            self.write_set.patterns[self.key, f"m:{node}"] = form
        return record

    def arrivals(self, scope: int, node: str) -> Arrivals:
        written = self._arrivals.get((scope, node))
        return written if written is not None else self._read_arrivals(scope, node)

    def _read_arrivals(self, scope: int, node: str) -> Arrivals:
        """Read arrivals; outside of loops others may come meanwhile, as long as they decide nothing."""
        field = self.key, f"a{scope}:{node}"
        text = (
            self.write_set.read(*field)
            if self.topology.nodes[node].loops
            else self.write_set.read_unvalidated(*field, ADDED)
        )
        return Arrivals(*load(text)) if text else Arrivals()

    def idle(self, after_node: str) -> Iterator[str]:
        """Yield the idle nodes after one, reading some at a time as long as more are asked for.

        In the step that stops the run, none of its nodes may change meanwhile. If that keeps failing (see
        `defers_to_timer`), this yields "" alone. It reads `MOST_READ` nodes, or `FEW` after conflicts.
        """
        if self._defers_to_timer and not self.record.stopping:
            yield ""
            return
        self._compares_run_field |= not self.record.stopping
        reads = self.write_set.read_set
        names = self._names(after_node)
        count = 0
        most = FEW if self._defers_to_timer else MOST_READ
        reads.want(self.key, [f"l:{loop}" for loop in range(len(self.topology.loops))])
        while some := list(itertools.islice(names, DRAIN_LIMIT + 1)):
            reads.want(self.key, [f"n:{node}" for node in some])
            if reads.is_incomplete:
                return
            for node in some:
                text = self.write_set.read_unvalidated(self.key, f"n:{node}", GUARDED)
                is_idle = text and read_status(text) in IDLE
                count = count + 1
                if is_idle:
                    yield node
                if count == most:
                    yield "" if is_idle else node
                    return

    def _names(self, previous_node: str) -> Iterator[str]:
        """Name all nodes after one, with the items of maps that have begun."""
        first_node, order = drain_order(previous_node)
        nodes = self.topology.nodes
        later_nodes = sorted(node for node in nodes if node >= first_node and not map_of(node))
        self.write_set.read_set.want(
            self.key, [f"m:{node}" for node in later_nodes if nodes[node].map]
        )
        for node in later_nodes:
            if node > first_node:
                yield node
            text = (
                self.write_set.read_unvalidated(self.key, f"m:{node}", ADDED)
                if nodes[node].map
                else None
            )
            begun = encoding.map_record(text).next if text else 0
            for item in reversed(range(min(begun, -order) if node == first_node else begun)):
                yield item_id(node, item)

    def question_status(self, interrupt_id: str) -> str:
        return questions.status(self.write_set, self.key, interrupt_id)

    def question(self, interrupt_id: str) -> Interrupt | None:
        return questions.question(self.write_set, self.key, interrupt_id)

    def reported(self, reference: str) -> bool:
        return self.write_set.read(self.key, f"h:{reference}") is not None

    def tag(self, name: str) -> str:
        text = self.write_set.read_unvalidated(run_key(self.record.root), "tags", CONSTANT)
        value: object = load(text).get(name, "") if text else ""
        return value if isinstance(value, str) else ""

    def limit_setting(self, name: str) -> LimitSetting | None:
        text = self.write_set.read_unvalidated(LIMITS, name, EITHER)
        return LimitSetting.read(name, text) if text else None

    def input_key(self, node: str, visit: int, path: str) -> str | None:
        known = self.write_set.settings.input_keys
        member = (self.record.run_id, node, visit, path)
        if member not in known:
            text = (
                self.item(node, visit)
                or self.write_set.read_unvalidated(self.key, f"t:{node}.{visit}", GUARDED)
                or self.write_set.read_unvalidated(self.key, "task", CONSTANT)
            )
            if self.write_set.read_set.is_incomplete:
                return None
            if len(known) > MOST_LIMITS:
                known.clear()
            (task,) = self.write_set.settings.load([text])
            known[member] = input_key(task, path)
        return known[member]

    def item(self, node: str, visit: int) -> bytes | None:
        """Return the item of a map that a visit works on; None for other nodes."""
        if not map_of(node):
            return None
        key, (chunk, place) = f"{self.key}:f", encoding.chunk_of(node, visit)
        item = self.write_set.read_unvalidated(
            key, f"{map_of(node)}.{visit}.{index_of(node)}", CONSTANT
        )
        items = self.write_set.read_unvalidated(key, chunk, CONSTANT)
        return item or (items.split(b"\n")[place] if items else None)

    # Limits change with every claim of any run. A time under a rate is reserved before it is used in a plan;
    # a slot is guessed, and if the guess is wrong, the commit replies with the real position.

    def next_start(self, key: str, interval: int) -> int:
        read_set = self.write_set.read_set
        if key not in read_set.start_times and not read_set.lacks_values:
            read_set.rates[key] = interval
        return read_set.start_times.get(key, 0)

    def queue_position(
        self, limit: KeyedLimit, node: str, since: int, now: int
    ) -> QueuePosition:
        key = limit.key
        concurrency = limit.concurrency
        member = f"{self.record.run_id}|{node}"
        if self.write_set.settings.elsewhere(key) is not None:
            is_held = self._hold(
                key,
                slot_member(self.record.run_id, node, claim_name(self.node(node))),
                since,
                concurrency,
            )
            return QueuePosition(0 if is_held else concurrency, 0, is_held)
        full = self.write_set.settings.full
        text = self.write_set.read_set.limit_positions.get((key, member))
        if text is None:
            # A slot is reserved for a node that has waited; for others the last result is presumed.
            text = b"0 0 1" if since < now else b"%d 0 0" % (concurrency if key in full else 0)
        taken_slots, ahead, mine = map(int, text.split())
        is_free = bool(mine) or taken_slots + ahead < concurrency
        if len(full) > MOST_LIMITS:
            full.clear()
        (full.discard if is_free else full.add)(key)
        position = LimitPosition(key, member, since, concurrency, is_free)
        self.write_set.limit_positions[key, member] = position
        return QueuePosition(taken_slots, ahead, bool(mine))

    def _hold(self, key: str, member: str, since: int, concurrency: int) -> bool:
        """Return whether a slot that another partition counts is held; if it wasn't asked for, note it."""
        read_set = self.write_set.read_set
        settings = self.write_set.settings
        version = read_set.held_slots.get((key, member))
        if version is None and not read_set.is_incomplete:
            read_set.wanted_slots[key, member] = since, concurrency
        # A lease after it gave the slot, that partition asks whether the node runs: a claim must be earlier.
        self.write_set.must_be_before(read_set.held_after + settings.lease_ms // 2)
        return bool(version)

    # Writing

    def write(self, result: TransitionResult) -> None:
        self.record = result.run
        self._nodes.update(result.nodes)
        self._loops.update(result.loops)
        self._maps.update(result.maps)
        self._arrivals.update(result.arrivals)

    def _need_entries(self) -> None:
        """Read everything if the number of the run's audit entries is only guessed: more may have come."""
        read_set = self.write_set.read_set
        if read_set.is_speculative and not read_set.has_entries:
            read_set.reread_all()

    def end(self, now: int) -> None:
        # An ended run doesn't need the table marker.
        version = (self.write_set.read_unvalidated(self.key, "v", EITHER) or b"").split(b" -")[
            0
        ]
        ended_fields = {"ended": self.write_set.time(now), "v": version}
        self.write_set.fields.setdefault(self.key, {}).update(ended_fields)

    @property
    def created_at(self) -> int:
        return int(self._created)

    @property
    def _created(self) -> bytes:
        time = (self.write_set.read_unvalidated(self.key, "v", EITHER) or b"- 0").split(b" ")[1]
        return b"\1" + time if time[:1] == b"\1" else time  # see WriteSet.time

    @property
    def audited(self) -> int:
        # If a run stops, no entry may be missed: not all of its nodes change, so one may ask meanwhile.
        must_hold = self.record.stopping or self.write_set.read_set.is_speculative
        field = self.key, "audit"
        text = (
            self.write_set.read(*field)
            if must_hold
            else self.write_set.read_unvalidated(*field, EITHER)
        )
        number = int(text or 0)
        if number:
            self._need_entries()
        return number

    def audit(self, entry: JSONObject) -> None:
        self._need_entries()
        number = int(self.write_set.read(self.key, "audit") or 0)
        self.write_set.put(self.key, "audit", number + 1)
        ledger.append(self.write_set, {**entry, "run_n": number})

    def open(self, question: Interrupt) -> None:
        questions.open_question(self.write_set, self.record, question)

    def close(self, interrupt_id: str, status: str, now: int) -> None:
        if not self.write_set.read_set.now:
            self.write_set.read_set.reread_all()  # this step reads the decision, too, which needs the time
        questions.close(self.write_set, self.record, interrupt_id, f"{status} {now}  ".encode())

    def remind(self, interrupt_id: str) -> int:
        return questions.remind(self.write_set, self.key, interrupt_id)

    def leave_result(
        self, node: str, visit: int, status: Status, entry: VisitEntry, output: JSON
    ) -> None:
        run_id = self.record.run_id
        order = "0 "
        size = VISIT_BYTES
        if status is Status.COMPLETED:
            text, value = self.encoded.get((node, visit)) or (
                self._encode(dump(entry).removeprefix(FUNCTION_ENTRY)),
                self._encode(dump(output)),
            )
            size += len(value)
            # Results are ordered by these first events. An item has no place in the order: its map has.
            if not map_of(node):
                order = f"\1{self.write_set.counters(run_id).event_number(1)} "
            # An entry with a place in the order but no output stands for `null`.
            if map_of(node) or value != NOTHING:
                self.write_set.put(self.key, f"o:{node}.{visit}", value)
        else:
            text = dump(entry).removeprefix(FUNCTION_ENTRY)
        self.write_set.put(self.key, f"x:{node}.{visit}", order.encode() + text)
        self._grow(size + len(text))

    def keep(self, node: str, checkpoint: Saved | None) -> None:
        """Write a node's checkpoint."""
        if checkpoint is not None:
            self._grow(checkpoints.keep(self.write_set, self.key, node, checkpoint))

    def _encode(self, data: bytes) -> bytes:
        return self.write_set.encode(self.record.run_id, data)

    def note_error(self, node: str, visit: int, entry: VisitEntry) -> None:
        self.write_set.put(
            self.key, f"x:{node}.{visit}", b"0 " + dump(entry).removeprefix(FUNCTION_ENTRY)
        )

    def remember(self, node: str, session: SessionUpdate) -> None:
        checkpoints.remember(self.write_set, self.key, node, session)

    def replace_input(self, start: Start) -> None:
        self.write_set.read(self.key, "reason")  # it must still be queued
        new_run.replace_input(self.write_set, self.record, start)

    def put_report(self, reference: str, outcome: JSON) -> None:
        text = self._encode(dump(outcome))
        self.write_set.put(self.key, f"h:{reference}", text)
        self._grow(len(text))

    def put_items(self, node: str, visit: int, items: Sequence[Any]) -> None:
        """Count the encoded items of a map; they were written chunk by chunk, see `put_rows`."""
        if self._read_map(node).visit != visit:
            self._grow(sum(map(len, items)))

    def put_rows(self, fields: Mapping[str, bytes]) -> None:
        if fields:
            pairs: Iterator[str | bytes] = itertools.chain.from_iterable(fields.items())
            self.write_set.command("HSET", f"{self.key}:f", *pairs)

    def check_size(self, growth: int, most: int) -> None:
        """Refuse bytes for which there is no room; a stopping run accepts all bytes of its nodes.

        Raises:
            PayloadTooLarge: there is no room.
        """
        size = int(
            self.write_set.read_unvalidated(run_key(self.record.root), "size", ADDED) or 0
        )
        if size + growth > most and not self.record.stopping:
            raise no_room(size, growth, most)

    def last_event(self) -> int:
        """Return the number of the last event; no event may come before the commit."""
        self._compares_run_field = True
        line = self.write_set.read_unvalidated(self.key, "run", GUARDED)
        return int(encoding.read_last_event(line)) if line else 0

    def erase(self, undone: Mapping[VisitKey, VisitEntry], forgets: Iterable[str]) -> None:
        write_set = self.write_set
        key = self.key
        self._read_nodes.clear()
        names: list[bytes] = write_set.read_set.reply("HKEYS", key)
        for name in map(bytes.decode, names):
            if RECORDS.match(name):
                write_set.drop(key, name)
        for (node, visit), entry in undone.items():
            output = f"o:{node}.{visit}"
            write_set.read_set.ask("HSTRLEN", key, output)
            order = (
                write_set.read_unvalidated(key, f"x:{node}.{visit}", GUARDED) or b"0 "
            ).split(b" ")[0]
            size = int(write_set.read_set.reply("HSTRLEN", key, output))
            # An output that isn't stored is `null`: see `leave_result`.
            self._grow(-(size or (0 if order == b"0" else len(NOTHING))))
            write_set.drop(key, output)
            self.note_error(node, visit, entry)
        for node in forgets:
            self._grow(-checkpoints.forget(write_set, key, node))

    def has_entry(self, visit: VisitKey) -> bool:
        return (
            self.write_set.read_unvalidated(self.key, "x:{}.{}".format(*visit), GUARDED)
            is not None
        )

    def copy_results(self, source: RunInTransaction, fork: Fork) -> None:
        write_set = self.write_set
        run_id = self.record.run_id
        size = new_run.copy_results(write_set, source.key, run_id, fork.results)
        size += new_run.copy_checkpoints(write_set, source.key, run_id, fork.remembers)
        if fork.visit is not None:
            node, number = fork.visit
            task = dump(fork.input)
            # A field k:<node> makes the node's claim look for a task of its own.
            write_set.put(
                self.key,
                f"k:{node}",
                write_set.read_unvalidated(self.key, f"k:{node}", GUARDED) or b"1",
            )
            write_set.put(self.key, f"t:{node}.{number}", task)
            size += len(task)
        new_run.add_size(write_set, self.record, size)

    def migrate(self, move: Migration) -> None:
        write_set = self.write_set
        initial = self.record
        key = self.key
        self.erase(move.undone, move.forgets)
        migrations.rename(write_set, initial.root, move)
        if move.parent_node:
            write_set.put(key, "parent_node", move.parent_node)
            write_set.put(key, "path", move.path)
        write_set.put(
            key,
            "of",
            OF.text(
                fingerprint=move.fingerprint, parent=initial.parent or "-", graph=move.graph_id
            ),
        )
        if move.fingerprint != initial.fingerprint:
            write_set.released_shapes.append((initial.graph_id, initial.fingerprint))
            new_run.use_shape(write_set, move.fingerprint)
        self.record = replace(
            initial,
            parent_node=move.parent_node,
            path=move.path,
            fingerprint=move.fingerprint,
            graph_id=move.graph_id,
        )
        topology = write_set.topology(move.graph_id, move.fingerprint)
        if topology is not None:  # the caller has checked that it exists
            self.topology = topology
        # The first event is the migration's, then come the events of the moved questions.
        first_number = len(write_set.counters(initial.run_id).events) + 2
        for nth, renaming in enumerate(move.moved, first_number):
            number = write_set.counters(initial.run_id).event_number(nth)
            migrations.move_question(write_set, initial.root, initial.run_id, renaming, number)

    @property
    def reopened(self) -> str:
        """The nonce of the request that reopened the run, or migrated it."""
        return (self.write_set.read(self.key, "again") or b"").decode()

    @reopened.setter
    def reopened(self, nonce: str) -> None:
        self.write_set.put(self.key, "again", nonce)

    def winner(self, interrupt_id: str) -> str:
        _, decision_field = encoding.question_fields(interrupt_id)
        return encoding.winner(self.write_set.read(self.key, decision_field))

    def decide(self, question: Interrupt, answer: Decision, nonce: str, now: int) -> None:
        text = encoding.decision(answer)
        seconds = max(0, now - question.asked_at) / 1000
        self.write_set.measure(measurements.increments(ANSWER, seconds))
        if question.expires_in is not None:
            self.write_set.must_be_before(question.asked_at + round(question.expires_in * 1000))
        decision_text = f"answered {now} {nonce} ".encode() + text
        questions.close(self.write_set, self.record, answer.interrupt_id, decision_text)
        self._grow(len(text))

    def requester(self) -> JSONMapping:
        document = self.write_set.read_unvalidated(
            run_key(self.record.root), "requester", CONSTANT
        )
        return load(document) if document else {}

    def standing(self, interrupt_id: str) -> Standing:
        return encoding.standing(
            self.write_set.read(self.key, questions.votes_field(interrupt_id))
        )

    def put_standing(self, interrupt_id: str, standing: Standing) -> None:
        self._replace(questions.votes_field(interrupt_id), codec.encode(standing))

    def voter(self, interrupt_id: str, principal: str) -> JSONMapping:
        return encoding.document(
            self.write_set.read(self.key, questions.votes_field(interrupt_id, principal))
        )

    def put_voter(self, interrupt_id: str, principal: str, participation: JSONMapping) -> None:
        self._replace(questions.votes_field(interrupt_id, principal), dump(dict(participation)))

    def vote(self, interrupt_id: str, number: int) -> JSONMapping:
        return encoding.document(
            self.write_set.read(self.key, questions.votes_field(interrupt_id, str(number)))
        )

    def put_vote(self, interrupt_id: str, number: int, vote: JSONMapping | None) -> None:
        name = questions.votes_field(interrupt_id, str(number))
        if vote is None:
            self._grow(-len(self.write_set.read(self.key, name) or b""))
            self.write_set.drop(self.key, name)
            return
        # The standing has determined a free number.
        text = dump(dict(vote))
        self.write_set.put(self.key, name, text)
        self._grow(len(text))

    def _grow(self, size: int) -> None:
        self.write_set.add_size(self.record.root, size)

    def _replace(self, name: str, text: bytes) -> None:
        """Write a field whose bytes count for the run's size."""
        had = len(self.write_set.read(self.key, name) or b"")
        self.write_set.put(self.key, name, text)
        self._grow(len(text) - had)

    def assign(self, interrupt_id: str, person: str) -> None:
        self._grow(questions.assign(self.write_set, self.key, interrupt_id, person))

    def note_use(self, question: Interrupt, use_document: JSONMapping) -> None:
        _, decision_field = encoding.question_fields(question.id)
        head, brace, text = (self.write_set.read(self.key, decision_field) or b"").partition(
            b"{"
        )
        decision = {name: value for name, value in load(brace + text).items() if name != "used"}
        if use_document["at"]:
            self._replace(decision_field, head + dump({**decision, "used": dict(use_document)}))
            return
        used = self.write_set.dump_with_time(use_document)
        self._replace(
            decision_field, b"\1" + head + dump(decision)[:-1] + b',"used":' + used + b"}"
        )
        self._grow(TIME_BYTES)

    def note_withdrawal(self, interrupt_id: str, attempt: int, withdrawal: JSONMapping) -> None:
        text, (_, decision_field) = dump(withdrawal), encoding.question_fields(interrupt_id)
        self.write_set.put(
            self.key,
            decision_field,
            f"withdrawn {self.write_set.read_set.now} {attempt} ".encode() + text,
        )
        self._grow(len(text))

    @property
    def cancelled(self) -> str:
        """The nonce of the request that cancelled the run."""
        return (self.write_set.read(self.key, "cancel") or b"").decode()

    @cancelled.setter
    def cancelled(self, nonce: str) -> None:
        self.write_set.put(self.key, "cancel", nonce)

    def flush(self) -> None:
        """Add the changes of all transitions to the write set."""
        write_set = self.write_set
        key = self.key
        for node, record in self._nodes.items():
            write_set.read(key, f"n:{node}")
            write_set.put(key, f"n:{node}", self._text(node, record))
        for loop, loop_record in self._loops.items():
            write_set.read(key, f"l:{loop}")
            write_set.put(key, f"l:{loop}", loop_text(loop_record))
        for node, items in self._maps.items():
            write_set.read(key, f"m:{node}")
            if items != self._read_map(node):
                write_set.put(key, f"m:{node}", map_text(items))
        for (scope, node), arrivals in self._arrivals.items():
            self._flush_arrivals(scope, node, arrivals)
        changes = (
            self._nodes
            or self._loops
            or self._maps
            or self._arrivals
            or self._compares_run_field
        )
        if changes or self.record != self.initial or self.record.run_id in write_set.runs:
            self._flush_record()
        if {self.initial.status, self.record.status} & FINAL:
            run_end.follow(write_set, self.initial, self.record)

    def _flush_arrivals(self, scope: int, node: str, arrivals: Arrivals) -> None:
        """Add arrivals to the stored ones, unless more of them would lead to another decision."""
        counted_arrivals = self._read_arrivals(scope, node)
        name = f"a{scope}:{node}"
        if counted_arrivals.stamp != arrivals.stamp:
            counted_arrivals = Arrivals(arrivals.stamp)
        shape = self.topology.nodes[node]
        record = self._nodes.get(node)
        if record is not None or shape.loops or self.write_set.changes_field(self.key, name):
            self.write_set.read(self.key, name)
            self.write_set.put(
                self.key, name, dump([arrivals.stamp, arrivals.arrived, arrivals.live])
            )
            return
        pending = self.node(node).status is Status.PENDING and not self.record.stopping
        below = shape.needs if pending else 0
        deltas = (
            arrivals.arrived - counted_arrivals.arrived,
            arrivals.live - counted_arrivals.live,
        )
        self.write_set.arrivals.append(
            ArrivalCount(self.key, name, arrivals.stamp, *deltas, below)
        )

    def _flush_record(self) -> None:
        write_set = self.write_set
        initial = self.initial
        record = self.record
        for name, previous, value in (
            ("reason", initial.reason, record.reason),
            ("lock", initial.lock, record.lock),
            ("ends", initial.ends, record.ends),
            ("unreported", initial.unreported, record.unreported),
        ):
            if previous != value:
                write_set.read(self.key, name)
                if value:
                    write_set.put(self.key, name, value)
                else:
                    write_set.drop(self.key, name)
        counters = write_set.counters(record.run_id)
        counters.deltas = (
            record.active - initial.active,
            record.waiting - initial.waiting,
            record.held - initial.held,
            record.failed - initial.failed,
            record.started - initial.started,
        )
        counters.expected_status_counters = _status_counters(record)
        counters.status = record.status
        counters.stopping = record.stopping or "-"
        if self.key in write_set.new_keys:
            counters.pattern = "^$"
        elif self._compares_run_field:
            text = write_set.read_unvalidated(self.key, "run", GUARDED) or b""
            counters.pattern = f"^{text.decode().replace('-', '%-')}$"
        else:
            counters.pattern = RUN.pattern(
                f"status={initial.status} stopping={initial.stopping or '-'}"
            )
            if record.started > initial.started and not (
                record.stopping and not initial.stopping
            ):
                counters.max_started = self.topology.limit
        if (initial.status, initial.graph_id) != (record.status, record.graph_id):
            indexes = [f"runs:{run.status}:{run.graph_id}" for run in (initial, record)]
            write_set.command("ZREM", indexes[0], record.run_id)
            write_set.command("ZADD", indexes[1], self._created, record.run_id)


def _status_counters(run: RunRecord) -> str:
    """Return letters for the counters that decide a run's status, in the order of `status_of`."""
    letters = ""
    for letter, count in (("a", run.active), ("h", run.held), ("w", run.waiting)):
        if count:
            return letters + letter
        letters += letter.upper()
    if run.stopping == Status.FAILED:
        return letters
    return letters + ("f" if run.failed else "F")
