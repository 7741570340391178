"""Fields of a run as texts and bytes: questions and records."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, fields, replace

from runner.definition.model import ROOT
from runner.records import codec
from runner.records.codec import JSON
from runner.records.interrupts import (
    SEPARATOR,
    Decision,
    Interrupt,
    InterruptStatus,
)
from runner.records.run import LoopRecord, MapRecord, NodeRecord
from runner.store.encoding import dump, load

Write = Callable[[JSON], bytes]
"""Writes a value that may be large."""

# Questions: the field i:<id> of their run has them as they were asked, d:<id> what was decided.

PLACE = frozenset({"id", "run_id", "node_id", "visit"})
"""The fields of a question that its id has, so that they are not stored."""

SHOWN = frozenset({"name", "reason", "response_schema", "assignees", "digest"})
"""The fields of a question that those who read notices can rely on."""

UNASKED = asdict(Interrupt("", ""))
"""Defaults of a question's fields."""


def question_document(question: Interrupt) -> bytes:
    """Write a question as it is stored, and as its notice has it: without what its id says, and defaults."""
    values = {name: getattr(question, name) for name in UNASKED}
    document = {
        name: value for name, value in values.items() if name in SHOWN or value != UNASKED[name]
    }
    for name in PLACE:
        document.pop(name, None)
    return dump({"assignees": question.assignees, **document})


def question(interrupt_id: str, data: bytes, decision_text: bytes | None) -> Interrupt:
    head, _, text = data.partition(b"{")
    _, asked_at, _, *reminders = head.split()
    run_id, node, visit, _ = _parts(interrupt_id)
    address = dump({"id": interrupt_id, "run_id": run_id, "node_id": node, "visit": int(visit)})
    interrupt = codec.decode(Interrupt, address[:-1] + b"," + text)
    interrupt = replace(
        interrupt, asked_at=int(asked_at), reminded=int(reminders[0]) if reminders else 0
    )
    if not decision_text:
        return interrupt
    status, time, nonce, text = decision_text.split(b" ", 3)
    outcome = load(text) if text else {}
    if status == b"withdrawn" and outcome:
        outcome = {"withdrawal": {**outcome, "attempt": int(nonce)}}
    return replace(
        interrupt, status=InterruptStatus(status.decode()), answered_at=int(time), **outcome
    )


def _parts(interrupt_id: str) -> tuple[str, str, str, str]:
    run_id, _, address = interrupt_id.partition(SEPARATOR)
    node, visit, short = address.rsplit(SEPARATOR, 2)
    return run_id, node, visit, short


def questions(run_id: str, stored_fields: Mapping[bytes, bytes]) -> tuple[Interrupt, ...]:
    """Read all questions of a run, in the order in which they were asked."""
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
    """Name the fields of its run that have a question and what was decided."""
    name = interrupt_id.partition(SEPARATOR)[2]
    return f"i:{name}", f"d:{name}"


def question_number(data: bytes) -> int:
    """Read which number a question has among all of its run."""
    return int(data.split(b" ", 1)[0])


def winner(decision_text: bytes | None) -> str:
    """Read the nonce of the request that answered a question; "" when none did."""
    return decision_text.split(b" ", 3)[2].decode() if decision_text else ""


def decision(answer: Decision) -> bytes:
    """Write an answer as it is stored."""
    return dump(
        {
            "response": answer.response,
            "responder": answer.responder,
            "idempotency_key": answer.idempotency_key,
            **({"decision": answer.decision, "effect": answer.effect} if answer.decision else {}),
        }
    )


# Claims and nodes.


def decided(
    ids: Sequence[bytes], questions: Sequence[bytes], decisions: Sequence[bytes | None]
) -> list[Interrupt]:
    rows = sorted(
        zip(ids, questions, decisions, strict=True), key=lambda row: question_number(row[1])
    )
    interrupts = [question(row.decode(), data, decision) for row, data, decision in rows]
    return [interrupt for interrupt in interrupts if not interrupt.is_open]


# Records.


def loop_text(record: LoopRecord) -> bytes:
    return dump({name: value for name, value in asdict(record).items() if value})


def map_text(record: MapRecord) -> str:
    return " ".join(str(int(count)) for count in astuple(record))


REST = {
    field.name: field.default
    for field in fields(NodeRecord)
    if field.name not in {"status", "visit", "attempt", "fence", "stamp", "edges", "nonce"}
}
"""Defaults of the fields that follow as an object in a node's text."""

rest_of = operator.attrgetter(*REST)


def node_text(record: NodeRecord, scope: int) -> str:
    """Write a node's record: status, visit, attempt, fence, stamp, edges, nonce, rest.

    An empty text is "-". The rest is an object, or nothing: most nodes have no more, and this is read most
    quickly. `scope` is the innermost loop around the node.
    """
    pairs = zip(REST.items(), rest_of(record), strict=True)
    extra = {name: value for (name, default), value in pairs if value != default}
    if scope != ROOT:
        extra["scope"] = scope
    tail = dump(extra).decode() if extra else ""
    return (
        f"{record.status} {record.visit} {record.attempt} {record.fence} {record.stamp} "
        f"{record.edges or '-'} {record.nonce or '-'} {tail}"
    )
