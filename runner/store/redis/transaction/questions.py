"""Questions to people in a transaction: opened, closed and reminded, with the lists of open ones.

The field i:<id> of the run holds the question as it was asked, d:<id> the decision.
"""

from __future__ import annotations

import functools

from runner.definition.model import map_of
from runner.errors import CorruptDocument
from runner.records import codec, interrupts
from runner.records.codec import JSONMapping
from runner.records.interrupts import (
    SEPARATOR,
    Interrupt,
    address_of,
    as_asked,
    route,
    selectors_of,
    tool_of,
)
from runner.records.run import RunRecord, outermost
from runner.store import encoding
from runner.store.encoding import (
    compressed_question,
    dump,
    load,
    question_document,
    question_fields,
    short_id,
    split_question,
)
from runner.store.redis.keys import run_key
from runner.store.redis.transaction import early_answers
from runner.store.redis.transaction.sets import EITHER, GUARDED, WriteSet

_decoded = functools.lru_cache(32)(encoding.question)
"""Decodes a stored question once: several steps of one decision read the same one."""


def status(write_set: WriteSet, key: str, interrupt_id: str) -> str:
    """Return "" for a question that was never asked, otherwise open, answered, expired or withdrawn."""
    asked_text, decision = _read(write_set, key, interrupt_id)
    if decision:
        return decision.partition(b" ")[0].decode()
    return "" if asked_text is None else "open"


def question(write_set: WriteSet, key: str, interrupt_id: str) -> Interrupt | None:
    asked_text, decision = _read(write_set, key, interrupt_id)
    return _decoded(interrupt_id, asked_text, decision) if asked_text else None


def _read(
    write_set: WriteSet, key: str, interrupt_id: str
) -> tuple[bytes | None, bytes | None]:
    asked_field, decision_field = question_fields(interrupt_id)
    write_set.read_set.want(key, (asked_field, decision_field))
    return write_set.read_document(key, asked_field), write_set.read(key, decision_field)


def document(write_set: WriteSet, key: str, interrupt_id: str) -> bytes:
    """Return a question as it was asked (JSON)."""
    asked_field, _ = question_fields(interrupt_id)
    _, text = split_question(write_set.read_unvalidated(key, asked_field, EITHER) or b"")
    return text


def votes_field(interrupt_id: str, whose: str = "") -> str:
    """Name a run's field for a question: the standing of its votes, or with `whose` a vote by its number or
    a voter's record.
    """
    name = interrupt_id.partition(SEPARATOR)[2]
    return f"v:{name}|{whose}" if whose else f"v:{name}"


def open_question(write_set: WriteSet, run: RunRecord, question: Interrupt) -> None:
    """Write a question, whose event comes next."""
    key = run_key(run.run_id)
    name = question.id
    text = question_document(as_asked(question))
    # If a migration gives a node its old name back, it asks its old question again.
    asked_field, decision_field = question_fields(name)
    old_text = write_set.read_unvalidated(key, asked_field, GUARDED)
    write_set.add_size(
        run.root, len(text) - (len(split_question(old_text)[1]) if old_text else 0)
    )
    if route(question):
        # The output at its expiry may be large: it is stored now, while there is room for it.
        write_set.encode(run.run_id, dump(interrupts.expired_output(question)))
    lifetime = question.expires_in
    asked_at = question.asked_at
    expires = "0"
    if lifetime is not None:
        expires = write_set.time_within(asked_at + max(1, round(lifetime * 1000)))
    # New fields are written first: see the end of lua/commit.lua.
    field = f"q:{question.node_id}"
    visit, *names = load(write_set.read(key, field) or dump([question.visit]))
    ids = map(short_id, names if visit == question.visit else ())
    write_set.put(key, field, dump([question.visit, *dict.fromkeys([*ids, short_id(name)])]))
    head = f"\1{write_set.counters(run.run_id).event_number()} {write_set.time_within(asked_at)} {expires} "
    write_set.put(key, asked_field, head.encode() + compressed_question(text))
    # This document has more than 64 bytes: the hash stays a table without a longer `v`.
    write_set.put(
        key, "v", (write_set.read_unvalidated(key, "v", EITHER) or b"").split(b" -")[0]
    )
    write_set.drop(key, decision_field)
    for list_name in _lists(run, name, load(text)):
        write_set.command("ZADD", f"open:{list_name}", write_set.time(asked_at), name)
        if lifetime is not None:
            write_set.command(
                "ZADD", f"open:due:{list_name}", write_set.time(question.ends_at), name
            )
    early_answers.hand_back(write_set, run.run_id, name)


