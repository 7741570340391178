"""How values lie in Redis: shapes, records, questions and events as JSON texts, both ways.

Users' data is written once, by Python, and never opened by a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pydantic_core

from runner import codec
from runner.graph import AFTER_GRAPH, Topology
from runner.interrupts import Answer, Interrupt, InterruptStatus
from runner.outcomes import Remembered, Saved
from runner.ports import Event
from runner.run import NodeRecord, RunRecord, Status

JSON = Any
dump = codec.dump_json
load = pydantic_core.from_json


def shape_fields(topology: Topology) -> Iterator[tuple[str, bytes]]:
    """Write a graph's shape as the fields of a hash, each of a size that its node alone decides."""
    meta = {
        "limit": topology.limit,
        "timeout": topology.timeout_ms,
        "policy": topology.policy,
        "entries": topology.entries,
        "after": AFTER_GRAPH in topology.nodes,
    }
    yield "meta", dump(meta)
    for name, node in topology.nodes.items():
        at = {
            "needs": node.needs,
            "join": node.join,
            "loops": node.loops,
            "queue": node.queue,
            "priority": node.priority,
            "each": node.each,
            "signature": node.signature,
        }
        yield f"n:{name}", dump(at)
        if leaving := topology.outgoing[name]:
            yield f"o:{name}", dump([[edge.target, edge.kind, edge.scope, edge.loop] for edge in leaving])
        if coming := topology.incoming[name]:
            yield f"i:{name}", dump([[edge.source, edge.position, edge.kind, edge.loop] for edge in coming])
    for number, loop in enumerate(topology.loops):
        around = {"inner": loop.inner, "outer": loop.outer, "exits": loop.exits}
        yield f"l:{number}", dump({"header": loop.header, "size": loop.size, **around})


def run_record(run_id: str, found: Mapping[str, str]) -> RunRecord:
    """Read a run's own fields."""
    counts = {name: int(found.get(name) or 0) for name in ("active", "waiting", "held", "failed", "started")}
    texts = {
        name: found.get(name) or ""
        for name in ("stopping", "reason", "lock", "parent", "parent_node", "root")
    }
    record = RunRecord(run_id, found["graph"], found["fp"], Status(found["status"]))
    return replace(record, **counts, **texts)  # type: ignore[arg-type]  # mypy sees one type for all fields


def node_record(data: bytes) -> tuple[NodeRecord, int]:
    """Read a node's record, and the scope in whose rounds it counts."""
    found = load(data)
    scope = found.pop("scope", -1)
    if "status" in found:
        found["status"] = Status(found["status"])
    if "via" in found:
        found["via"] = tuple((name, visit) for name, visit in found["via"])
    if "questions" in found:
        found["questions"] = tuple(found["questions"])
    return NodeRecord(**found), scope


def in_round(record: NodeRecord, stamp: int) -> NodeRecord:
    """Give a record as it stands in a round: settled in an older one means pending."""
    if record.stamp == stamp:
        return record
    return NodeRecord(visit=record.visit, fence=record.fence, stamp=stamp, nonce=record.nonce)


def question(data: bytes, decided: bytes | None) -> Interrupt:
    """Read a question as it stands: as it was asked, and what became of it."""
    _, asked, _, text = data.split(b" ", 3)
    found = replace(codec.decode(Interrupt, text), asked_at=int(asked))
    if not decided:
        return found
    status, at, _, answer = decided.split(b" ", 3)
    given = load(answer) if answer else {}
    return replace(found, status=InterruptStatus(status.decode()), answered_at=int(at), **given)


def answered(asked: Sequence[bytes], decided: Sequence[bytes | None]) -> list[Interrupt]:
    """Read the questions that were answered or have expired, in the order of asking."""
    pairs = sorted(zip(asked, decided, strict=True), key=lambda pair: question_number(pair[0]))
    found = [question(*pair) for pair in pairs]
    return [each for each in found if each.status in {InterruptStatus.ANSWERED, InterruptStatus.EXPIRED}]


def question_number(data: bytes) -> int:
    """Read the place of a question among all of its run."""
    return int(data.split(b" ", 1)[0])


def decision(answer: Answer) -> bytes:
    """Write what an answer changes of its question."""
    return dump(
        {
            "response": answer.response,
            "responder": answer.responder,
            "idempotency_key": answer.idempotency_key,
        }
    )


def winner(decided: bytes | None) -> str:
    """Read the nonce of the request that answered a question; "" when none did."""
    return decided.split(b" ", 3)[2].decode() if decided else ""


def question_arguments(interrupts: Sequence[Interrupt]) -> list[bytes | str | int]:
    """Write questions as arguments of a script: how many, then id, lifetime in ms and JSON of each."""
    each_once = {asked.id: asked for asked in interrupts}
    arguments: list[bytes | str | int] = [len(each_once)]
    for asked in each_once.values():
        lifetime = 0 if asked.expires_in is None else max(1, round(asked.expires_in * 1000))
        arguments += [asked.id, lifetime, codec.encode(asked)]
    return arguments


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
    """Read an event."""
    data = found[b"data"]
    return Event(
        position=position.decode().partition("-")[0],
        kind=found[b"kind"].decode(),
        at=int(found[b"at"]),
        node=found[b"node"].decode(),
        visit=int(found[b"visit"]),
        detail=found[b"detail"].decode(),
        data=load(data) if data else None,
    )


def at_visit(field: bytes) -> tuple[str, int]:
    """Read `<node>.<visit>`."""
    name, _, visit = field.decode().rpartition(".")
    return name, int(visit)
