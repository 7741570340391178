"""Encoding and decoding of values in Redis: shapes, records, questions and events, as JSON texts.

Python writes users' data once, and no script opens it.
"""

from __future__ import annotations

import hashlib
import operator
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from functools import lru_cache
from typing import Any, cast

import pydantic_core

from runner.approvals.ballots import Standing
from runner.definition.model import (
    AFTER_GRAPH,
    ROOT,
    EdgeKind,
    FailurePolicy,
    InEdge,
    Join,
    LoopTopology,
    MapTopology,
    NodeTopology,
    OutEdge,
    Topology,
    index_of,
    map_of,
)
from runner.errors import CorruptDocument, DamagedRun
from runner.limits.concurrency import Admission
from runner.limits.fairness import Fairness, Share
from runner.limits.limit import LimitShape
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONObject, LazyValue
from runner.records.interrupts import SEPARATOR, Decision, Interrupt, InterruptStatus
from runner.records.listings import RunSummary
from runner.records.run import (
    EventKind,
    LoopRecord,
    MapRecord,
    NodeRecord,
    RunRecord,
    Status,
    VisitEntry,
    VisitKey,
)
from runner.store.interface import Doorbell, Event, Reply, ReplyWord

dump = codec.dump_json

load = pydantic_core.from_json

NOTHING = b"null"
"""An output that isn't stored: the place in its entry already shows that the visit completed."""

V = 1
"""The version of the stored form; a run in another form is refused, not guessed at."""


class RecordForm:
    """The form of a record's text: the only place that knows the order of its fields.

    Blanks stand between fields; an empty one is "-", and only the last may have blanks. In a script,
    `'@node(status visit+attempt rest)'` stands for the pattern of a form in FORMS: see `pattern`.
    """

    def __init__(self, spec: str) -> None:
        """Take the fields in order, each with the Lua pattern of its values: `visit:%d+ nonce:%S+`."""
        self.patterns = dict(field.split(":") for field in spec.split())
        self._names, self._splits = list(self.patterns), len(self.patterns) - 1
        self.text = " ".join(f"{{{name}}}" for name in self._names).format
        """Writes a record, given all its fields by name."""

    def reader(self, names: str) -> Callable[[bytes], Any]:
        """Return a function that reads one field of a text, or a tuple of several.

        It raises IndexError if the text has fewer fields.
        """
        pick = operator.itemgetter(*map(self._names.index, names.split()))
        splits = self._splits
        return lambda text: pick(text.decode().split(" ", splits))

    def replace(self, text: bytes, name: str, value: str) -> bytes:
        """Return a text with another value of one field."""
        values = text.decode().split(" ", self._splits)
        values[self._names.index(name)] = value
        return " ".join(values).encode()

    def pattern(self, items: str) -> str:
        """Return a Lua pattern for fields, in order.

        `visit` captures a field, `visit+stamp` all from one to another as one text; `edges=-` only
        requires a value.

        Raises:
            KeyError: the form has no such field.
        """
        texts = dict(self.patterns)
        end = ""
        for item in items.split():
            name, is_literal, value = item.partition("=")
            start, _, end = name.rpartition("+")
            if is_literal:
                texts[end] = re.sub(r"\W", r"%\g<0>", value)
            else:
                texts[start or end] = "(" + texts[start or end]
                texts[end] += ")"
        count = self._names.index(end) + 1
        return f"^{' '.join([*texts.values()][:count])}{' ' if count <= self._splits else '$'}"


NODE = RecordForm(
    "status:%a+ visit:%d+ attempt:%d+ fence:%d+ stamp:%d+ edges:%S+ nonce:%S+ rest:.*"
)
"""A node. `rest` is an object, or nothing: most nodes need no more, which reads fastest. It is a list if it
has only open questions; a question of the node's latest visit is written without run, node and visit."""

RUN = RecordForm(
    "status:%S+ active:%d+ waiting:%d+ held:%d+ failed:%d+ started:%d+ events:%d+ stopping:%S+"
)
"""A run's status and counters: its field `run`."""

MAP = RecordForm(
    "visit:%d+ total:%d+ next:%d+ active:%d+ waiting:%d+ failed:%d+ stopped:%d+ swept:%d+"
)
"""A map's items."""

OF = RecordForm("fingerprint:%S+ parent:%S+ graph:.*")
"""A run's field `of`: its graph, and its parent, see OUTERMOST."""

