"""Plans for the script `apply`: what it is given, what it returns, and the claim that says what it needs.

A token that a claim made carries what the claim has seen, so that the next plan of that visit needs no read
of its own. It may be old by then; the guards notice.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter

from runner.definition.model import ROOT, EdgeKind, Topology, map_of, shape_name
from runner.records.codec import JSON
from runner.records.run import DIGITS, LoopRecord, NodeRecord
from runner.scheduler.changes import AddEvent, SetTimer
from runner.scheduler.plan import Plan, PlanView, any_of, scopes
from runner.store import encoding
from runner.store.encoding import load
from runner.store.redis.connection import Argument

_NEVER = 1 << 30
"""Arrivals that a node never has: its own plan decides about it."""


@dataclass(slots=True)
class Known:
    """What was read of a run, as texts: enough to make a plan and its guards.

    `kept` are the bytes of the document and of each message that the claimed node keeps; None when unknown.
    """

    run_id: str
    graph_id: str
    topology: Topology
    raw: dict[str, bytes] = field(default_factory=dict)
    root: str = ""
    stopping: str = ""
    asked_elsewhere: bool = False
    kept: tuple[int, list[int]] | None = None
    fresh: bool = False
    records: dict[bytes, NodeRecord] = field(default_factory=dict)

    def view(self) -> PlanView:
        """Read the texts."""
        nodes, loops, records = {}, {}, self.records
        for name, text in self.raw.items():
            if name[0] == "n":
                nodes[name[2:]] = records.get(text) or encoding.node_record(text)[0]
            elif name[0] == "l":
                loops[int(name[2:])] = loop_record(text)
        return PlanView(self.topology, nodes, loops, self.stopping)


def loop_record(text: bytes) -> LoopRecord:
    """Read a loop's record, without its count."""
    parts = load(text)
    return LoopRecord(
        parts.get("round", 0),
        0,
        tuple((node, visit) for node, visit in parts.get("asked", ())),
        tuple((node, place, visit) for node, place, visit in parts.get("taken", ())),
    )


def loop_text(record: LoopRecord) -> bytes:
    """Write a loop's record, without its count."""
    parts: dict[str, JSON] = {}
    if record.round:
        parts["round"] = record.round
    if record.asked:
        parts["asked"] = record.asked
    if record.taken:
        parts["taken"] = record.taken
    return encoding.dump(parts)


_LATER = [
    (name, default)
    for name, default in (
        ("crashes", 0),
        ("uncounted", 0),
        ("via", ()),
        ("questions", ()),
        ("unseen", 0),
        ("child", ""),
        ("busy", False),
        ("held", False),
        ("rings", 0),
        ("items", False),
        ("since", 0),
        ("granted", False),
        ("handed", ""),
        ("sent", False),
        ("late", False),
    )
]


_rest = attrgetter(*(name for name, _ in _LATER))

_DEFAULTS = tuple(default for _, default in _LATER)


def node_text(record: NodeRecord, scope: int) -> str:
    """Write a node's record as parts/records.lua does."""
    rest = {}
    if _rest(record) != _DEFAULTS:
        rest = {name: value for name, default in _LATER if (value := getattr(record, name)) != default}
    if scope != ROOT:
        rest["scope"] = scope
    tail = encoding.dump(rest).decode() if rest else ""
    return (
        f"{record.status} {record.visit} {record.attempt} {record.fence} {record.stamp} "
        f"{record.edges or '-'} {record.nonce or '-'} {tail}"
    )


def fence_step(nonce: str) -> int:
    """Return by how much a claim raises the fence; see `next_fence`."""
    return 1 + int(hashlib.sha1(nonce.encode(), usedforsecurity=False).hexdigest()[:DIGITS], 16)


HEAD = struct.Struct(">hhhhhHHHHHHHHHH")

ARRIVAL = struct.Struct(">HHHHIBB")

ALL, ANY, TURN, ITEM, ALSO = 0, 1, 2, 3, 4


