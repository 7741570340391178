"""Moves fields of a migrated run from the old names of its nodes to the new ones.

Two nodes may have swapped names, so all fields are removed before any is written.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.records.interrupts import Interrupt, InterruptStatus, as_asked
from runner.records.migration import Migration, Renamed
from runner.store.encoding import (
    CHUNK,
    FUNCTION_ENTRY,
    compressed_question,
    dump,
    map_record,
    question_document,
    question_fields,
    short_id,
    split_question,
)
from runner.store.redis.keys import run_key
from runner.store.redis.transaction.questions import document
from runner.store.redis.transaction.sets import GUARDED, WriteSet

Moved = tuple[str, str, bytes]
"""A field that gets a value: key, name and value."""


def rename(write_set: WriteSet, root: str, move: Migration) -> None:
    """Move results and the nodes' own data to other names; `root` counts the bytes."""
    key = run_key(move.run_id)
    for name in move.forgets:
        write_set.drop(key, f"m:{name}")
    puts: list[Moved] = []
    for source, target, entry in move.visits:
        names = [f"{node}.{number}" for node, number in (source, target)]
        if entry is not None:
            order = (
                write_set.read_unvalidated(key, f"x:{names[0]}", GUARDED) or b"0 "
            ).partition(b" ")[0]
            text = dump(entry).removeprefix(FUNCTION_ENTRY)
            write_set.put(
                key, f"x:{names[0]}", order + b" " + write_set.encode(move.run_id, text)
            )
        puts += _take(
            write_set, key, [(f"{kind}:{names[0]}", f"{kind}:{names[1]}") for kind in "xo"]
        )
    for node in move.renamed:
        puts += _take_node(write_set, root, key, node)
    for where, name, value in puts:
        write_set.put(where, name, value)


def _take(write_set: WriteSet, key: str, names: Iterable[tuple[str, str]]) -> list[Moved]:
    """Remove existing fields that will get other names; return them under those names."""
    names = list(names)
    write_set.read_set.want(key, [source for source, _ in names])
    values = [
        (source, target, write_set.read_unvalidated(key, source, GUARDED))
        for source, target in names
    ]
    for source, _, value in values:
        if value is not None:
            write_set.drop(key, source)
    return [(key, target, value) for _, target, value in values if value is not None]


def _take_node(write_set: WriteSet, root: str, key: str, node: Renamed) -> list[Moved]:
    source = node.node
    target = node.today
    count = int(write_set.read_unvalidated(f"{key}:m", f"#{source}", GUARDED) or 0)
    numbers = [f"{number}." for number in range(1, count + 1)]
    puts = _take(
        write_set,
        f"{key}:m",
        [(prefix + source, prefix + target) for prefix in ("#", *numbers)],
    )
    document = write_set.read_unvalidated(key, f"k:{source}", GUARDED)
    text = b"" if node.document is None else dump(node.document)
    # A single byte isn't a document: it marks a node with a task of its own.
    write_set.add_size(
        root, len(text) - (len(document) if document is not None and len(document) > 1 else 0)
    )
    write_set.drop(key, f"q:{source}")
    write_set.drop(key, f"k:{source}")
    if text or document == b"1":
        puts.append((key, f"k:{target}", text or b"1"))
    if node.decided:
        puts.append((key, f"q:{target}", dump([node.visit, *map(short_id, node.decided)])))
    items = write_set.read_unvalidated(key, f"m:{source}", GUARDED)
    total = map_record(items).total if items else 0
    puts += _take(
        write_set,
        f"{key}:f",
        [
            (f"{source}.{node.visit}.{index}", f"{target}.{node.visit}.{index}")
            for index in (
                *range(total),
                *(f"#{number}" for number in range(total // CHUNK + 1)),
            )
        ],
    )
    names = [
        (f"t:{source}.{node.visit}", f"t:{target}.{node.visit}"),
        (f"m:{source}", f"m:{target}"),
    ]
    return puts + _take(write_set, key, names)


def move_question(
    write_set: WriteSet, root: str, run_id: str, renaming: tuple[str, Interrupt], number: str
) -> None:
    """Also write a decided question under its new id; `number` is its event's number.

    An answer to the old id gets the receipt for a decided question.
    """
    key, (old_id, question) = run_key(run_id), renaming
    asked_text, decision = (
        write_set.read(key, field) or b"" for field in question_fields(old_id)
    )
    _, asked_at, expires, *_ = split_question(asked_text)[0].decode().split()
    text = question_document(as_asked(question))
    fields = question_fields(question.id)
    write_set.add_size(root, len(text) - len(document(write_set, key, question.id)))
    if question.status is InterruptStatus.WITHDRAWN and not decision.startswith(b"withdrawn"):
        decision = f"withdrawn {question.answered_at} 0 ".encode()
    write_set.put(
        key, fields[0], f"\1{number} {asked_at} {expires} ".encode() + compressed_question(text)
    )
    write_set.put(key, fields[1], decision)