FORMS = {"node": NODE, "run": RUN, "map": MAP, "of": OF}

OUTERMOST = "-", "="
"""The parent in an outermost run's field `of`: the second once it is packed."""

read_of, read_parent = OF.reader("fingerprint parent graph"), OF.reader("parent")

read_status, read_last_event = RUN.reader("status"), RUN.reader("events")

_read_run = RUN.reader("status stopping active waiting held failed started")

_read_node = NODE.reader("status visit attempt fence stamp edges nonce rest")

STATUSES = {status.value: status for status in Status}
"""The statuses by their texts. Calling the class takes two more calls of Python functions."""

_read_map = MAP.reader("visit total next active waiting failed stopped swept")


EVENT_LETTERS: dict[str, str] = {
    EventKind.RUN_STARTED: "b",
    EventKind.RUN_STATUS: "r",
    EventKind.RUN_ENDED: "e",
    EventKind.NODE_STARTED: "s",
    EventKind.NODE_COMPLETED: "c",
    EventKind.NODE_SKIPPED: "k",
    EventKind.NODE_WAITING: "w",
    EventKind.NODE_RESUMED: "g",
    EventKind.INTERRUPT_ASKED: "q",
    EventKind.INTERRUPT_ANSWERED: "a",
}
"""Short forms of the event kinds that most runs have."""

OF_INTERRUPTS = "interrupt."
"""Prefix of the event kinds whose detail is a question's id."""

EVENTS = {letter: str(kind) for kind, letter in EVENT_LETTERS.items()}

LARGE = 65_536
"""The most bytes of a value stored in place; larger ones are stored apart, see redis/large_values.py."""

CHUNK = 500
"""Items of a map that one field has if its list is longer than that."""

WRITTEN = 1_000_000
"""Bytes of a map's items written in one request, so that a long list doesn't block other clients."""


def chunk_of(node: str, visit: int) -> tuple[str, int]:
    """Return the field that has an item of a long list with others, and the item's place among them."""
    number, place = divmod(index_of(node) or 0, CHUNK)
    return f"{map_of(node)}.{visit}.#{number}", place


def shape_fields(topology: Topology) -> Iterator[tuple[str, bytes]]:
    """Write a graph's shape as the fields of a hash; a field's size depends on its node alone."""
    meta = {
        "v": V,
        "limit": topology.limit,
        "timeout": topology.timeout_ms,
        "policy": topology.policy,
        "entries": topology.entries,
        "after": AFTER_GRAPH in topology.nodes,
    }
    if topology.admission is not None:
        meta["starts"] = astuple(topology.admission)
    if topology.fairness:
        meta["fairness"] = [topology.fairness.by, topology.fairness.weights]
    yield "meta", dump(meta)
    for name in topology.nodes:
        yield from _node_fields(topology, name)
    for number, loop in enumerate(topology.loops):
        around = {"inner": loop.inner, "outer": loop.outer, "exits": loop.exits}
        yield f"l:{number}", dump({"header": loop.header, "size": loop.size, **around})


def _node_fields(topology: Topology, name: str) -> Iterator[tuple[str, bytes]]:
    node = topology.nodes[name]
    leaving = topology.outgoing[name]
    coming = topology.incoming[name]
    shape = {
        "needs": node.needs,
        "join": node.join,
        "loops": node.loops,
        "queue": node.queue,
        "priority": node.priority,
        "each": node.each,
        "signature": node.signature,
        "kind": node.kind,
    }
    if node.map is not None:
        shape["map"] = [node.map.window, node.map.stops]
    if node.limits:
        shape["limits"] = [
            [limit.start, limit.by, limit.concurrency, limit.interval] for limit in node.limits
        ]
    if node.version:
        shape["version"] = node.version
    yield f"n:{name}", dump(shape)
    if leaving:
        yield f"o:{name}", dump([_out(edge) for edge in leaving])
    if coming:
        yield (
            f"i:{name}",
            dump([[edge.source, edge.position, edge.kind, edge.loop] for edge in coming]),
        )


def _out(edge: OutEdge) -> list[JSON]:
    on_expire = [True] if edge.on_expire else []
    return [edge.target, edge.kind, edge.scope, edge.loop, *on_expire]


