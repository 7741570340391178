"""What scripts are given and what they return: questions, records and claims, as texts and bytes.

Each function that ends in `_arguments` writes the arguments of one script in the order that the
script's header names; the other functions read replies and stored fields.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields, replace
from typing import Any, NamedTuple

from runner.definition.model import ROOT, shape_name
from runner.records import codec, interrupts
from runner.records.codec import JSON
from runner.records.interrupts import (
    SEPARATOR,
    Answer,
    Interrupt,
    InterruptStatus,
    as_asked,
    ends_node,
    reminder_schedule,
    route,
)
from runner.records.migration import Migration
from runner.records.run import LoopRecord, MapRecord, NodeRecord, Records
from runner.store import encoding, event_payloads
from runner.store.encoding import dump, load
from runner.store.interface import Claim, Fetched, Fork, RunSnapshot, Token
from runner.store.receipts import by_visit
from runner.store.redis.connection import Argument
from runner.store.redis.large_values import LargeValues

Write = Callable[[JSON], bytes]
"""Writes a value that may be large."""

# Questions: the field i:<id> of their run has them as they were asked, d:<id> what was decided.

PLACE = frozenset({"id", "run_id", "node_id", "visit"})
"""The fields of a question that its id has, so that they are not stored."""

SHOWN = frozenset({"name", "reason", "response_schema", "assignees", "digest"})
"""The fields of a question that those who read notices can rely on."""

UNASKED = asdict(Interrupt("", ""))
"""What a question's fields are unless they are set."""


def question_document(question: Interrupt) -> bytes:
    """Write a question as it is stored, and as its notice has it: without what its id says, and defaults."""
    values = {name: getattr(question, name) for name in UNASKED}
    changed = {name: value for name, value in values.items() if name in SHOWN or value != UNASKED[name]}
    for name in PLACE:
        changed.pop(name, None)
    # Scripts find the assignees at the beginning: see parts/indexes.lua.
    return dump({"assignees": question.assignees, **changed})


def question(interrupt_id: str, data: bytes, decided: bytes | None) -> Interrupt:
    head, _, text = data.partition(b"{")
    _, asked_at, _, *reminded = head.split()
    run_id, node, visit, _ = _parts(interrupt_id)
    place = dump({"id": interrupt_id, "run_id": run_id, "node_id": node, "visit": int(visit)})
    interrupt = codec.decode(Interrupt, place[:-1] + b"," + text)
    interrupt = replace(interrupt, asked_at=int(asked_at), reminded=int(reminded[0]) if reminded else 0)
    if not decided:
        return interrupt
    status, time, nonce, text = decided.split(b" ", 3)
    outcome = load(text) if text else {}
    if status == b"withdrawn" and outcome:
        outcome = {"withdrawal": {**outcome, "attempt": int(nonce)}}
    return replace(interrupt, status=InterruptStatus(status.decode()), answered_at=int(time), **outcome)


def _parts(interrupt_id: str) -> tuple[str, str, str, str]:
    run_id, _, rest = interrupt_id.partition(SEPARATOR)
    node, visit, short = rest.rsplit(SEPARATOR, 2)
    return run_id, node, visit, short


def questions(run_id: str, stored: Mapping[bytes, bytes]) -> tuple[Interrupt, ...]:
    """Read all questions of a run, in the order in which they were asked."""
    asked = sorted(
        (question_number(data), name[2:].decode(), data)
        for name, data in stored.items()
        if name.startswith(b"i:")
    )
    return tuple(
        question(f"{run_id}.{name}", data, stored.get(b"d:" + name.encode())) for _, name, data in asked
    )


def question_fields(interrupt_id: str) -> tuple[str, str]:
    """Name the fields of its run that have a question and what was decided."""
    name = interrupt_id.partition(SEPARATOR)[2]
    return f"i:{name}", f"d:{name}"


def question_number(data: bytes) -> int:
    """Read which number a question has among all of its run."""
    return int(data.split(b" ", 1)[0])


def winner(decided: bytes | None) -> str:
    """Read the nonce of the request that answered a question; "" when none did."""
    return decided.split(b" ", 3)[2].decode() if decided else ""


