"""One run in a draft: what a transition sees of it, and what is written of it in the end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.approvals.ballots import Standing
from runner.definition.model import Topology, item_id, map_of, shape_name
from runner.definition.policies import QueuePosition
from runner.records.codec import JSON
from runner.records.interrupts import Answer, Interrupt
from runner.records.migration import Migration
from runner.records.outcomes import Remembered, Saved
from runner.records.run import (
    Arrivals,
    LoopRecord,
    MapRecord,
    NodeRecord,
    RunRecord,
    Status,
    VisitEntry,
    VisitKey,
)
from runner.records.size_limits import no_room
from runner.scheduler.changes import TimerKind, TransitionResult
from runner.scheduler.shared import DRAIN_LIMIT, IDLE, place_of
from runner.store import encoding
from runner.store.encoding import NOTHING, dump, load
from runner.store.interface import Fork
from runner.store.redis import (
    auditing,
    forked,
    kept,
    new_run,
    questions,
    renamed,
    retention,
    script_values,
)
from runner.store.redis.draft import Arrival, Draft, Line, Turn
from runner.store.redis.keys import run_key
from runner.store.redis.script_values import loop_text, map_text, node_text
from runner.store.redis.sizes import VISIT_BYTES

MOST_LIMITS = 1_000
"""Limits without a free place that a process remembers."""

RECORDS = re.compile(r"[nl]:|a-?\d+:")
"""How the fields begin that have records of nodes and loops, and arrivals."""


class DraftedRun:
    """One run: the view of its transitions, which writes into a draft.

    With `calm` the nodes of a run that stops are cancelled by a timer, not at once: see `idle`.
    """

    def __init__(self, draft: Draft, record: RunRecord, topology: Topology, *, calm: bool) -> None:
        self.draft, self.topology = draft, topology
        self.before = self.record = record
        self.key = run_key(record.run_id)
        self._calm = calm
        self._exact = False
        self._nodes: dict[str, NodeRecord] = {}
        self._loops: dict[int, LoopRecord] = {}
        self._maps: dict[str, MapRecord] = {}
        self._arrived: dict[tuple[int, str], Arrivals] = {}

    # The view of a transition

    def run(self) -> RunRecord:
        return self.record

    def node(self, node: str) -> NodeRecord:
        written = self._nodes.get(node)
        if written is not None:
            return written
        text = self.draft.get(self.key, f"n:{node}")
        return encoding.node_record(text)[0] if text else NodeRecord()

    def text(self, node: str) -> bytes:
        """Return a node's record as it is stored, or will be."""
        written = self._nodes.get(node)
        return (
            self._text(node, written).encode()
            if written
            else self.draft.get(self.key, f"n:{node}") or b""
        )

    def _text(self, node: str, record: NodeRecord) -> str:
        shape = self.topology.nodes.get(shape_name(node))
        return node_text(record, shape.scope if shape else -1)

    def loop(self, loop: int) -> LoopRecord:
        written = self._loops.get(loop)
        if written is not None:
            return written
        text = self.draft.get(self.key, f"l:{loop}")
        return encoding.loop_record(text) if text else LoopRecord()

    def map(self, node: str) -> MapRecord:
        written = self._maps.get(node)
        return written if written is not None else self._stored_map(node)

    def _stored_map(self, node: str) -> MapRecord:
        """Read a map's record: while it is only looked at, its items may come and go."""
        text = self.draft.peek(self.key, f"m:{node}")
        record = encoding.map_record(text) if text else MapRecord()
        if not self.draft.writes(self.key, f"m:{node}"):
            form = (
                rf"^{record.visit} {record.total} .* {int(record.stopped)} %d+$" if text else "^$"
            )
            self.draft.forms[self.key, f"m:{node}"] = form
        return record

    def arrivals(self, scope: int, node: str) -> Arrivals:
        written = self._arrived.get((scope, node))
        return written if written is not None else self._stored_arrivals(scope, node)

    def _stored_arrivals(self, scope: int, node: str) -> Arrivals:
        """Read arrivals; outside of loops others may come meanwhile, while they decide nothing."""
        read = self.draft.get if self.topology.nodes[node].loops else self.draft.peek
        text = read(self.key, f"a{scope}:{node}")
        return Arrivals(*load(text)) if text else Arrivals()

    def idle(self, after: str) -> Iterator[str]:
        """Look at the nodes after one, some at a time, as long as more of them are asked for.

        In the step that stops the run no node of it may change meanwhile. Where that does not succeed, none
        is named (see `calm`), and a timer begins with the first.
        """
        if self._calm and not self.record.stopping:
            self.draft.timer(f"{TimerKind.DRAIN}|{self.record.run_id}|", self.draft.reads.now)
            return
        self._exact |= not self.record.stopping
        reads, names = self.draft.reads, self._names(after)
        reads.want(self.key, [f"l:{loop}" for loop in range(len(self.topology.loops))])
        while some := list(itertools.islice(names, DRAIN_LIMIT + 1)):
            reads.want(self.key, [f"n:{node}" for node in some])
            if reads.is_incomplete:
                return
            for node in some:
                text = self.draft.peek(self.key, f"n:{node}")
                if text and text.split(b" ", 1)[0].decode() in IDLE:
                    yield node

    def _names(self, after: str) -> Iterator[str]:
        """Name all nodes after one, with the items of maps that have begun."""
        first, index = place_of(after)
        nodes = self.topology.nodes
        rest = sorted(node for node in nodes if node >= first and not map_of(node))
        self.draft.reads.want(self.key, [f"m:{node}" for node in rest if nodes[node].map])
        for node in rest:
            if node > first:
                yield node
            text = self.draft.peek(self.key, f"m:{node}") if nodes[node].map else None
            begun = encoding.map_record(text).next if text else 0
            for item in range(index + 1 if node == first else 0, begun):
                yield item_id(node, item)

    def question_status(self, interrupt_id: str) -> str:
        return questions.status(self.draft, self.key, interrupt_id)

    def question(self, interrupt_id: str) -> Interrupt | None:
        return questions.question(self.draft, self.key, interrupt_id)

    def reported(self, reference: str) -> bool:
        return self.draft.get(self.key, f"h:{reference}") is not None

    def tag(self, name: str) -> str:
        text = self.draft.peek(run_key(self.record.root), "tags")
        value: object = load(text).get(name, "") if text else ""
        return value if isinstance(value, str) else ""

    # Limits change with every claim of any run. A time under a rate is reserved before it is planned with;
    # a place is guessed, and a commit that finds it otherwise answers with how it is.

    def next_start(self, key: str, interval: int) -> int:
        reads = self.draft.reads
        if key not in reads.starts:
            reads.rates[key] = interval
        return reads.starts.get(key, 0)

    def queue_position(self, key: str, node: str, since: int, now: int) -> QueuePosition:
        member = f"{self.record.run_id}|{node}"
        limits = self.topology.nodes[shape_name(node)].limits
        concurrency = next(limit.concurrency for limit in limits if limit.key(self) == key)
        full = self.draft.settings.full
        text = self.draft.reads.turns.get((key, member))
        if text is None:
            # Who has waited has a place kept now; others find it as the last one did.
            text = b"0 0 1" if since < now else b"%d 0 0" % (concurrency if key in full else 0)
        taken, ahead, mine = map(int, text.split())
        is_free = bool(mine) or taken + ahead < concurrency
        if len(full) > MOST_LIMITS:
            full.clear()
        (full.discard if is_free else full.add)(key)
        self.draft.turns[key, member] = Turn(key, member, since, concurrency, is_free)
        return QueuePosition(taken, ahead, bool(mine))

    # Writing

    def write(self, result: TransitionResult) -> None:
        self.record = result.run
        self._nodes.update(result.nodes)
        self._loops.update(result.loops)
        self._maps.update(result.maps)
        self._arrived.update(result.arrivals)

    def _need_time(self) -> None:
        """Read everything where it is only presumed: that has no time, which an entry needs."""
        if not self.draft.reads.now:
            self.draft.reads.again()

    def end(self, now: int) -> None:
        self.draft.put(self.key, "ended", self.draft.moment(now))

    @property
    def created_at(self) -> int:
        return int(self.draft.peek(self.key, "created") or 0)

    @property
    def audited(self) -> int:
        # Of a run that stops none may be missed: its nodes don't all change, so that one may ask meanwhile.
        must_hold = self.record.stopping or self.draft.reads.is_presumed
        read = self.draft.get if must_hold else self.draft.peek
        number = int(read(self.key, "audit") or 0)
        if number:
            self._need_time()
        return number

    def audit(self, entry: dict[str, JSON]) -> None:
        self._need_time()
        number = int(self.draft.get(self.key, "audit") or 0)
        self.draft.put(self.key, "audit", number + 1)
        auditing.append(self.draft, {**entry, "run_n": number})

    def open(self, question: Interrupt) -> None:
        questions.open_question(self.draft, self.record, question, self._written)

    def close(self, interrupt_id: str, status: str, now: int) -> None:
        if not self.draft.reads.now:
            self.draft.reads.again()  # the decision is read in this step, too: it needs the time
        questions.close(self.draft, self.record, interrupt_id, f"{status} {now}  ".encode())

    def remind(self, interrupt_id: str) -> int:
        return questions.remind(self.draft, self.key, interrupt_id)

    def leave_result(
        self, node: str, visit: int, status: Status, entry: VisitEntry, output: JSON
    ) -> None:
        run_id, place, size = self.record.run_id, "0 ", VISIT_BYTES
        if status is Status.COMPLETED:
            text, value = self._written(entry), self._written(output)
            size += len(value)
            # Results have the order of these first events. An item has no place in it: its map has.
            if not map_of(node):
                place = f"\1{self.draft.event_number(run_id, 1)} "
            # An entry with a place in the order and no output has `null`.
            if map_of(node) or value != NOTHING:
                self.draft.put(self.key, f"o:{node}.{visit}", value)
        else:
            text = dump(entry)
        self.draft.put(self.key, f"x:{node}.{visit}", place.encode() + text)
        self.draft.grow(self.record.root, size + len(text))

    def keep(self, node: str, saved: Saved | None) -> None:
        """Write a node's checkpoint."""
        size = kept.keep(self.draft, self.key, node, saved)
        self.draft.grow(self.record.root, size)

    def _written(self, value: JSON) -> bytes:
        return self.draft.written(self.record.run_id, value)

    def note_error(self, node: str, visit: int, entry: VisitEntry) -> None:
        self.draft.put(self.key, f"x:{node}.{visit}", b"0 " + dump(entry))

    def remember(self, node: str, session: Remembered) -> None:
        kept.remember(self.draft, self.key, node, session)

    def put_report(self, reference: str, outcome: JSON) -> None:
        text = self._written(outcome)
        self.draft.put(self.key, f"h:{reference}", text)
        self.draft.grow(self.record.root, len(text))

    def put_items(self, node: str, visit: int, items: Sequence[JSON]) -> None:
        """Count the items of a map; they were written chunk by chunk, see `put_rows`."""
        if self._stored_map(node).visit != visit:
            self.draft.grow(self.record.root, sum(len(self._written(item)) for item in items))

    def put_rows(self, node: str, visit: int, first: int, rows: Sequence[bytes]) -> None:
        for index, row in enumerate(rows, first):
            self.draft.put(f"{self.key}:f", f"{node}.{visit}.{index}", row)

    def check_room(self, more: int, most: int) -> None:
        """Refuse bytes for which there is no room; a run that stops takes all that its nodes leave.

        Raises:
            PayloadTooLarge: there is no room.
        """
        size = int(self.draft.peek(run_key(self.record.root), "size") or 0)
        if size + more > most and not self.record.stopping:
            raise no_room(size, more, most)

    def last_event(self) -> int:
        """Return the number of the last event; no other may come meanwhile."""
        self._exact = True
        line = self.draft.peek(self.key, "run") or b"0 -"
        return int(line.split(b" ")[-2])

    def erase(self, undone: Mapping[VisitKey, VisitEntry], forgets: Iterable[str]) -> None:
        draft, key = self.draft, self.key
        names: list[bytes] = draft.reads.reply("HKEYS", key)
        for name in map(bytes.decode, names):
            if RECORDS.match(name):
                draft.drop(key, name)
        for (node, visit), entry in undone.items():
            output = f"o:{node}.{visit}"
            draft.reads.ask("HSTRLEN", key, output)
            place = (draft.peek(key, f"x:{node}.{visit}") or b"0 ").split(b" ")[0]
            size = int(draft.reads.reply("HSTRLEN", key, output))
            # An output that is not stored is `null`: see `leave_result`.
            draft.grow(self.record.root, -(size or (0 if place == b"0" else len(NOTHING))))
            draft.drop(key, output)
            self.note_error(node, visit, entry)
        for node in forgets:
            draft.grow(self.record.root, -kept.forget(draft, key, node))

    def has_entry(self, visit: VisitKey) -> bool:
        return self.draft.peek(self.key, "x:{}.{}".format(*visit)) is not None

    def copy_results(self, source: DraftedRun, fork: Fork) -> None:
        draft, run_id = self.draft, self.record.run_id
        size = forked.copy_results(draft, source.key, run_id, fork.results)
        size += forked.copy_kept(draft, source.key, run_id, fork.remembers)
        if fork.visit is not None:
            node, number = fork.visit
            task = dump(fork.input)
            # What a node keeps makes its claim look for a task of its own.
            draft.put(self.key, f"k:{node}", draft.peek(self.key, f"k:{node}") or b"1")
            draft.put(self.key, f"t:{node}.{number}", task)
            size += len(task)
        new_run.grow(draft, self.record, size)

    def migrate(self, move: Migration) -> None:
        draft, before, key = self.draft, self.record, self.key
        self.erase(move.undone, move.forgets)
        renamed.rename(draft, before.root, move)
        if move.parent_node:
            draft.put(key, "parent_node", move.parent_node)
            draft.put(key, "path", move.path)
        draft.put(key, "of", f"{move.fingerprint} {before.parent or '-'} {move.graph_id}")
        if move.fingerprint != before.fingerprint:
            draft.left_shapes.append((before.graph_id, before.fingerprint))
            new_run.use_shape(draft, move.fingerprint)
        self.record = replace(
            before,
            parent_node=move.parent_node,
            path=move.path,
            fingerprint=move.fingerprint,
            graph_id=move.graph_id,
        )
        topology = draft.topology(move.graph_id, move.fingerprint)
        if topology is not None:  # its caller has seen that it is there
            self.topology = topology
        # The first event is that of the migration, then come theirs.
        first = len(draft.line(before.run_id).events) + 2
        for nth, moved in enumerate(move.moved, first):
            number = draft.event_number(before.run_id, nth)
            renamed.move_question(draft, before.root, before.run_id, moved, number)

    @property
    def reopened(self) -> str:
        """The nonce of the request that reopened the run, or migrated it."""
        return (self.draft.get(self.key, "again") or b"").decode()

    @reopened.setter
    def reopened(self, nonce: str) -> None:
        self.draft.put(self.key, "again", nonce)

    def winner(self, interrupt_id: str) -> str:
        _, decided = script_values.question_fields(interrupt_id)
        return script_values.winner(self.draft.get(self.key, decided))

    def decide(self, answer: Answer, nonce: str, now: int) -> None:
        question, text = self.question(answer.interrupt_id), script_values.decision(answer)
        if question is not None:
            self.draft.answered.append(question)
            if question.expires_in is not None:
                self.draft.must_be_before(question.asked_at + round(question.expires_in * 1000))
        decided = f"answered {now} {nonce} ".encode() + text
        questions.close(self.draft, self.record, answer.interrupt_id, decided)
        self.draft.grow(self.record.root, len(text))

    def requester(self) -> Mapping[str, Any]:
        stored = self.draft.peek(run_key(self.record.root), "requester")
        return load(stored) if stored else {}

    def standing(self, interrupt_id: str) -> Standing:
        return questions.standing(self.draft.get(self.key, questions.votes_field(interrupt_id)))

    def put_standing(self, interrupt_id: str, standing: Standing) -> None:
        self._replace(questions.votes_field(interrupt_id), dump(standing.dump()))

    def voter(self, interrupt_id: str, principal: str) -> Mapping[str, Any]:
        stored = self.draft.get(self.key, questions.votes_field(interrupt_id, principal))
        return load(stored) if stored else {}

    def put_voter(self, interrupt_id: str, principal: str, part: Mapping[str, JSON]) -> None:
        self._replace(questions.votes_field(interrupt_id, principal), dump(dict(part)))

    def vote(self, interrupt_id: str, number: int) -> Mapping[str, Any]:
        stored = self.draft.get(self.key, questions.votes_field(interrupt_id, str(number)))
        return load(stored) if stored else {}

    def put_vote(self, interrupt_id: str, number: int, vote: Mapping[str, JSON] | None) -> None:
        name = questions.votes_field(interrupt_id, str(number))
        if vote is None:
            self.draft.grow(self.record.root, -len(self.draft.get(self.key, name) or b""))
            self.draft.drop(self.key, name)
            return
        # The standing says which number is free.
        text = dump(dict(vote))
        self.draft.put(self.key, name, text)
        self.draft.grow(self.record.root, len(text))

    def _replace(self, name: str, text: bytes) -> None:
        """Write a field whose bytes count in the run's size."""
        had = len(self.draft.get(self.key, name) or b"")
        self.draft.put(self.key, name, text)
        self.draft.grow(self.record.root, len(text) - had)

    def assign(self, interrupt_id: str, person: str) -> None:
        self.draft.grow(
            self.record.root, questions.assign(self.draft, self.key, interrupt_id, person)
        )

    def note_use(self, question: Interrupt, used: Mapping[str, JSON]) -> None:
        _, decided = script_values.question_fields(question.id)
        head, brace, text = (self.draft.get(self.key, decided) or b"").partition(b"{")
        self._replace(decided, head + dump({**load(brace + text), "used": dict(used)}))

    def note_withdrawal(
        self, interrupt_id: str, attempt: int, withdrawal: Mapping[str, JSON]
    ) -> None:
        text, (_, decided) = dump(withdrawal), script_values.question_fields(interrupt_id)
        self.draft.put(
            self.key, decided, f"withdrawn {self.draft.reads.now} {attempt} ".encode() + text
        )
        self.draft.grow(self.record.root, len(text))

    @property
    def cancelled(self) -> str:
        """The nonce of the request that cancelled the run."""
        return (self.draft.get(self.key, "cancel") or b"").decode()

    @cancelled.setter
    def cancelled(self, nonce: str) -> None:
        self.draft.put(self.key, "cancel", nonce)

    def flush(self) -> None:
        """Write into the draft what transitions have changed."""
        draft, key = self.draft, self.key
        for node, record in self._nodes.items():
            draft.get(key, f"n:{node}")
            draft.put(key, f"n:{node}", self._text(node, record))
        for loop, around in self._loops.items():
            draft.get(key, f"l:{loop}")
            draft.put(key, f"l:{loop}", loop_text(around))
        for node, items in self._maps.items():
            draft.get(key, f"m:{node}")
            if items != self._stored_map(node):
                draft.put(key, f"m:{node}", map_text(items))
        for (scope, node), arrivals in self._arrived.items():
            self._flush_arrivals(scope, node, arrivals)
        written = self._nodes or self._loops or self._maps or self._arrived or self._exact
        if written or self.record != self.before or self.record.run_id in draft.lines:
            self._flush_record()
        retention.follow(draft, self.before, self.record)

    def _flush_arrivals(self, scope: int, node: str, arrivals: Arrivals) -> None:
        """Add arrivals to those that there are, unless more of them would decide something else."""
        old, name = self._stored_arrivals(scope, node), f"a{scope}:{node}"
        if old.stamp != arrivals.stamp:
            old = Arrivals(arrivals.stamp)
        shape, record = self.topology.nodes[node], self._nodes.get(node)
        if record is not None or shape.loops or name in self.draft.drops.get(self.key, {}):
            self.draft.get(self.key, name)
            self.draft.put(self.key, name, dump([arrivals.stamp, arrivals.arrived, arrivals.live]))
            return
        pending = self.node(node).status is Status.PENDING and not self.record.stopping
        below = shape.needs if pending else 0
        more = (arrivals.arrived - old.arrived, arrivals.live - old.live)
        self.draft.arrivals.append(Arrival(self.key, name, arrivals.stamp, *more, below))

    def _flush_record(self) -> None:
        draft, before, after = self.draft, self.before, self.record
        for name, old, new in (
            ("reason", before.reason, after.reason),
            ("lock", before.lock, after.lock),
            ("ends", before.ends, after.ends),
            ("unreported", before.unreported, after.unreported),
        ):
            if old != new:
                draft.get(self.key, name)
                if new:
                    draft.put(self.key, name, new)
                else:
                    draft.drop(self.key, name)
        fill_line(draft.line(after.run_id), before, after)
        if self.key in draft.new:
            draft.line(after.run_id).was = "^$"
        elif self._exact:
            text = draft.peek(self.key, "run") or b""
            draft.line(after.run_id).was = f"^{text.decode().replace('-', '%-')}$"
        elif after.started > before.started and not (after.stopping and not before.stopping):
            draft.line(after.run_id).most = self.topology.limit


def fill_line(line: Line, before: RunRecord, after: RunRecord) -> None:
    """Say what is added to a run's counters, and what must come of it."""
    line.was = f"^{before.status} .* {before.stopping or '%-'}$"
    line.more = (
        after.active - before.active,
        after.waiting - before.waiting,
        after.held - before.held,
        after.failed - before.failed,
        after.started - before.started,
    )
    line.comes_to = _deciding(after)
    line.status, line.stopping = after.status, after.stopping or "-"


def _deciding(run: RunRecord) -> str:
    """Name the counters that decide a run's status, as `status_of` looks at them."""
    letters = ""
    for letter, count in (("a", run.active), ("h", run.held), ("w", run.waiting)):
        if count:
            return letters + letter
        letters += letter.upper()
    if run.stopping == Status.FAILED:
        return letters
    return letters + ("f" if run.failed else "F")
