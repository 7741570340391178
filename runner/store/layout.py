"""How values lie in Redis: shapes, records, questions and events as JSON texts, both ways.

Users' data is written once, by Python, and never opened by a script.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pydantic_core

from runner import codec
from runner.errors import CorruptDocument
from runner.graph import AFTER_GRAPH, BATCH, Join, OutEdge, Topology
from runner.listings import RunSummary
from runner.maps import BRACKETS
from runner.outcomes import Remembered, Saved
from runner.ports import Event
from runner.run import MapRecord, NodeRecord, RunRecord, Status

JSON = Any
dump = codec.dump_json
load = pydantic_core.from_json

V = 1
"""The form of what is stored here; a run of another form is refused, not guessed at."""

LARGE = 65_536
"""Bytes of a value that is still written where it belongs; see blobs.py."""

CHUNK = 500
"""Items of a map that are written in one request, so that a long list blocks nobody for long."""

STRAIGHT_EDGES = 500
"""More edges than this go the general way: Lua's stack takes a few thousand arguments."""


def shape_fields(topology: Topology) -> Iterator[tuple[str, bytes]]:
    """Write a graph's shape as the fields of a hash, each of a size that its node alone decides."""
    meta = {
        "v": V,
        "limit": topology.limit,
        "timeout": topology.timeout_ms,
        "policy": topology.policy,
        "entries": topology.entries,
        "after": AFTER_GRAPH in topology.nodes,
    }
    yield "meta", dump({**meta, "batches": True} if topology.batches else meta)
    for name in topology.nodes:
        yield from _node_fields(topology, name)
    for number, loop in enumerate(topology.loops):
        around = {"inner": loop.inner, "outer": loop.outer, "exits": loop.exits}
        yield f"l:{number}", dump({"header": loop.header, "size": loop.size, **around})


def _node_fields(topology: Topology, name: str) -> Iterator[tuple[str, bytes]]:
    node, leaving, coming = topology.nodes[name], topology.outgoing[name], topology.incoming[name]
    at = {
        "needs": node.needs,
        "join": node.join,
        "loops": node.loops,
        "queue": node.queue,
        "priority": node.priority,
        "each": node.each,
        "signature": node.signature,
    }
    if node.map is not None:
        at["map"] = [node.map.window, node.map.stops]
    if node.limits:
        at["limits"] = [[each.start, each.tag, each.concurrency, each.interval] for each in node.limits]
    at |= {key: value for key in ("kind", "version") if (value := getattr(node, key))}
    yield f"n:{name}", dump(at)
    if leaving:
        yield f"o:{name}", dump([_out(edge) for edge in leaving])
    if coming:
        yield f"i:{name}", dump([[edge.source, edge.position, edge.kind, edge.loop] for edge in coming])
    if name.endswith(BRACKETS):
        if not node.loops:
            window = topology.nodes[name.removesuffix(BRACKETS)].map
            yield f"s:{name}", dump([window.window if window else 0, node.queue, node.priority])
    elif _is_straight(topology, name):
        # In batches nothing follows from one node alone: the last of a batch goes the general way.
        targets = () if topology.batches else (edge.target for edge in leaving)
        yield f"s:{name}", dump([_straight_edge(topology, target) for target in targets])


def _out(edge: OutEdge) -> list[JSON]:
    on_expire = [True] if edge.on_expire else []
    return [edge.target, edge.kind, edge.scope, edge.loop, *on_expire]


def _is_straight(topology: Topology, name: str) -> bool:
    """Tell whether a completed visit may settle the straight way: see parts/straight_settle.lua."""
    if topology.batches:
        return name != BATCH
    leaving = topology.outgoing[name]
    targets = {edge.target for edge in leaving}
    in_loops = any(topology.nodes[node].loops for node in (name, *targets))
    return not (in_loops or topology.limit) and len(leaving) == len(targets) <= STRAIGHT_EDGES


def _straight_edge(topology: Topology, target: str) -> list[JSON]:
    node = topology.nodes[target]
    return [target, node.needs, node.join is Join.ANY, node.queue, node.priority]


def run_record(run_id: str, found: Mapping[bytes, bytes]) -> RunRecord:
    """Read a run's own fields; see parts/run.lua.

    Raises:
        CorruptDocument: another version of this library wrote them.
    """
    if found.get(b"v") != b"%d" % V:
        raise CorruptDocument(
            f"run {run_id} is stored in a form that this version can't read; it was left untouched. "
            "Read it with the version that wrote it."
        )
    fingerprint, parent, graph = found[b"of"].decode().split(" ", 2)
    status, *counts, stopping = found[b"run"].decode().split(" ")
    active, waiting, held, failed, started, _ = map(int, counts)
    return RunRecord(
        run_id=run_id,
        graph_id=graph,
        fingerprint=fingerprint,
        status=Status(status),
        active=active,
        waiting=waiting,
        held=held,
        failed=failed,
        started=started,
        stopping="" if stopping == "-" else stopping,
        reason=found.get(b"reason", b"").decode(),
        lock=found.get(b"lock", b"").decode(),
        parent="" if parent == "-" else parent,
        parent_node=found[b"parent_node"].decode(),
        root=found[b"root"].decode(),
        path=found.get(b"path", b"").decode(),
        on_end=found.get(b"on_end", b"").decode(),
        ends=int(found.get(b"ends", 0)),
        untold=int(found.get(b"untold", 0)),
    )