@lru_cache(maxsize=4096)
def _target(topology_id: int, node: str) -> tuple[int, int, str, tuple[str, int]]:
    topology = _TOPOLOGIES[topology_id]
    shape = topology.nodes[node]
    rest = f'{{"scope":{shape.loops[0]}}}' if shape.loops else ""
    return shape.needs, ANY if any_of(topology, node) else ALL, rest, (shape.queue, shape.priority)


@lru_cache(maxsize=65536)
def _scopes(topology_id: int, node: str) -> tuple[int, ...]:
    """Name the scopes over whose edges something arrives at a node."""
    return scopes(_TOPOLOGIES[topology_id], node)


_TOPOLOGIES: dict[int, Topology] = {}


def known_topology(topology: Topology) -> Topology:
    """Keep a topology as long as the process: what is computed of it once is found by its identity."""
    return _TOPOLOGIES.setdefault(id(topology), topology)


def arguments(
    plan: Plan,
    known: Known,
    *,
    suffixes: Mapping[int, str],
    bytes_more: int | str = 0,
    rung_by: str = "null",
    puts: Sequence[tuple[str, Argument]] = (),
    results: Sequence[tuple[str, bytes]] = (),
    data: Callable[[AddEvent], bytes] = lambda _: b"",
    commands: Sequence[Sequence[Argument]] = (),
    lease_ms: int = 0,
    stays: str = "",
) -> Iterable[Argument]:
    """Write a plan for the script, from its fourth argument on."""
    topology, run_id, raw = known.topology, known.run_id, known.raw
    fields: list[Argument] = []
    values: list[Argument] = []
    for node in plan.guards:
        fields.append(f"n:{node}")
        values.append(raw.get(f"n:{node}", b""))
    for loop in plan.loop_guards:
        fields.append(f"l:{loop}")
        values.append(raw.get(f"l:{loop}", b""))
    for node, visit, status in plan.reads:
        fields.append(f"n:{node}")
        values.append(f"~{status} {visit} " if visit else "!")
    counted: list[Argument] = []
    arrivals: list[Argument] = []
    routes: dict[tuple[str, int], int] = {}
    for (scope, node), arrival in plan.arrivals.items():
        needs, kind, rest, route = _target(id(topology), node)
        for other in _scopes(id(topology), node):
            if other != scope:
                same = plan.arrivals.get((other, node))
                stamp = same.stamp if same else 0 if other == ROOT else loop_round(raw, other)
                counted += (f"a{other}:{node}", f"n:{node}")
                now = (same.number, same.live) if same else (0, 0)
                arrivals += (ARRIVAL.pack(stamp, 0, *now, 0, ALSO, 0), "", "", "")
                later = list(plan.arrivals).index((other, node)) if same else -1
                if later > list(plan.arrivals).index((scope, node)):
                    needs, kind = _NEVER, ALL  # the later one decides
        counted += (f"a{scope}:{node}", f"n:{node}")
        begun = f"ready 1 1 0 {arrival.own} - - {rest}"
        count = f"[{arrival.stamp},{arrival.number},{arrival.live}]"
        numbers = ARRIVAL.pack(
            arrival.stamp,
            arrival.own,
            arrival.number,
            arrival.live,
            _NEVER if node in plan.nodes else needs,
            kind,
            routes.setdefault(route, len(routes)),
        )
        arrivals += (numbers, node, begun, count)
    for loop, number in plan.counts.items():
        counted += (f"c:{loop}", f"l:{loop}")
        turn = plan.loops[loop].round if loop in plan.loops else loop_round(raw, loop)
        arrivals += (
            ARRIVAL.pack(turn, turn, number, 0, topology.loops[loop].size, TURN, 0),
            loop,
            "",
            f"[{turn},{number},0]",
        )
    if plan.item_of:
        # Loops, then maps: the record of the first item that begins is that of any.
        owner, (visit,) = plan.item_of, {record.visit for record in plan.nodes.values()}
        shape, own = topology.nodes[owner], next(iter(plan.nodes.values())).stamp
        rest = f'{{"scope":{shape.loops[0]}}}' if shape.loops else ""
        counted += (f"m:{owner}", f"n:{owner}")
        route = routes.setdefault((shape.queue, shape.priority), len(routes))
        window = shape.map.window if shape.map else 0
        arrivals += (
            ARRIVAL.pack(own, visit, 0, 0, window, ITEM, route),
            owner,
            f"ready {visit} 1 0 {own} - - {rest}",
            "",
        )
    writes: list[Argument] = []
    for name, record in plan.nodes.items():
        writes += (f"n:{name}", node_text(record, topology.nodes[shape_name(name)].scope))
    for number, loop_record_ in plan.loops.items():
        writes += (f"l:{number}", loop_text(loop_record_))
    for pair in puts:
        writes += pair
    dropped: list[Argument] = []
    timed: list[Argument] = []
    for timer in plan.timers:
        member = f"{timer.kind}|{run_id}|{timer.key}"
        if isinstance(timer, SetTimer):
            timed += (lease_ms if timer.at < 0 else timer.at, member)
        else:
            dropped.append(member)
    events: list[Argument] = []
    for event in plan.events:
        events += (event.kind, f"\n{event.visit}\n{event.node}\n{event.detail}", data(event))
    bells: list[Argument] = []
    for bell in plan.bells:
        route = routes.setdefault((bell.queue, bell.priority), len(routes))
        bells += (route, bell.node, bell.visit, bell.attempt)
    unusual = plan.stopping or plan.before or plan.follow_up
    yield run_id
    yield known.graph_id
    yield rung_by
    yield bytes_more
    yield HEAD.pack(
        plan.active,
        plan.waiting,
        plan.held,
        plan.failed,
        plan.started,
        len(values),
        len(counted) // 2,
        len(plan.absent),
        len(routes),
        len(writes) // 2,
        len(results),
        len(dropped),
        len(timed) // 2,
        len(plan.events),
        len(plan.bells),
    )
    yield f"{plan.stopping or '-'} {plan.before} {plan.follow_up}" if unusual else ""
    yield stays
    yield from fields
    yield from counted
    yield from values
    yield from arrivals
    yield from plan.absent
    for queue, priority in routes:
        yield from (queue, queue + suffixes.get(priority, ""), priority)
    yield from writes
    for pair in results:
        yield from pair
    yield from dropped
    yield from timed
    yield from events
    yield from bells
    for command in commands:
        yield len(command) - 2
        yield from command