def question_arguments(
    questions: Sequence[Interrupt], write: Callable[[Token, JSON], bytes], token: Token
) -> list[Argument]:
    """Write questions: how many, then for each what parts/question_arguments.lua names.

    `write` writes what may be large, for the run of `token`.
    """
    by_id = {question.id: question for question in questions}
    arguments: list[Argument] = [len(by_id)]
    for question in by_id.values():
        lifetime = 0 if question.expires_in is None else max(1, round(question.expires_in * 1000))
        arguments += [
            question.id,
            lifetime,
            question_document(question),
            dump(event_payloads.question(question)),
            timed(question, lambda value: write(token, value)),
        ]
    return arguments


def timed(question: Interrupt, write: Write) -> bytes:
    """Write what time does to a question, in lines: reminders, how its node ends, and the node's result.

    Nothing for a question that neither reminds nor ends its node.
    """
    reminders, target = reminder_schedule(question).encode(), route(question).encode()
    if target:
        return b"\n".join([reminders, b"route", target, write(interrupts.expired_output(question))])
    if ends_node(question):
        entry = interrupts.expired_entry(question, "")
        return b"\n".join([reminders, b"fail", dump(entry), dump(event_payloads.error(entry))])
    return reminders and reminders + b"\n"


def decision(answer: Answer) -> bytes:
    """Write an answer as it is stored."""
    return dump(
        {
            "response": answer.response,
            "responder": answer.responder,
            "idempotency_key": answer.idempotency_key,
        }
    )


def answer_arguments(answers: Sequence[Answer]) -> Iterator[Argument]:
    """Write answers, grouped by the visit that asked."""
    for (run_id, node, visit), group in by_visit(answers).items():
        for answer in group:
            payload = dump(event_payloads.answer(answer))
            yield from (run_id, node, visit, answer.interrupt_id, decision(answer), payload)


# Claims and nodes.


class ClaimReply(NamedTuple):
    """What the script `claim` returns; parts/claimed.lua and parts/fast_claim.lua write it."""

    word: bytes
    graph: bytes
    fingerprint: bytes
    shape: bytes
    record: bytes
    task: bytes
    invocation_state: bytes
    inputs: list[tuple[bytes, int, bytes]]
    questions: tuple[list[bytes], list[bytes], list[bytes | None]] | tuple[()]
    document: bytes | None
    messages: list[bytes]
    items: bytes | None
    report: bytes | None


def claimed(
    run_id: str, node: str, reply: list[Any], large: LargeValues, read: Callable[[str], RunSnapshot | None]
) -> Claim:
    """Build a claim. Its large values and the child run that the node waits for are read as well."""
    claim = ClaimReply(*reply)
    record, _ = encoding.node_record(claim.record)
    values = large.get(
        [claim.task, claim.invocation_state, claim.report, *(output for _, _, output in claim.inputs)]
    )
    task, state, report, *outputs = map(_load, values)
    return Claim(
        token=Token(run_id, node, record.visit, record.fence),
        graph_id=claim.graph.decode(),
        fingerprint=claim.fingerprint.decode(),
        signature=load(claim.shape)["signature"],
        record=record,
        task=task,
        invocation_state={} if claim.invocation_state is None else state,
        inputs=[
            (source.decode(), visit, output)
            for (source, visit, _), output in zip(claim.inputs, outputs, strict=True)
        ],
        answers=decided(*claim.questions) if claim.questions else [],
        document=load(claim.document) if claim.document else None,
        messages=[load(message) for message in claim.messages],
        child=read(record.child) if record.child else None,
        map=encoding.map_of_visit(claim.items, record.visit),
        report=report,
    )


def decided(
    ids: Sequence[bytes], questions: Sequence[bytes], decisions: Sequence[bytes | None]
) -> list[Interrupt]:
    asked = sorted(zip(ids, questions, decisions, strict=True), key=lambda each: question_number(each[1]))
    interrupts = [question(each.decode(), data, decision) for each, data, decision in asked]
    return [interrupt for interrupt in interrupts if not interrupt.is_open]


def fetched(values: Sequence[bytes], large: LargeValues) -> list[Fetched]:
    outputs = large.get(values[1::3])
    entries = large.get([entry and entry.partition(b" ")[2] for entry in values[2::3]])
    return [
        (encoding.node_record(record)[0], _load(output), _load(entry))
        for record, output, entry in zip(values[::3], outputs, entries, strict=True)
    ]


def _load(data: bytes | None) -> Any:
    return None if data is None else load(data)