RECORD = (
    "v",
    "run",
    "of",
    "reason",
    "lock",
    "parent_node",
    "root",
    "path",
    "on_end",
    "ends",
    "unreported",
    "trace",
)
"""The fields of a run's hash that make up its record."""


def run_record(run_id: str, fields: Mapping[bytes, bytes]) -> RunRecord:
    """Read a run's record from its fields.

    Raises:
        DamagedRun: they can't be read. CorruptDocument: another version of this library wrote them.
    """
    if fields.get(b"v", b"").split(b" ")[0] != b"%d" % V:
        raise CorruptDocument(
            f"run {run_id} is stored in a form that this version can't read; it was left untouched. "
            "Read it with the version that wrote it."
        )
    try:
        fingerprint, parent, graph = read_of(fields[b"of"])
        status, stopping, *counts = _read_run(fields[b"run"])
        active, waiting, held_count, failures, start_count = map(int, counts)
        return RunRecord(
            run_id=run_id,
            graph_id=graph,
            fingerprint=fingerprint,
            status=Status(status),
            active=active,
            waiting=waiting,
            held=held_count,
            failed=failures,
            started=start_count,
            stopping="" if stopping == "-" else stopping,
            reason=fields.get(b"reason", b"").decode(),
            lock=fields.get(b"lock", b"").decode(),
            parent="" if parent in OUTERMOST else parent,
            parent_node=fields.get(b"parent_node", b"").decode(),
            root=fields.get(b"root", run_id.encode()).decode(),
            path=fields.get(b"path", b"").decode(),
            on_end=fields.get(b"on_end", b"").decode(),
            ends=int(fields.get(b"ends", 0)),
            unreported=int(fields.get(b"unreported", 0)),
            trace=fields.get(b"trace", b"").decode(),
        )
    except (LookupError, ValueError) as error:
        raise DamagedRun(
            f"run {run_id} is damaged in the store ({error}); it was left unchanged."
        ) from error


def is_packed(of: bytes) -> bool:
    """Return whether a run is packed, by its field `of`."""
    return bool(read_parent(of) == OUTERMOST[1])


SUMMARY = ("of", "run", "v", "tags", "ended", "requester")
"""The fields of a run's hash that make up its line in a listing."""


def summary(run_id: str, fields: Sequence[Any]) -> RunSummary:
    """Read a run's line in a listing."""
    of, run, version, tags, ended_at, requester = fields
    fingerprint, parent, graph = read_of(of)
    return RunSummary(
        run_id,
        graph,
        Status(read_status(run)),
        int(version.split(b" ")[1]),
        load(tags or b"{}"),
        fingerprint,
        "" if parent in OUTERMOST else parent,
        ended_at=int(ended_at or 0),
        requester=load(requester or b"{}").get("principal", ""),
    )


def short_id(interrupt_id: str) -> str:
    """Return a question's id without its run's id, as that run's data stores it."""
    return SEPARATOR + interrupt_id.partition(SEPARATOR)[2]


def full_id(run_id: str, interrupt_id: str) -> str:
    """Return a question's full id, given with or without its run's id; see `short_id`."""
    return run_id + interrupt_id if interrupt_id.startswith(SEPARATOR) else interrupt_id


def node_record(run_id: str, node: str, data: bytes | None) -> tuple[NodeRecord, int]:
    """Read a node's record, and its scope: the loop whose rounds it counts in; see `node_text`."""
    if not data:
        return NodeRecord(), ROOT
    status, visit, attempt, fence, stamp, edges, nonce, json_fields = _read_node(data)
    fields = load(json_fields) if json_fields else {}
    if isinstance(fields, list):
        fields = {"questions": fields}
    scope = fields.pop("scope", -1)
    if "via" in fields:
        fields["via"] = tuple((name, number) for name, number in fields["via"])
    if "questions" in fields:
        asked_by = f"{SEPARATOR}{node}{SEPARATOR}{visit}{SEPARATOR}"
        names = (name if SEPARATOR in name else asked_by + name for name in fields["questions"])
        fields["questions"] = tuple(full_id(run_id, name) for name in names)
    return NodeRecord(
        status=STATUSES[status],
        visit=int(visit),
        attempt=int(attempt),
        fence=int(fence),
        stamp=int(stamp),
        edges="" if edges == "-" else edges,
        nonce="" if nonce == "-" else nonce,
        **fields,
    ), scope


