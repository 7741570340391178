"""The claim of a node, and its settle if nothing unusual follows, with the fewest commands.

The worker knows its node's graph, and its claim has read the node's records. So the claim says which fields
it needs, and the scheduler plans the end from them; the scripts `take` and `apply` validate and write. A
method returns None if that isn't enough: nothing was written, and a transaction decides. This happens for

- claims of nodes with limits, and claims that `take` declines, such as a node of a run that stops;
- settles of nodes that have not completed, that keep state, a session or an effect, or whose conditions have
  read results;
- settles after which no node of the run is active, or that need a record which the claim has not read, such
  as a dead path's record.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner import scheduler
from runner.approvals.ballots import Use
from runner.definition.model import InEdge, Topology, index_of, map_of, shape_name
from runner.errors import StoreError
from runner.limits.fairness import Fairness, Share
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.interrupts import Interrupt
from runner.records.run import EventKind, NodeRecord, Status, next_fence
from runner.scheduler.changes import Changes
from runner.scheduler.plan import PartialView, TransitionPlan, plan_transition
from runner.store import encoding
from runner.store.apply_transition import SHORT
from runner.store.encoding import (
    EVENT_LETTERS,
    NODE,
    NOTHING,
    RUN,
    doorbells_of,
    load,
    question_fields,
)
from runner.store.interface import Claim, Reply, RunSnapshot, Settlement, Token, UnreadableClaim
from runner.store.redis import doorbell_template
from runner.store.redis.connection import Argument, RedisConnection
from runner.store.redis.fast import plan_arguments
from runner.store.redis.fast.plan_arguments import (
    CHANGED_BY,
    ClaimRead,
    KnownGraph,
    PlanWrites,
    Unplanned,
)
from runner.store.redis.keys import TEMPLATE, Keys, run_key
from runner.store.redis.large_values import MARK, LargeValues
from runner.store.redis.sizes import VISIT_BYTES
from runner.store.redis.transaction import run_end
from runner.store.redis.transaction.early_answers import EARLY
from runner.store.redis.transaction.run_view import RunInTransaction
from runner.store.redis.transaction.sets import EITHER, GUARDED, Command, ReadSet, WriteSet
from runner.store.redis.transaction.transaction import HEAD

NO_EXTRAS = (None, None, None, None, None)
"""The extras of most nodes beside fields of their runs: no item, questions, decisions, document or votes."""

GRAPHS, RUNS = 500, 5_000
"""The most graphs and runs that a process remembers."""

TEMPLATES = 10_000
"""The most settle templates that a process remembers of a graph: a node has one for each choice of edges."""

CLAIMED, LEAVING = NODE.reader("attempt stamp rest"), NODE.reader("visit edges")

RUN_FIELDS = tuple(name for name in HEAD if name != "run")
"""Fields of a run that a process reads when it first meets the run. Fields that may change are validated
when they are used."""

SMALL = 1_000
"""The most bytes of an output that a process remembers; each claim reads larger ones."""

COMPLETED = 20_000
"""The most fields of completed nodes that a process remembers."""

RUN_BYTES, RUNS_BYTES = 4_000_000, 16_000_000
"""The most bytes of a run's task and state that a process remembers, and of all; claims read larger ones."""


@dataclass(slots=True)
class KnownRun:
    """A run's graph, which each claim compares; its fields; its task and state, which never change."""

    graph: KnownGraph
    head: Mapping[str, bytes | None]
    values: tuple[bytes, bytes] | None = None