def _lists(run: RunRecord, interrupt_id: str, asked_question: JSONMapping) -> list[str]:
    """Name the lists of open questions that include one: by graph, family of runs, person, tool and risk.

    Questions of an outermost run's nodes, except items of maps, aren't listed by family: the run has them.
    """
    address = address_of(interrupt_id)
    lists = [f"g:{outermost(run.graph_id)}"]
    if run.parent or (address and map_of(address.node_id)):
        lists.append(f"r:{run.root}")
    lists += [f"a:{person}" for person in dict.fromkeys(asked_question["assignees"])]
    lists += [f"s:{form}" for form in selectors_of(asked_question.get("rule"))]
    optional_lists = (
        ("t", tool_of(asked_question.get("action"))),
        ("k", asked_question.get("risk")),
    )
    return lists + [f"{kind}:{name}" for kind, name in optional_lists if name]


def close(write_set: WriteSet, run: RunRecord, interrupt_id: str, decision: bytes) -> None:
    """Write the decision, and take the question off the lists of open ones, except its graph's list."""
    key = run_key(run.run_id)
    asked_field, decision_field = question_fields(interrupt_id)
    write_set.put(key, decision_field, decision)
    data = write_set.read_unvalidated(key, asked_field, EITHER) or b""
    if write_set.read_set.is_incomplete:
        return  # its document is read later, in one request with the other questions' documents
    try:
        asked_question = load(split_question(data)[1])
    except (CorruptDocument, *codec.READ_ERRORS):
        # A damaged question must not block its run's cancellation. It stays on the lists that its text would
        # name, and readers skip it.
        asked_question = {"assignees": (), "expires_in": True}
    of_graph, *lists = _lists(run, interrupt_id, asked_question)
    write_set.command(
        "ZADD", f"open:{of_graph}", -int(decision.split(b" ", 2)[1]), interrupt_id
    )
    for name in (f"due:{of_graph}", *(f"due:{name}" for name in lists), *lists):
        if asked_question.get("expires_in") or not name.startswith("due:"):
            write_set.command("ZREM", f"open:{name}", interrupt_id)


def forget_closed(write_set: WriteSet, graph_id: str) -> None:
    """Remove closed questions that are older than the retention from their graph's list."""
    until = write_set.settings.retention_ms - write_set.read_set.now
    write_set.command("ZREMRANGEBYSCORE", f"open:g:{outermost(graph_id)}", f"({until}", "(0")


def assign(write_set: WriteSet, key: str, interrupt_id: str, person: str) -> int:
    """Also list a question among a person's questions; return the bytes by which it grows."""
    field, _ = question_fields(interrupt_id)
    head, text = split_question(write_set.read(key, field) or b"")
    document = load(text)
    if person in document["assignees"]:
        return 0
    _, asked_at, expires, *_ = head.split()
    new_text = dump({**document, "assignees": [*document["assignees"], person]})
    write_set.put(key, field, head + compressed_question(new_text))
    write_set.command("ZADD", f"open:a:{person}", asked_at, interrupt_id)
    if expires != b"0":
        write_set.command("ZADD", f"open:due:a:{person}", expires, interrupt_id)
    return len(new_text) - len(text)


def remind(write_set: WriteSet, key: str, interrupt_id: str) -> int:
    """Count one more reminder of a question; return the new count."""
    field, _ = question_fields(interrupt_id)
    stored = write_set.read(key, field) or b""
    head, _ = split_question(stored)
    number, asked_at, expires, *reminders = head.decode().split()
    count = int(reminders[0]) + 1 if reminders else 1
    new_head = f"{number} {asked_at} {expires} {count} ".encode()
    write_set.put(key, field, new_head + stored[len(head) :])
    return count