def loop_record(data: bytes) -> LoopRecord:
    fields = load(data)
    fields |= {
        name: tuple(map(tuple, fields[name])) for name in ("asked", "taken") if name in fields
    }
    return LoopRecord(**fields)


def map_record(data: bytes) -> MapRecord:
    """Read the record of a map's items."""
    visit, total, begun, active, waiting, failures, is_stopped, swept = map(
        int, _read_map(data)
    )
    return MapRecord(visit, total, begun, active, waiting, failures, bool(is_stopped), swept)


def map_of_visit(data: bytes | None, visit: int) -> MapRecord | None:
    """Read the record of a map's items; None if this visit has none yet."""
    record = map_record(data) if data else None
    return record if record and record.visit == visit else None


FUNCTION_ENTRY = b'{"v":1,"kind":"function",'
"""The beginning of most entries. It isn't stored: an entry without a leading brace begins with it."""


def load_entry(text: bytes) -> VisitEntry:
    entry: VisitEntry = load(text if text.startswith(b"{") else FUNCTION_ENTRY + text)
    return entry


def loop_text(record: LoopRecord) -> bytes:
    return dump({name: value for name, value in asdict(record).items() if value})


def map_text(record: MapRecord) -> str:
    return MAP.text(**{name: int(count) for name, count in asdict(record).items()})


REST = {
    field.name: field.default
    for field in fields(NodeRecord)
    if field.name not in {"status", "visit", "attempt", "fence", "stamp", "edges", "nonce"}
}
"""Defaults of the fields that follow as an object in a node's text."""

rest_of = operator.attrgetter(*REST)


def node_text(node: str, record: NodeRecord, scope: int) -> str:
    """Write a node's record; `scope` is the innermost loop around the node."""
    pairs = zip(REST.items(), rest_of(record), strict=True)
    extra = {name: value for (name, default), value in pairs if value != default}
    if scope != ROOT:
        extra["scope"] = scope
    if record.questions:
        asked_by = f"{SEPARATOR}{node}{SEPARATOR}{record.visit}{SEPARATOR}"
        extra["questions"] = [
            short_id(name).removeprefix(asked_by) for name in record.questions
        ]
    fields = extra["questions"] if list(extra) == ["questions"] else extra
    return NODE.text(
        status=record.status,
        visit=record.visit,
        attempt=record.attempt,
        fence=record.fence,
        stamp=record.stamp,
        edges=record.edges or "-",
        nonce=record.nonce or "-",
        rest=dump(fields).decode() if extra else "",
    )


def digest(data: bytes) -> str:
    """Name a large value by a digest of its bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def saved_arguments(checkpoint: Saved | None) -> list[bytes | str | int]:
    if checkpoint is None:
        return []
    return [
        dump(checkpoint.document),
        checkpoint.keep,
        *(dump(message) for message in checkpoint.messages),
    ]


def event_data(kind: str, data: JSON) -> bytes:
    """Write an event's data; a receipt's data omits the fields that its question's id implies."""
    if kind == EventKind.RECEIPT and isinstance(data, dict):
        implied = _implied(data)
        if implied.items() <= data.items():
            data = {name: value for name, value in data.items() if name not in implied}
    return dump(data)


def _implied(receipt: JSONObject) -> JSONObject:
    """Return the fields that a receipt's question implies: its run, and an empty detail."""
    return {"run_id": str(receipt.get("interrupt_id")).partition(SEPARATOR)[0], "detail": ""}


def event(run_id: str, number: int, text: bytes) -> Event:
    """Read an event of a run; see lua/parts/echo.lua."""
    kind, at, visit, node, data, detail = text.decode().split("\n", 5)
    kind = EVENTS.get(kind, kind)
    values = load(data) if data else None
    if kind.startswith(OF_INTERRUPTS):
        detail = full_id(run_id, detail)
    if kind == EventKind.RECEIPT and isinstance(values, dict) and "run_id" not in values:
        values = {**values, **_implied(values)}
    return Event(str(number), kind, int(at), node, int(visit), detail, values)


def load_lazy(value: bytes | LazyValue) -> JSON | LazyValue:
    return load(value) if isinstance(value, bytes) else value