class FastPath:
    """The claims and settles of one store that need only a plan. Thread-safe."""

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        call: Callable[..., list[Any]],
        *,
        topology: Callable[[str, str], Topology | None],
        snapshot: Callable[[str], RunSnapshot | None],
        large: LargeValues,
        lease_ms: int,
    ) -> None:
        """Take `call`, which runs a script, `topology`, which reads a graph's, and `snapshot`, a run's."""
        self._redis = connection
        self._keys = keys
        self._call = call
        self._topology = topology
        self._snapshot = snapshot
        self._large = large
        self._lease_ms = lease_ms
        self._graphs: dict[str, KnownGraph] = {}
        self._runs: dict[str, KnownRun] = {}
        self._runs_bytes = 0
        # The last graph that had a node of this name: right for most runs new to this process.
        self._likely: dict[str, KnownGraph] = {}
        # Fields of completed nodes, by connection, run, its last retry or migration, and name.
        self._completed: dict[tuple[object, str, bytes, str], bytes | None] = {}
        self._chunk = functools.lru_cache(4)(connection.call)
        self._doorbell = doorbell_template.constants({})
        self._read_doorbell_at = 0.0

    # Graphs and runs

    def remember(self, topology: Topology) -> KnownGraph:
        """Remember a graph that this process has read or published."""
        graph = self._graphs.get(topology.fingerprint)
        if graph is None:
            if len(self._graphs) > GRAPHS:
                self._graphs.clear()
                self._likely.clear()
            graph = self._graphs[topology.fingerprint] = KnownGraph(topology)
        for node in topology.nodes:
            # A wrong guess costs less if the node is plain.
            if node not in self._likely or graph.is_plain(node):
                self._likely[node] = graph
        return graph

    def _graph(self, graph_id: str, fingerprint: str) -> KnownGraph | None:
        graph = self._graphs.get(fingerprint)
        if graph is None:
            topology = self._topology(graph_id, fingerprint)
            graph = self.remember(topology) if topology else None
        return graph

    # Claims

    def claim(
        self, run_id: str, node: str, visit: int, attempt: int, nonce: str
    ) -> tuple[Claim | Reply | None, Topology | None]:
        """Claim a ready visit of a node without limits, in a run that goes on; "stale" if it isn't due.

        The claim is None if a transaction must decide, as for a node with limits. The second
        value is the shape of the run's graph, if known.
        """
        run = self._runs.get(run_id)
        graph = run.graph if run else self._likely.get(shape_name(node))
        if graph is not None:
            claim = self._take((run_id, node, visit, attempt, nonce), graph, run)
        else:
            (claim,) = self._read(run_id, ["of"])
        if isinstance(claim, bytes):
            fingerprint, _, graph_id = claim.decode().split(" ", 2)
            graph = self._graph(graph_id, fingerprint)
            claim = self._take((run_id, node, visit, attempt, nonce), graph, None)
        shape = graph.topology if graph else None
        return (None if isinstance(claim, bytes) else claim), shape

    def _take(
        self,
        visit: tuple[str, str, int, int, str],
        graph: KnownGraph | None,
        run: KnownRun | None,
    ) -> Claim | Reply | bytes | None:
        """Claim a visit of a node of this graph; if the run has another graph, return its stored name."""
        run_id, node, number, _, nonce = visit
        if graph is None or not graph.is_plain(node):
            return None
        run_values = run.values if run else None
        fields = (*graph.fields(node), *_unknown(run))
        if len(fields) > plan_arguments.MOST_FIELDS:
            return None
        item = f"{map_of(node)}.{number}.{index_of(node)}" if map_of(node) else ""
        head = (*visit, next_fence(0, nonce), graph.topology.fingerprint, item)
        status, *reply = self._call("take", *head, *fields, verb="claim")
        if status == b"graph":
            of: bytes = reply[0]
            return of
        if status != b"claimed":
            return Reply("stale") if status == b"stale" else None
        text, parent, counters, *field_values = reply
        values: dict[str, bytes | None] = dict(zip(fields, field_values, strict=False))
        claim_read = ClaimRead(
            run_id, graph, parent != b"-", counters + b" 0 -", {f"n:{node}": text}
        )
        return self._claimed(
            node, claim_read, values, run_values, field_values[len(fields) :] or NO_EXTRAS
        )

    def _claimed(
        self,
        node: str,
        claim_read: ClaimRead,
        values: Mapping[str, bytes | None],
        run_values: tuple[bytes, bytes] | None,
        extras: Sequence[Any],
        *,
        rung_by: str = "",
    ) -> Claim:
        """Read a claimed visit from fields of its run; `extras` are data that most nodes lack.

        Raises:
            UnreadableClaim: its stored data are damaged.
        """
        run_id = claim_read.run_id
        graph = claim_read.graph
        item, question_ids, questions, decisions, checkpoint, *by_votes = extras
        votes, entries = by_votes or ((), None)
        document, own_task, messages = checkpoint or (None, None, [])
        record, _ = encoding.node_record(run_id, node, claim_read.texts[f"n:{node}"])
        (report,) = self._read(run_id, [f"h:{record.handed}"]) if record.handed else (None,)
        task, state = run_values or self._remember_run(run_id, node, graph, values)
        visits, outputs = self._inputs(run_id, graph.topology, node, record, values)
        if guards := graph.guards(node):
            claim_read.texts |= {name: values[name] or b"" for name in guards}
        claim_read.asked = (
            encoding.dump([record.visit, *map(bytes.decode, question_ids)])
            if question_ids
            else None
        )
        claim_read.kept = len(document or b""), [len(message) for message in messages]
        ids = [encoding.full_id(run_id, name.decode()) for name in question_ids or ()]
        if by_votes:
            names = [name for question_id in ids for name in question_fields(question_id)]
            texts = itertools.chain(*zip(questions, decisions, strict=True))
            claim_read.decided = dict(zip(names, texts, strict=True)) | {"audit": entries}
        claim_read.final = _final(graph.topology, node, values)
        if CHANGED_BY in values:
            claim_read.changed_by = values[CHANGED_BY] or b""
        token = Token(run_id, node, record.visit, record.fence, claim_read)
        try:
            value_texts = [
                item or own_task or (self._listed(token) if "[" in node else task),
                state,
                report,
                *outputs,
            ]
            task_value, state_value, report_value, *inputs = self._large.load(value_texts)
            return Claim(
                token=token,
                graph_id=graph.topology.graph_id,
                fingerprint=graph.topology.fingerprint,
                signature=graph.topology.nodes[shape_name(node)].signature,
                record=record,
                task=task_value,
                invocation_state=codec.read(state_value),
                inputs=[(*visit, value) for visit, value in zip(visits, inputs, strict=True)],
                answers=encoding.decided(ids, questions, decisions) if ids else [],
                document=load(document) if document else None,
                messages=[load(message) for message in messages],
                child=self._snapshot(record.child) if record.child else None,
                map=encoding.map_of_visit(values.get(f"m:{node}"), record.visit),
                report=codec.read(report_value),
                votes={
                    question_id: [encoding.document(vote) for vote in cast if vote]
                    for question_id, cast in zip(ids, votes, strict=False)
                    if cast
                },
                rung_by=rung_by,
            )
        except codec.READ_ERRORS as error:
            raise UnreadableClaim(token, graph.topology.graph_id, error) from error

    def needed(self, run_id: str, node: str) -> Sequence[str]:
        """Name the fields of a run that a claim of a node will need, as far as its graph can be guessed."""
        run = self._runs.get(run_id)
        graph = run.graph if run else self._likely.get(shape_name(node))
        is_known = graph is not None and shape_name(node) in graph.topology.nodes
        return (*graph.fields(node), *_unknown(run)) if graph is not None and is_known else ()

    def limits(self, run_id: str, node: str) -> list[str]:
        """Name the limits of a node, as far as its graph can be guessed."""
        run = self._runs.get(run_id)
        graph = run.graph if run else self._likely.get(shape_name(node))
        shape = graph.topology.nodes.get(shape_name(node)) if graph else None
        return [limit.name for limit in shape.limits] if shape else []

    def claim_from(self, run: RunInTransaction, node: str) -> Callable[[], Claim]:
        """Read the data for a node that a transaction claims; return a function that makes the claim."""
        graph = self.remember(run.topology)
        write_set = run.write_set
        key = run.key
        fields = (*graph.fields(node), *_unknown(None))
        write_set.read_set.want(key, fields)
        # A source that completes meanwhile is an input of this visit, or not.
        values = {name: write_set.read_unvalidated(key, name, EITHER) for name in fields}
        claim_read = ClaimRead(
            run.record.run_id,
            graph,
            bool(run.record.parent),
            b"",
            {f"n:{node}": run.text(node)},
        )
        extras = _read_extras(run, node, run.node(node).visit)

        def claim() -> Claim:
            new_claim = self._claimed(node, claim_read, values, None, extras)
            return replace(new_claim, token=replace(new_claim.token, seen=None))

        return claim

    def _remember_run(
        self, run_id: str, node: str, graph: KnownGraph, values: Mapping[str, bytes | None]
    ) -> tuple[bytes, bytes]:
        """Remember a run of which this process has not claimed a node before."""
        task = values["task"] or b"null"
        state = values["state"] or b"{}"
        known_run = self._runs.get(run_id)
        head = known_run.head if known_run else {name: values[name] for name in RUN_FIELDS}
        size = len(task) + len(state) if len(task) + len(state) <= RUN_BYTES else 0
        if len(self._runs) > RUNS or self._runs_bytes + size > RUNS_BYTES:
            self._runs.clear()
            self._runs_bytes = 0
        self._runs_bytes += size
        self._likely[shape_name(node)] = graph
        self._runs[run_id] = KnownRun(graph, head, (task, state) if size else None)
        return task, state

    def _inputs(
        self,
        run_id: str,
        topology: Topology,
        node: str,
        record: NodeRecord,
        values: Mapping[str, bytes | None],
    ) -> tuple[list[tuple[str, int]], list[bytes]]:
        """Find the visits that reach a visit, in edge order, and their outputs; later ones are read apart."""
        if topology.loops or record.via:
            nodes = {
                name[2:]: encoding.node_record(run_id, name[2:], text)[0]
                for name, text in values.items()
                if name.startswith("n:")
            }
            loops = {
                int(name[2:]): encoding.loop_record(text or b"{}")
                for name, text in values.items()
                if name.startswith("l:")
            }
            changes = Changes(PartialView({**nodes, node: record}, loops), topology, 0, 0)
            visits = scheduler.live_inputs(changes, node)
        else:
            visits = list(_forward_inputs(topology.incoming[shape_name(node)], values))
        names = [f"o:{source}.{visit}" for source, visit in visits]
        if later := [*set(names).difference(values)]:
            values = {**values, **dict(zip(later, self._read(run_id, later), strict=True))}
        return visits, [values[name] or b"null" for name in names]

    def _read(self, run_id: str, fields: Sequence[str]) -> Sequence[bytes | None]:
        values: list[bytes | None] = self._redis.call("HMGET", self._keys.run(run_id), *fields)
        return values

    def _listed(self, token: Token) -> bytes:
        """Return an item of a long list."""
        name, place = encoding.chunk_of(token.node, token.visit)
        text: bytes = self._chunk("HGET", self._keys.run(token.run_id, ":f"), name)
        return text.split(b"\n")[place]

    # Settles

    def settle(
        self, token: Token, settlement: Settlement, nonce: str, entry: bytes, output: bytes
    ) -> Reply | None:
        """Complete a visit of a node that keeps nothing, and whose edges don't depend on results."""
        if settlement.may_continue and not self._read_doorbell_at:
            self._read_doorbell()
        claim_read = token.seen
        unusual = (
            settlement.saved or settlement.session or settlement.reads or settlement.insist
        )
        if not isinstance(claim_read, ClaimRead) or unusual or settlement.effects:
            return None
        try:
            arguments, text = self._settle(
                token, claim_read, settlement, nonce, (output, entry)
            )
        except Unplanned:
            return None
        connect_mark = self._redis.connect_mark
        reply = self._call("apply", *arguments, verb="settle", constants=self._doorbell)
        written = {f"n:{token.node}": text, f"o:{token.node}.{token.visit}": output}
        if reply[0] != b"other" and token.node in claim_read.graph.before_joins:
            self._remember_completed(connect_mark, claim_read, written)
        if reply[0] in {b"follows", b"fetched"}:
            return Reply("settled", claim=self._following(claim_read, reply[1:], written))
        if reply[0] == b"outdated":
            self._read_doorbell()
        return None if reply[0] == b"other" else Reply("settled", doorbells_of(reply))

    def _remember_completed(
        self, connect_mark: object, claim_read: ClaimRead, written: Mapping[str, bytes | None]
    ) -> None:
        """Remember the outputs of joins' sources: only a retry or a migration of the run changes them."""
        if claim_read.changed_by is None:
            return
        if len(self._completed) > COMPLETED:
            self._completed = {}
        run = connect_mark, claim_read.run_id, claim_read.changed_by
        for name, value in (*claim_read.final.items(), *written.items()):
            if len(value or b"") <= SMALL:
                self._completed[*run, name] = value

    def _read_doorbell(self) -> None:
        """Read the template of doorbells again, at most once a second."""
        if time.monotonic() >= self._read_doorbell_at:
            self._read_doorbell_at = time.monotonic() + 1
            self._doorbell = doorbell_template.constants(self._redis.texts(self._keys.doorbell))

    def _following(
        self, settled_read: ClaimRead, reply: Sequence[Any], written: Mapping[str, bytes | None]
    ) -> Claim | None:
        """Read the visit that a settle has claimed, and the data it needs beside the settle's writes."""
        name, text, active, *task_and_item = reply
        run_id = settled_read.run_id
        graph = settled_read.graph
        node = name.decode()
        run = self._runs.get(run_id)
        run_values = run.values if run else None
        # For an item, the script has checked its map, which a claim needs for nothing else.
        needed = graph.guards(node) if map_of(node) else graph.fields(node)
        fields = (*needed, *_unknown(run))
        values = {**settled_read.final, **written}
        if settled_read.changed_by is not None:
            values[CHANGED_BY] = settled_read.changed_by
            completed = self._completed
            of_run = self._redis.connect_mark, run_id, settled_read.changed_by
            keys = {name: (*of_run, name) for name in fields}
            values |= {name: completed[key] for name, key in keys.items() if key in completed}
        missing = [name for name in fields if name not in values]
        try:
            if missing:
                values |= zip(missing, self._read(run_id, missing), strict=True)
        except StoreError:
            return None  # the settle is done, and the claim's lease runs out
        line = RUN.replace(settled_read.line, "active", str(active))
        claim_read = ClaimRead(run_id, graph, settled_read.is_child, line, {f"n:{node}": text})
        task, item = (
            (task_and_item[0].decode(), task_and_item[1]) if task_and_item else ("", None)
        )
        extras = (item, None, None, None, None)
        try:
            return self._claimed(node, claim_read, values, run_values, extras, rung_by=task)
        except (StoreError, UnreadableClaim):
            return (
                None  # the claim's lease runs out; an unreadable node is held at its next claim
            )

    def repeat_claim(self, token: Token, nonce: str) -> Claim | None:
        """Return the claim that a settle with this nonce has made, if any."""
        if not isinstance(token.seen, ClaimRead):
            return None
        topology = token.seen.graph.topology
        targets = dict.fromkeys(
            edge.target for edge in topology.outgoing[shape_name(token.node)]
        )
        names = [node for node in targets if scheduler.may_follow(topology, token.node, node)]
        texts = self._read(token.run_id, [f"n:{node}" for node in names]) if names else []
        for node, text in zip(names, texts, strict=True):
            record = encoding.node_record(token.run_id, node, text)[0]
            if (record.status, record.nonce) == (Status.RUNNING, nonce):
                claim, _ = self.claim(token.run_id, node, record.visit, record.attempt, nonce)
                return claim if isinstance(claim, Claim) else None
        return None

    # The reads of requests that the fast path doesn't do

    def speculate(
        self, token: Token, questions: Sequence[Interrupt] = (), *, has_archive: bool = False
    ) -> ReadSet | None:
        """Presume the reads of a request that ends or parks its run's only active node; None if unknown.

        It presumes the claim's reads, that `questions` are new, and that the run has no children.
        """
        claim_read = token.seen
        run = self._runs.get(token.run_id)
        if (
            not isinstance(claim_read, ClaimRead)
            or run is None
            or claim_read.kept is None
            or not claim_read.is_alone
        ):
            return None
        if claim_read.is_child or run.graph is not claim_read.graph:
            return None
        key, node, (document, messages) = run_key(token.run_id), token.node, claim_read.kept
        question_names = [
            field for question in questions for field in question_fields(question.id)
        ]
        fields = {
            key: {
                **run.head,
                **{name: text or None for name, text in claim_read.texts.items()},
                **dict.fromkeys(
                    [*question_names, *(f"w:{question.id}" for question in questions)]
                ),
                "run": claim_read.line,
                f"q:{node}": claim_read.asked,
                **claim_read.decided,
            },
            f"{key}:m": {f"#{node}": b"%d" % len(messages) if messages else None},
            EARLY: dict.fromkeys(f"?{question.id}" for question in questions),
        }
        lengths: dict[Command, int] = {
            ("HSTRLEN", f"{key}:m", f"{nth}.{node}"): size
            for nth, size in enumerate(messages, 1)
        }
        replies = run_end.speculation(token.run_id, has_archive=has_archive)
        reads = ReadSet()
        reads.speculate(
            fields,
            {
                ("HSTRLEN", key, f"k:{node}"): document,
                ("EXISTS", TEMPLATE): 1,
                **lengths,
                **replies,
            },
        )
        reads.has_entries = bool(claim_read.decided)
        return reads

    def knows(self, token: Token, uses: Sequence[Use]) -> bool:
        """Return whether the claim has read the decisions that a visit uses, or it uses none."""
        decided = token.seen.decided if isinstance(token.seen, ClaimRead) else {}
        return all(question_fields(use.interrupt_id)[1] in decided for use in uses)

    def note_use(self, token: Token, saved: Saved, written: WriteSet) -> None:
        """Update the claim's reads with the values that the use of a decision has written."""
        claim_read = token.seen
        if not isinstance(claim_read, ClaimRead):
            return
        fields = written.fields.get(run_key(token.run_id), {})
        document = fields.get(f"k:{token.node}")
        had = claim_read.kept
        claim_read.kept = None
        if (
            had
            and isinstance(document, bytes)
            and saved.keep == len(had[1])
            and not saved.messages
        ):
            claim_read.kept = len(document), had[1]
        for name in claim_read.decided.keys() & fields.keys():
            text = _bytes(fields[name] or b"")
            if text[:1] == b"\1":
                text = text[1:].replace(b"\x010:0\x01", b"%d" % written.committed_at)
            claim_read.decided[name] = text

    def _settle(
        self,
        token: Token,
        claim_read: ClaimRead,
        settlement: Settlement,
        nonce: str,
        result: tuple[bytes, bytes],
    ) -> tuple[list[Argument], bytes]:
        """Plan a settle; return its arguments, and the node's new record.

        Most settles share a remembered template; then only the node's record differs.
        """
        (output, entry), node, visit = result, token.node, token.visit
        short = output if len(output) <= SHORT and not output.startswith(MARK) else b""
        attempt, stamp, extra = CLAIMED(claim_read.texts[f"n:{node}"])
        is_item = bool(map_of(node))
        is_plain = stamp == "0" and not extra
        # An item has no place in the order of results.
        fields: list[Argument] = [f"o:{node}.{visit}", output]
        results: list[Argument] = [f"x:{node}.{visit}", entry]
        name = (
            f"{shape_name(node)} {visit}" if is_item else node,
            settlement.edges,
            claim_read.is_child,
        )
        if is_item:
            fields, results = [*fields, results[0], b"0 " + entry], []
        elif output == NOTHING:
            # An entry with a place in the order but no output stands for this one.
            fields = []
            name = (node, settlement.edges + "-", claim_read.is_child)
        template = claim_read.graph.templates.get(name) if is_plain else None
        if template is not None:
            guards = [f"n:{node}"]
            edges = settlement.edges or "-"
            text = NODE.text(
                status="completed",
                visit=visit,
                attempt=attempt,
                fence=token.fence,
                stamp=0,
                edges=edges,
                nonce=nonce,
                rest="",
            )
            event: list[Argument] = [
                EVENT_LETTERS[EventKind.NODE_COMPLETED],
                visit,
                node,
                "",
                short,
            ]
            timer = f"node|{token.run_id}|{node}"
            writes = PlanWrites(
                [f"n:{node}", text, *fields], results, dropped=[timer], events=event
            )
        else:
            settle_plan = self._plan(token, claim_read, settlement, nonce)
            writes = plan_arguments.writes(
                settle_plan, claim_read, {EventKind.NODE_COMPLETED: short}
            )
            writes.fields += fields
            writes.results += results
            guards = plan_arguments.guard_fields(settle_plan)
            template = plan_arguments.make_template(settle_plan, claim_read, writes, node)
            if is_plain and len(guards) == 1 and len(claim_read.graph.templates) < TEMPLATES:
                claim_read.graph.templates[name] = template
        if claim_read.is_alone and not template.goes_on:
            raise Unplanned(token)  # the run ends, or waits
        grows = VISIT_BYTES + len(output) + len(entry)
        fairness = claim_read.graph.topology.fairness
        task_id = f"{token.run_id}.{node}.{visit}.{attempt}"
        claims = (
            f"{next_fence(0, nonce)} {nonce} {claim_read.graph.next_from(node)}"
            if settlement.may_continue
            else ""
        )
        arguments = plan_arguments.arguments(
            claim_read,
            guards,
            writes,
            template,
            task_id=task_id,
            grows=grows,
            claims=claims,
            share=self._share(token, claim_read, fairness) if fairness else None,
        )
        return arguments, _bytes(writes.fields[writes.fields.index(f"n:{node}") + 1])

    def _share(self, token: Token, claim_read: ClaimRead, fairness: Fairness) -> Share:
        """Return the share of a run's doorbells; a run inside another has its root's tags."""
        run = self._runs.get(token.run_id)
        if run is None or claim_read.is_child:
            raise Unplanned(token)
        return fairness.share(load(run.head["tags"] or b"{}").get(fairness.tag, ""))

    def _plan(
        self, token: Token, claim_read: ClaimRead, settlement: Settlement, nonce: str
    ) -> TransitionPlan:
        settle = functools.partial(
            scheduler.settle,
            node=token.node,
            visit=token.visit,
            fence=token.fence,
            nonce=nonce,
            status=settlement.status,
            edges=settlement.edges,
        )
        settle_plan = plan_transition(
            claim_read.known(), claim_read.graph.unshared, self._lease_ms, settle
        )
        if settle_plan is None:
            raise Unplanned(token)
        return settle_plan


