"""Records that replace a run's own, as arguments of a script: see lua/parts/reopen.lua."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple, fields

from runner.graph import ROOT
from runner.maps import shape_name
from runner.ports import Fork
from runner.run import LoopRecord, NodeRecord, Records, Rewrite
from runner.store.layout import dump
from runner.store.link import Argument

FIXED = {"status", "visit", "attempt", "fence", "stamp", "edges", "nonce"}
"""What every node's text begins with; see parts/records.lua."""

DEFAULTS = {each.name: each.default for each in fields(NodeRecord)}


def arguments(again: Rewrite) -> Iterator[Argument]:
    """Write what an ended run goes on with."""
    yield again.run_id
    yield again.events
    yield from records(again.records)
    yield len(again.undone)
    for (node, visit), entry in again.undone.items():
        yield f"{node}.{visit}"
        yield dump(entry)
    yield len(again.forgets)
    yield from again.forgets


def fork_arguments(fork: Fork) -> Iterator[Argument]:
    """Write what a fork begins with."""
    start = fork.start
    yield from (start.run_id, start.graph_id, start.fingerprint or "")
    yield from (dump(start.task), dump(start.given), dump(dict(start.tags)))
    yield fork.source
    yield from records(fork.records)
    yield len(fork.kept)
    for (node, visit), place in fork.kept.items():
        yield f"{node}.{visit}"
        yield place
    yield len(fork.remembers)
    yield from fork.remembers
    if fork.at is not None:
        node, visit = fork.at
        yield from (node, visit, dump(fork.input))


def records(found: Records) -> Iterator[Argument]:
    """Write all records of a run: counters, loops, arrivals, maps and nodes."""
    yield found.failed
    yield found.started
    yield len(found.loops)
    for number, loop in found.loops.items():
        yield number
        yield _loop(loop)
    yield len(found.arrivals)
    for (scope, node), came in found.arrivals.items():
        yield f"a{scope}:{node}"
        yield dump([came.stamp, came.arrived, came.live])
    yield len(found.maps)
    for name, items in found.maps.items():
        yield name
        yield " ".join(str(int(count)) for count in astuple(items))
    yield len(found.nodes)
    for name, record in found.nodes.items():
        yield name
        yield _node(record, found.scopes.get(shape_name(name), ROOT))


def _loop(record: LoopRecord) -> bytes:
    return dump({name: value for name, value in asdict(record).items() if value})


def _node(record: NodeRecord, scope: int) -> str:
    """Write a node's record as parts/records.lua does."""
    rest = {
        name: value for name, value in asdict(record).items() if name not in FIXED and value != DEFAULTS[name]
    }
    rest |= {"scope": scope} if scope != ROOT else {}
    head = (record.status, record.visit, record.attempt, record.fence, record.stamp)
    tail = (record.edges or "-", record.nonce or "-", dump(rest).decode() if rest else "")
    return " ".join(map(str, (*head, *tail)))