# Records that replace a run's own: see parts/reopen.lua.


def fork_arguments(fork: Fork) -> Iterator[Argument]:
    start = fork.start
    yield from (start.run_id, start.graph_id, start.fingerprint or "")
    yield from (dump(start.task), dump(start.invocation_state), dump(dict(start.tags)))
    yield fork.source
    yield from record_arguments(fork.records)
    yield len(fork.results)
    for visit, place in fork.results.items():
        yield from (_visit(visit), place)
    yield len(fork.remembers)
    yield from fork.remembers
    if fork.visit is not None:
        yield from (*fork.visit, dump(fork.input))


def migration_arguments(move: Migration, put: Callable[[str, bytes], bytes]) -> Iterator[Argument]:
    """Write how a run continues in another shape, and under which names: see parts/moves.lua.

    `put` stores large values of a run apart.
    """
    yield from (move.run_id, move.events, move.fingerprint, move.graph_id, move.parent_node, move.path)
    yield from (move.started, dump(move.event_data))
    yield from record_arguments(move.records)
    yield len(move.undone)
    for visit, entry in move.undone.items():
        yield from (_visit(visit), dump(entry))
    yield len(move.forgets)
    yield from move.forgets
    yield len(move.renamed)
    for node in move.renamed:
        yield from (node.node, node.today, node.visit)
        yield b"" if node.document is None else dump(node.document)
        yield dump([node.visit, *node.decided]) if node.decided else b""
    yield len(move.visits)
    for old, new, changed in move.visits:
        yield from (_visit(old), _visit(new))
        yield b"" if changed is None else put(move.run_id, dump(changed))
    payloads: dict[str, JSON] = event_payloads.migration(move)
    yield len(move.moved)
    for old_id, moved in move.moved:
        yield from (old_id, moved.id, moved.node_id, moved.visit)
        yield from (question_document(as_asked(moved)), dump(payloads[moved.id]))
    yield len(move.withdrawn)
    for withdrawn in move.withdrawn:
        yield from withdrawn
    yield len(move.stops)
    yield from (child for _, child in move.stops)
    yield len(move.replacements)
    yield from (part for question in move.replacements for part in (question.node_id, question.visit))
    run = Token(move.run_id, "", 0, 0)
    yield from question_arguments(move.replacements, lambda token, value: put(token.run_id, dump(value)), run)


def record_arguments(records: Records) -> Iterator[Argument]:
    """Write all records of a run: counters, loops, arrivals, maps and nodes."""
    yield records.failed
    yield records.started
    yield len(records.loops)
    for number, loop in records.loops.items():
        yield from (number, loop_text(loop))
    yield len(records.arrivals)
    for (scope, node), arrivals in records.arrivals.items():
        yield from (f"a{scope}:{node}", dump([arrivals.stamp, arrivals.arrived, arrivals.live]))
    yield len(records.maps)
    for name, items in records.maps.items():
        yield from (name, map_text(items))
    yield len(records.nodes)
    for name, record in records.nodes.items():
        yield from (name, node_text(record, records.scopes.get(shape_name(name), ROOT)))


def _visit(visit: tuple[str, int]) -> str:
    return f"{visit[0]}.{visit[1]}"


def loop_text(record: LoopRecord) -> bytes:
    return dump({name: value for name, value in asdict(record).items() if value})


def map_text(record: MapRecord) -> str:
    """Write the record of a map's items as parts/maps.lua does."""
    return " ".join(str(int(count)) for count in astuple(record))


REST = {
    field.name: field.default
    for field in fields(NodeRecord)
    if field.name not in {"status", "visit", "attempt", "fence", "stamp", "edges", "nonce"}
}
"""What follows as an object in a node's text, where it is not this; see parts/records.lua."""

rest_of = operator.attrgetter(*REST)


def node_text(record: NodeRecord, scope: int) -> str:
    """Write a node's record as parts/records.lua does; `scope` is the innermost loop around the node."""
    pairs = zip(REST.items(), rest_of(record), strict=True)
    rest = {name: value for (name, default), value in pairs if value != default}
    if scope != ROOT:
        rest["scope"] = scope
    tail = dump(rest).decode() if rest else ""
    return (
        f"{record.status} {record.visit} {record.attempt} {record.fence} {record.stamp} "
        f"{record.edges or '-'} {record.nonce or '-'} {tail}"
    )