def results(
    fields: Mapping[bytes, Any],
) -> tuple[dict[VisitKey, JSON], dict[VisitKey, VisitEntry], tuple[str, ...]]:
    """Read the results of visits: outputs (large ones lazy), entries, and completed nodes in order."""
    outputs: dict[VisitKey, JSON] = {}
    entries: dict[VisitKey, VisitEntry] = {}
    order: list[tuple[int, str]] = []
    for field, value in fields.items():
        if field.startswith(b"o:"):
            outputs[_at(field)] = load_lazy(value)
        elif field.startswith(b"x:"):
            number, _, text = value.partition(b" ")
            entries[_at(field)] = load_entry(text)
            if number != b"0":
                order.append((int(number), _at(field)[0]))
                outputs.setdefault(_at(field), None)
    return outputs, entries, tuple(name for _, name in sorted(order))


def _at(field: bytes) -> tuple[str, int]:
    name, _, visit = field[2:].decode().rpartition(".")
    return name, int(visit)


# Both stores share these: copies in stored form, never the caller's object, and replies.


def pack_copy(value: Any) -> Any:
    """Copy packed JSON data by writing and reading it, as Redis would."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return pydantic_core.from_json(pydantic_core.to_json(value))


def replied(text: str, doorbells: Sequence[Doorbell]) -> Reply:
    """Split a reply's word from its detail: a delay in ms, a revoked external task, a node."""
    first, _, detail = text.partition(" ")
    reply_word = cast("ReplyWord", first)
    if reply_word == "revoked":
        return Reply(reply_word, doorbells, reference=detail)
    if reply_word in {"lost", "after"}:
        return Reply(reply_word, doorbells, detail=detail)
    return Reply(reply_word, doorbells, delay_ms=int(detail or 0))


def reply_of(reply: list[Any]) -> Reply:
    """Read a script's reply: a word, then doorbells."""
    return replied(reply[0].decode(), doorbells_of(reply))


def graph_with(share: Share, graph_id: str) -> str:
    """Return a doorbell's graph as scripts take it, followed by its share."""
    return f"{graph_id}\1{share.stride!r}\1{share.key}"


def doorbells_of(reply: list[Any]) -> list[Doorbell]:
    """Read the doorbells after a script's word."""
    return [
        Doorbell(
            run.decode(),
            node.decode(),
            int(visit),
            int(attempt),
            queue.decode(),
            priority,
            graph.decode(),
        )
        for run, node, visit, attempt, queue, priority, graph in reply[1:]
    ]


# These read back a graph's shape from the fields that `shape_fields` wrote.


def topology_of(graph_id: str, fingerprint: str, fields: Mapping[bytes, bytes]) -> Topology:
    meta = load(fields[b"meta"])
    names = [field[2:].decode() for field in fields if field.startswith(b"n:")]
    loops = sorted(int(field[2:]) for field in fields if field.startswith(b"l:"))
    return Topology(
        graph_id=graph_id,
        fingerprint=fingerprint,
        entries=tuple(meta["entries"]),
        policy=FailurePolicy(meta["policy"]),
        limit=meta["limit"],
        timeout_ms=meta["timeout"],
        nodes={name: _node(load(fields[f"n:{name}".encode()])) for name in names},
        outgoing={
            name: tuple(
                OutEdge(target, EdgeKind(kind), scope, loop, bool(on_expire))
                for target, kind, scope, loop, *on_expire in _edges(fields, "o", name)
            )
            for name in names
        },
        incoming={
            name: tuple(
                InEdge(source, position, EdgeKind(kind), loop)
                for source, position, kind, loop in _edges(fields, "i", name)
            )
            for name in names
        },
        loops=tuple(_loop(load(fields[b"l:%d" % number])) for number in loops),
        admission=Admission.load(meta["starts"]) if "starts" in meta else None,
        fairness=Fairness(*meta["fairness"]) if "fairness" in meta else None,
    )


def _edges(fields: Mapping[bytes, bytes], kind: str, name: str) -> list[list[JSON]]:
    edges: list[list[JSON]] = load(fields.get(f"{kind}:{name}".encode(), b"[]"))
    return edges


def _node(shape: JSONObject) -> NodeTopology:
    items = MapTopology(*shape["map"]) if "map" in shape else None
    limits = tuple(LimitShape(*limit) for limit in shape.get("limits", ()))
    values = {
        "join": Join(shape["join"]),
        "loops": tuple(shape["loops"]),
        "map": items,
        "limits": limits,
    }
    return NodeTopology(**{**shape, **values})


