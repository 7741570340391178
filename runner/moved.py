"""What a moved run keeps under other names: questions, documents, and what visits left behind. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner.errors import ConflictError
from runner.interrupts import Address, Interrupt, InterruptStatus, digest
from runner.maps import map_of
from runner.migrating import At, Renamed
from runner.node_documents import NodeDocument, load_document
from runner.replay import Settled
from runner.run import NodeRecord, Status

if TYPE_CHECKING:
    from runner.migration import Move
    from runner.ports import RunSnapshot

JSON = Any


def restated(question: Interrupt, name: str) -> Interrupt:
    """Give a question as its node asks it under another name."""
    at = Address(question.run_id, name, question.visit)
    found = at.interrupt_id(question.scope, question.name, question.number, question.reasked)
    said = replace(question, id=found, node_id=name, replaces=question.id)
    return replace(said, digest=digest(said))


def bare(question: Interrupt) -> Interrupt:
    """Give a question as it was asked, without what became of it."""
    return replace(
        question,
        status=InterruptStatus.OPEN,
        response=None,
        responder=None,
        idempotency_key=None,
        asked_at=0,
        answered_at=0,
        withdrawal=None,
        reminded=0,
    )


def used_up(snapshot: RunSnapshot, name: str) -> int:
    """Give the last visit of which something is left under a name; a node that begins must not meet it."""
    asked = [each.visit for each in asked_under(snapshot, name)]
    return max([0, *asked, *(visit for node, visit in snapshot.entries if node == name)])


def asked_under(snapshot: RunSnapshot, name: str) -> list[Interrupt]:
    """List the questions that a node of that name has asked, or its items, in whatever shape."""
    return [each for each in snapshot.interrupts if (map_of(each.node_id) or each.node_id) == name]


def check_names(move: Move) -> None:
    """Make sure that no renamed node takes over the questions of another one.

    A question's id names its node and visit: under the same id an answer would reach another question.
    A node that gets a name back finds its own older questions there.

    Raises:
        ConflictError: it would.
    """
    for node in sorted(move.names.used()):
        name = move.names.today(node)
        if name in {"", node}:
            continue
        last = move.snapshot.nodes.get(node, NodeRecord()).visit
        first = last if name in move.kept else last + 1
        own = set(_known_as(move.snapshot, node))
        others = [
            each.id
            for each in asked_under(move.snapshot, name)
            if each.visit >= first and each.id not in own and _may_ask(move, node + each.node_id[len(name) :])
        ]
        if others:
            raise ConflictError(
                f"node {node!r} can't be {name!r} in run {move.snapshot.record.run_id}: another node of that "
                f"name has asked {others[0]}, and answers to it would reach the wrong question. Nothing was "
                f"changed. Give the node a name of its own, or say --drop {node}, and it begins anew."
            )


def _may_ask(move: Move, node: str) -> bool:
    """Tell whether a node may ask in the visit that it is in: an item that has completed does not."""
    record = move.snapshot.nodes.get(node, NodeRecord())
    return not map_of(node) or record.status is not Status.COMPLETED


def _known_as(snapshot: RunSnapshot, node: str) -> Iterator[str]:
    """Give the ids under which the questions of a node were asked before it had its name."""
    known, seen = {each.id: each for each in snapshot.interrupts}, set[str]()
    left = [each.replaces for each in asked_under(snapshot, node)]
    while left:
        found = left.pop()
        if found in known and found not in seen:
            seen.add(found)
            yield found
            left.append(known[found].replaces)


def questions(move: Move) -> tuple[list[tuple[str, Interrupt]], list[Interrupt]]:
    """List the decided questions of renamed nodes that go on, and those to ask instead of open ones.

    An open one is withdrawn under its old id: whoever knows that must learn the new one.
    """
    decided, asked = [], []
    for node, record in move.snapshot.nodes.items():
        name = move.names.today(node)
        if name in {"", node} or record.status is not Status.WAITING or (node, record.visit) in move.closed:
            continue
        for each in move.asked_by(node):
            new = restated(each, name)
            if each.is_open:
                move.withdrawn.append((node, each.visit, each.id))
                asked.append(bare(new))
            elif each.is_decided:
                decided.append((each.id, new))
    return decided, asked


def renamed(move: Move, decided: Sequence[tuple[str, Interrupt]]) -> list[Renamed]:
    """List the nodes that have another name, with what they keep in the words of that name."""
    found = []
    known = {**move.snapshot.nodes, **{node: None for node, _ in move.snapshot.entries}}
    for node in known:
        name = move.names.today(node)
        if name in {"", node}:
            continue
        record = move.snapshot.nodes.get(node, NodeRecord())
        kept = None if node in move.forgets else _named(node, record, move.documents.get(node))
        own = [new.id for _, new in decided if new.node_id == name]
        found.append(Renamed(node, name, record.visit, _restate(move, node, name, kept), own))
    return found


def _named(node: str, record: NodeRecord, document: JSON) -> JSON:
    """Note the name under which a visit began that is not over: its idempotency key must stay the same."""
    if record.status not in {Status.WAITING, Status.FAILED}:
        return document
    found = load_document(document) or NodeDocument(record.visit)
    first = found.first_name(record.visit) or f"{node}.{record.visit}"
    return replace(found, named=first).dump()


def _restate(move: Move, node: str, name: str, document: JSON) -> JSON:
    """Put the new ids of questions, and their new node, into what a node keeps."""
    mine = [(each, restated(each, name)) for each in move.asked.get(node, ())]
    words = {old.id: new.id for old, new in mine} | {
        old.digest: new.digest for old, new in mine if old.digest
    }

    def walk(value: JSON) -> JSON:
        if isinstance(value, str):
            return words.get(value, value)
        if isinstance(value, list):
            return [walk(each) for each in value]
        if isinstance(value, dict):
            said = {words.get(key, key): walk(each) for key, each in value.items()}
            return {**said, "node_id": name} if value.get("id") in words and "node_id" in value else said
        return value

    return walk(document) if words else document


def visits(move: Move, past: Mapping[At, Settled]) -> list[tuple[At, At, dict[str, JSON] | None]]:
    """List the visits whose node has another name, or whose edges or reads are told in other words."""
    found = []
    for (node, visit), entry in move.snapshot.entries.items():
        name = move.names.today(node)
        if not name:
            continue
        said = _entry(move, name, entry, past.get((name, visit)))
        if name != node or said != entry:
            found.append(((node, visit), (name, visit), said if said != entry else None))
    return found


def _entry(move: Move, name: str, entry: dict[str, JSON], settled: Settled | None) -> dict[str, JSON]:
    if settled is None or settled.status is not Status.COMPLETED:
        return entry
    said = {key: value for key, value in entry.items() if key not in {"edges", "reads"}}
    if move.new.nodes[name].loops:
        said["edges"] = settled.edges
    if settled.reads:
        said["reads"] = [list(each) for each in settled.reads]
    return said


def undone(move: Move) -> dict[At, dict[str, JSON]]:
    """List the visits that no longer count, each with its entry saying so."""
    return {
        at: {**entry, "undone": True}
        for at, entry in move.snapshot.entries.items()
        if (at in move.closed or not move.names.today(at[0])) and not entry.get("undone")
    }
