"""What a run that is migrated has under the old names of its nodes: it is put under those of today.

Two nodes may have exchanged their names: all is taken away before anything is put in its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.records.interrupts import Interrupt, InterruptStatus, as_asked
from runner.records.migration import Migration, Renamed
from runner.store.encoding import dump, map_record
from runner.store.redis.keys import run_key
from runner.store.redis.run_fields import question_document, question_fields
from runner.store.redis.transaction.questions import document
from runner.store.redis.transaction.write_set import WriteSet

Moved = tuple[str, str, bytes]
"""A field that gets a value: key, name and value."""


def rename(write_set: WriteSet, root: str, move: Migration) -> None:
    """Put results and what nodes keep under other names; `root` counts the bytes."""
    key = run_key(move.run_id)
    for name in move.forgets:
        write_set.drop(key, f"m:{name}")
    puts: list[Moved] = []
    for old, new, entry in move.visits:
        names = [f"{node}.{number}" for node, number in (old, new)]
        if entry is not None:
            place = (write_set.read_unvalidated(key, f"x:{names[0]}") or b"0 ").partition(b" ")[0]
            write_set.put(key, f"x:{names[0]}", place + b" " + write_set.encode(move.run_id, entry))
        puts += _take(
            write_set, key, [(f"{kind}:{names[0]}", f"{kind}:{names[1]}") for kind in "xo"]
        )
    for node in move.renamed:
        puts += _take_node(write_set, root, key, node)
    for where, name, value in puts:
        write_set.put(where, name, value)


def _take(write_set: WriteSet, key: str, names: Iterable[tuple[str, str]]) -> list[Moved]:
    """Take fields away that will have other names, those of them that there are."""
    names = list(names)
    write_set.read_set.want(key, [old for old, _ in names])
    values = [(old, new, write_set.read_unvalidated(key, old)) for old, new in names]
    for old, _, value in values:
        if value is not None:
            write_set.drop(key, old)
    return [(key, new, value) for _, new, value in values if value is not None]


def _take_node(write_set: WriteSet, root: str, key: str, node: Renamed) -> list[Moved]:
    old, new = node.node, node.today
    count = int(write_set.read_unvalidated(f"{key}:m", f"#{old}") or 0)
    numbers = [f"{number}." for number in range(1, count + 1)]
    puts = _take(write_set, f"{key}:m", [(each + old, each + new) for each in ("#", *numbers)])
    stored = write_set.read_unvalidated(key, f"k:{old}")
    text = b"" if node.document is None else dump(node.document)
    # Of one byte it is no document, but says that the node has a task of its own.
    write_set.add_size(
        root, len(text) - (len(stored) if stored is not None and len(stored) > 1 else 0)
    )
    write_set.drop(key, f"q:{old}")
    write_set.drop(key, f"k:{old}")
    if text or stored == b"1":
        puts.append((key, f"k:{new}", text or b"1"))
    if node.decided:
        puts.append((key, f"q:{new}", dump([node.visit, *node.decided])))
    items = write_set.read_unvalidated(key, f"m:{old}")
    total = map_record(items).total if items else 0
    puts += _take(
        write_set,
        f"{key}:f",
        [(f"{old}.{node.visit}.{index}", f"{new}.{node.visit}.{index}") for index in range(total)],
    )
    own = [(f"t:{old}.{node.visit}", f"t:{new}.{node.visit}"), (f"m:{old}", f"m:{new}")]
    return puts + _take(write_set, key, own)


def move_question(
    write_set: WriteSet, root: str, run_id: str, moved: tuple[str, Interrupt], number: str
) -> None:
    """Write a decided question under its new id, too.

    An answer to the old one gets the receipt of a decided one. `number` is that of its event.
    """
    key, (old_id, question) = run_key(run_id), moved
    asked, decided = (write_set.read(key, field) or b"" for field in question_fields(old_id))
    _, asked_at, expires, *_ = asked.partition(b"{")[0].decode().split()
    text, fields = question_document(as_asked(question)), question_fields(question.id)
    write_set.add_size(root, len(text) - len(document(write_set, key, question.id)))
    if question.status is InterruptStatus.WITHDRAWN and not decided.startswith(b"withdrawn"):
        decided = f"withdrawn {question.answered_at} 0 ".encode()
    write_set.put(key, fields[0], f"\1{number} {asked_at} {expires} ".encode() + text)
    write_set.put(key, fields[1], decided)