def _loop(shape: JSONObject) -> LoopTopology:
    exits = tuple((source, position) for source, position in shape["exits"])
    return LoopTopology(
        shape["header"], shape["size"], tuple(shape["inner"]), tuple(shape["outer"]), exits
    )


# Questions: the field i:<id> of the run holds the question as it was asked, d:<id> the decision.

PLACE = frozenset({"id", "run_id", "node_id", "visit"})
"""The fields of a question that its id contains, so they aren't stored."""

SHOWN = frozenset({"name", "reason", "response_schema", "assignees", "digest"})
"""The fields of a question that readers of notices can rely on."""

UNASKED = asdict(Interrupt("", ""))
"""Defaults of a question's fields."""

COMPRESSED, DIGEST_APART = b"z", b"y"
"""Marks before a stored question's compressed document; an uncompressed one begins with a brace.

After the second mark comes the digest, as bytes; in the document it is the last member.
"""

DIGEST = re.compile(rb',"digest":"sha256:([0-9a-f]{64})"}$')

QUESTION_WORDS = (
    b'"on_behalf_of":["escalates_at":["expires_in":"on_expire":"remind_after":["replaces":"reasked":"scope":'
    b'"number":"risk":"high","requester":"user:"place":{"graph":"fingerprint":"root":"path":"digest_v":2,'
    b'"rule":{"eligible":["group:"need":1,"stages":[],"escalate":[],"exclude":["action":{"v":1,"tenant":"kind":'
    b'"function","tool":"schema":{"args":{"amount":"currency":"EUR","to":"items":{"minimum":"maximum":"format":'
    b'"enum":["default":"title":"description":"additionalProperties":false,"type":"array","type":"integer"'
    b'"type":"number"},"comment":{"type":"string"}},"required":["approved":{"type":"boolean"},'
    b'"response_schema":{"type":"object","properties":{"reason":null,"digest":"sha256:'
    b'{"assignees":[],"name":"{"assignees":["@example.com","reason":{"'
)
"""Texts that most questions contain, as a compression dictionary: a change to it needs another mark."""

SMALL = 2_000
"""Stored bytes of questions that are kept decoded, as lists read them again and again."""

PLACEHOLDER = re.compile(rb"\x01[0-9]+:[0-9]+\x01")
"""The text that lua/commit.lua replaces by a number or a time."""


def question_document(question: Interrupt) -> bytes:
    """Write a question as stored and shown in its notice: without its id's parts and without defaults."""
    values = {name: getattr(question, name) for name in UNASKED}
    document = {
        name: value for name, value in values.items() if name in SHOWN or value != UNASKED[name]
    }
    for name in PLACE:
        document.pop(name, None)
    return dump({"assignees": question.assignees, **document})


def compressed_question(document: bytes) -> bytes:
    """Compress a question's document for its field, if that makes it shorter."""
    compressor = zlib.compressobj(9, wbits=-zlib.MAX_WBITS, zdict=QUESTION_WORDS)
    mark, text = COMPRESSED, document
    if digest := DIGEST.search(document):
        # Its random hex digits would take up most of the compressed text.
        mark = DIGEST_APART + bytes.fromhex(digest[1].decode())
        text = document[: digest.start()]
    text = mark + compressor.compress(text) + compressor.flush()
    return document if len(text) >= len(document) or PLACEHOLDER.search(text) else text


def split_question(data: bytes) -> tuple[bytes, bytes]:
    """Split a stored question into its head, including the last blank, and its document (JSON).

    Raises:
        CorruptDocument: the document is damaged.
    """
    text = data.lstrip(b"0123456789 :\1")
    head = data[: len(data) - len(text)]
    if not text.startswith((COMPRESSED, DIGEST_APART)):
        return head, text
    start, end = 1, b""
    if text.startswith(DIGEST_APART):
        start = 1 + hashlib.sha256().digest_size
        end = b',"digest":"sha256:%s"}' % text[1:start].hex().encode()
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS, zdict=QUESTION_WORDS)
    try:
        document = decompressor.decompress(text[start:])
    except zlib.error as error:
        raise CorruptDocument(f"a stored question can't be read: {error}") from error
    if not decompressor.eof:
        raise CorruptDocument("a stored question can't be read: its end is missing")
    return head, document + end