def _unknown(run: KnownRun | None) -> Sequence[str]:
    """Name the fields of a run that a claim reads beside its node's fields."""
    values = () if run and run.values else ("task", "state")
    return values if run else (*values, *RUN_FIELDS)


def _final(
    topology: Topology, node: str, values: Mapping[str, bytes | None]
) -> Mapping[str, bytes | None]:
    """Choose the read fields of a node's completed sources, which without loops don't change."""
    final: dict[str, bytes | None] = {}
    for edge in () if topology.loops else topology.incoming[shape_name(node)]:
        text = values.get(f"n:{edge.source}")
        if text is not None and text.startswith(b"completed 1 "):
            final |= {
                f"n:{edge.source}": text,
                f"o:{edge.source}.1": values[f"o:{edge.source}.1"],
            }
    return final


def _read_extras(run: RunInTransaction, node: str, visit: int) -> Sequence[Any]:
    """Read the data that most nodes lack: see `NO_EXTRAS`."""
    write_set = run.write_set
    key = run.key
    item = run.item(node, visit)
    question_visit, *ids = load(write_set.read(key, f"q:{node}") or b"[0]")
    # A question of a ready node may still be answered: then everything is read again.
    pairs = (
        [question_fields(question_id) for question_id in ids] if question_visit == visit else []
    )
    write_set.read_set.want(key, itertools.chain(*pairs))
    questions = [write_set.read_unvalidated(key, question, EITHER) for question, _ in pairs]
    decisions = [write_set.read(key, decision) for _, decision in pairs]
    document = write_set.read_unvalidated(key, f"k:{node}", GUARDED)
    if document is None:
        return (
            item,
            [question_id.encode() for question_id in ids] if pairs else None,
            questions,
            decisions,
            None,
        )
    count = int(write_set.read_unvalidated(f"{key}:m", f"#{node}", GUARDED) or 0)
    messages = [
        write_set.read_unvalidated(f"{key}:m", f"{number}.{node}", GUARDED)
        for number in range(1, count + 1)
    ]
    own_task = write_set.read_unvalidated(key, f"t:{node}.{visit}", GUARDED)
    checkpoint = (None if document == b"1" else document, own_task, messages)
    return (
        item,
        [question_id.encode() for question_id in ids] if pairs else None,
        questions,
        decisions,
        checkpoint,
    )


def _bytes(text: Argument) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def _forward_inputs(
    incoming: Sequence[InEdge], values: Mapping[str, bytes | None]
) -> Iterator[tuple[str, int]]:
    """Return `scheduler.live_inputs` for a graph without loops, without reading whole records."""
    sources: dict[str, None] = {}
    for edge in incoming:
        text = values[f"n:{edge.source}"]
        if text is not None and edge.source not in sources:
            visit, edges = LEAVING(text)
            if edges[edge.position : edge.position + 1] == "1":
                sources[edge.source] = None
                yield edge.source, int(visit)