def loop_round(raw: Mapping[str, bytes], loop: int) -> int:
    """Return the round of a loop as it was read."""
    text = raw.get(f"l:{loop}")
    return load(text).get("round", 0) if text else 0


# Claims.


@lru_cache(maxsize=65536)
def _claim_fields(topology_id: int, node: str) -> tuple[str, ...]:
    topology, fields = _TOPOLOGIES[topology_id], []
    name = shape_name(node)
    if name != node:
        return (f"m:{map_of(node)}", *(f"l:{loop}" for loop in topology.nodes[name].loops))
    for edge in topology.incoming[name]:
        fields += [f"n:{edge.source}", f"o:{edge.source}.1"]
    loops = {edge.loop for edge in topology.incoming[name] if edge.kind is EdgeKind.EXIT}
    for edge in topology.outgoing[name]:
        loops.update(topology.nodes[edge.target].loops)
        loops.update([edge.loop] if edge.loop != ROOT else [])
    around = topology.nodes[name].loops
    if around:
        # Whoever settles last turns the loop, and needs what that needs.
        loops.update(around, topology.loops[around[0]].inner)
        fields.append(f"n:{topology.loops[around[0]].header}")
    fields += [f"l:{loop}" for loop in sorted(loops)]
    if topology.nodes[name].map:
        fields.append(f"m:{name}")
    return tuple(dict.fromkeys(fields))


def claim_fields(topology: Topology, node: str) -> tuple[str, ...]:
    """Name the fields of the run that a node needs: its sources, their outputs, the loops that it touches."""
    return _claim_fields(id(topology), node)