def question(interrupt_id: str, data: bytes, decision_text: bytes | None) -> Interrupt:
    """Read a question and its decision.

    Raises:
        CorruptDocument: it is damaged.
    """
    try:
        head, text = split_question(data)
        _, asked_at, _, *reminders = head.split()
        run_id, _, suffix = interrupt_id.partition(SEPARATOR)
        node, visit, _ = suffix.rsplit(SEPARATOR, 2)
        values = {"id": interrupt_id, "run_id": run_id, "node_id": node, "visit": int(visit)}
        values |= {"asked_at": int(asked_at), "reminded": int(reminders[0]) if reminders else 0}
        documents = [text]
        if decision_text is not None:
            status, time, nonce, outcome = decision_text.split(b" ", 3)
            values |= {"status": status.decode(), "answered_at": int(time)}
            if status == b"withdrawn" and outcome:
                outcome = dump({"withdrawal": {**load(outcome), "attempt": int(nonce)}})
            documents += [outcome] if outcome else []
        members = b",".join(document[1:-1] for document in (dump(values), *documents))
        return codec.decode(Interrupt, b"{" + members + b"}")
    except codec.READ_ERRORS as error:
        raise CorruptDocument(f"the question {interrupt_id} can't be read: {error}") from error


_same_question = lru_cache(500)(question)


def listed_question(interrupt_id: str, data: bytes, decision_text: bytes | None) -> Interrupt:
    """Read a question; a small one that was read before is the same object: don't change it."""
    is_small = len(data) + len(decision_text or b"") < SMALL
    return (_same_question if is_small else question)(interrupt_id, data, decision_text)


def questions(run_id: str, stored_fields: Mapping[bytes, bytes]) -> tuple[Interrupt, ...]:
    """Read all questions of a run, in the order they were asked."""
    rows = sorted(
        (question_number(data), name[2:].decode(), data)
        for name, data in stored_fields.items()
        if name.startswith(b"i:")
    )
    return tuple(
        question(f"{run_id}.{name}", data, stored_fields.get(b"d:" + name.encode()))
        for _, name, data in rows
    )


def question_fields(interrupt_id: str) -> tuple[str, str]:
    """Name the fields of the run that hold a question and its decision."""
    name = interrupt_id.partition(SEPARATOR)[2]
    return f"i:{name}", f"d:{name}"


def question_number(data: bytes) -> int:
    """Read a question's number among all questions of its run.

    Raises:
        CorruptDocument: it is damaged.
    """
    number = data.split(b" ", 1)[0]
    if not number.isdigit():
        raise CorruptDocument(
            f"a stored question begins with {number[:20]!r}, which isn't a number."
        )
    return int(number)


def winner(decision_text: bytes | None) -> str:
    """Read the nonce of the request that answered a question, or ""."""
    return decision_text.split(b" ", 3)[2].decode() if decision_text else ""


def decision(answer: Decision) -> bytes:
    """Write an answer as it is stored."""
    return dump(
        {
            "response": answer.response,
            "responder": answer.responder,
            "idempotency_key": answer.idempotency_key,
            **(
                {"decision": answer.decision, "effect": answer.effect}
                if answer.decision
                else {}
            ),
        }
    )


def document(text: bytes | None) -> JSONObject:
    """Read an object that is stored beside a question; return an empty one if nothing is stored.

    Raises:
        CorruptDocument: it is damaged.
    """
    try:
        return dict(load(text or b"{}"))
    except codec.READ_ERRORS as error:
        raise CorruptDocument(f"a stored vote can't be read: {error}") from error


UNTOUCHED = Standing()


def standing(text: bytes | None) -> Standing:
    """Read the standing of a question's votes.

    Raises:
        CorruptDocument: it is damaged.
    """
    return codec.decode(Standing, text) if text else UNTOUCHED


def decided(
    ids: Sequence[str], questions: Sequence[bytes], decisions: Sequence[bytes | None]
) -> list[Interrupt]:
    rows = sorted(
        (question_number(data), name, data, decision)
        for name, data, decision in zip(ids, questions, decisions, strict=True)
    )
    interrupts = [question(name, data, decision) for _, name, data, decision in rows]
    return [
        interrupt for interrupt in interrupts if interrupt.status is not InterruptStatus.OPEN
    ]