def summary(run_id: str, of: bytes, run: bytes, created: bytes, tags: bytes) -> RunSummary:
    """Read one line of a listing."""
    status, (fingerprint, _, graph) = run.split(b" ", 1)[0].decode(), of.decode().split(" ", 2)
    return RunSummary(run_id, graph, Status(status), int(created), load(tags), fingerprint)


def node_record(data: bytes) -> tuple[NodeRecord, int]:
    """Read a node's record, and the scope in whose rounds it counts; see parts/records.lua."""
    status, visit, attempt, fence, stamp, edges, nonce, rest = data.decode().split(" ", 7)
    found = load(rest) if rest else {}
    scope = found.pop("scope", -1)
    if "via" in found:
        found["via"] = tuple((name, number) for name, number in found["via"])
    if "questions" in found:
        found["questions"] = tuple(found["questions"])
    record = NodeRecord(
        status=Status(status),
        visit=int(visit),
        attempt=int(attempt),
        fence=int(fence),
        stamp=int(stamp),
        edges="" if edges == "-" else edges,
        nonce="" if nonce == "-" else nonce,
        **found,
    )
    return record, scope


def map_record(data: bytes) -> MapRecord:
    """Read the record of a map's items; see parts/maps.lua."""
    visit, total, begun, active, waiting, failed, stopped, swept = map(int, data.split())
    return MapRecord(visit, total, begun, active, waiting, failed, bool(stopped), swept)


def map_of_visit(data: bytes | None, visit: int) -> MapRecord | None:
    """Read the record of a map's items; None where this visit has none yet."""
    found = map_record(data) if data else None
    return found if found and found.visit == visit else None


def digest(data: bytes) -> str:
    """Name a large value by its bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def item_arguments(
    items: Sequence[JSON] | None, write: Callable[[JSON], bytes]
) -> Iterator[list[bytes | str | int]]:
    """Write a map's items as arguments of scripts: how many, whether these are the last, the first one's
    index, the bytes of all items, and these; None for those that the map has.
    """
    rows = [write(item) for item in items or ()]
    total, size = "" if items is None else len(rows), sum(map(len, rows))
    for first in range(0, max(1, len(rows)), CHUNK):
        last = "1" if first + CHUNK >= len(rows) else "0"
        yield [total, last, first, size, *rows[first : first + CHUNK]]


def in_round(record: NodeRecord, stamp: int) -> NodeRecord:
    """Give a record as it stands in a round: settled in an older one means pending."""
    if record.stamp == stamp:
        return record
    return NodeRecord(visit=record.visit, fence=record.fence, stamp=stamp, nonce=record.nonce)


def saved_arguments(saved: Saved | None) -> list[bytes | str | int]:
    """Write what a node keeps as the last arguments of a script."""
    if saved is None:
        return []
    return [dump(saved.document), saved.keep, *(dump(message) for message in saved.messages)]


def remembered_arguments(session: Remembered | None) -> list[bytes | str | int]:
    """Write what a session gets as arguments of a script; a value that goes is written as nothing."""
    if session is None:
        return ["", 0, 0]
    values = {name: dump(value) for name, value in session.state.items()} | dict.fromkeys(session.gone, b"")
    pairs = (part for pair in values.items() for part in pair)
    return [session.session_id, session.first, len(values), *pairs]


def event(position: bytes, found: Mapping[bytes, bytes]) -> Event:
    """Read an event; see parts/events.lua."""
    kind, at, visit, node, detail = found[b"e"].decode().split("\n", 4)
    data = load(found[b"d"]) if b"d" in found else None
    return Event(position.decode().partition("-")[0], kind, int(at), node, int(visit), detail, data)


def results(
    found: Mapping[bytes, bytes],
) -> tuple[dict[tuple[str, int], JSON], dict[tuple[str, int], dict[str, JSON]], tuple[str, ...]]:
    """Read what visits left behind: outputs, entries, and completed nodes in order."""
    outputs, entries, order = {}, {}, []
    for field, value in found.items():
        if field.startswith(b"o:"):
            outputs[_at(field)] = load(value)
        elif field.startswith(b"x:"):
            number, _, text = value.partition(b" ")
            entries[_at(field)] = load(text)
            if number != b"0":
                order.append((int(number), _at(field)[0]))
    return outputs, entries, tuple(name for _, name in sorted(order))


def _at(field: bytes) -> tuple[str, int]:
    name, _, visit = field[2:].decode().rpartition(".")
    return name, int(visit)
