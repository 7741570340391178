"""The checkpoint of a node: its document, and its messages, which are stored one by one.

`lua/save.lua` also writes it for a running visit: see
test_a_checkpoint_is_the_same_by_script_and_transaction.
"""

from __future__ import annotations

from runner.records.checkpoints import Saved, SessionUpdate
from runner.store.encoding import dump
from runner.store.redis.sizes import MESSAGE_BYTES
from runner.store.redis.transaction.sets import GUARDED, WriteSet


def keep(write_set: WriteSet, key: str, node: str, checkpoint: Saved) -> int:
    """Write a node's checkpoint in the run with the key; return the bytes by which the run grows."""
    field = f"k:{node}"
    messages = f"{key}:m"
    write_set.read_set.ask("HSTRLEN", key, field)
    had = int(write_set.read_unvalidated(messages, f"#{node}", GUARDED) or 0)
    dropped_numbers = range(checkpoint.keep + 1, had + 1)
    lengths = [
        ("HSTRLEN", key, field),
        *(("HSTRLEN", messages, f"{nth}.{node}") for nth in dropped_numbers),
    ]
    for command in lengths:
        write_set.read_set.ask(*command)
    document = dump(checkpoint.document)
    old_size, *freed_sizes = (int(write_set.read_set.reply(*command)) for command in lengths)
    # A single byte isn't a document: it marks a node with a task of its own.
    size = (
        len(document)
        - (old_size if old_size > 1 else 0)
        - sum(freed_sizes)
        - MESSAGE_BYTES * len(dropped_numbers)
    )
    count = min(had, checkpoint.keep)
    for message in map(dump, checkpoint.messages):
        count += 1
        size += MESSAGE_BYTES + len(message)
        write_set.put(messages, f"{count}.{node}", message)
    for nth in range(count + 1, had + 1):
        write_set.drop(messages, f"{nth}.{node}")
    if count or had:
        # Most nodes keep no messages, and need no key to say so.
        write_set.put(messages, f"#{node}", count)
    write_set.put(key, field, document)
    return size


def remember(write_set: WriteSet, key: str, node: str, session: SessionUpdate) -> None:
    """Add a visit's part to its session: its node's messages from `session.first` on, and values."""
    messages = f"{key}:m"
    session_messages = f"session:m:{session.session_id}"
    count = int(write_set.read_unvalidated(messages, f"#{node}", GUARDED) or 0)
    names = [f"{nth}.{node}" for nth in range(session.first + 1, count + 1)]
    write_set.read_set.want(messages, names)
    for name in names:
        write_set.command(
            "RPUSH",
            session_messages,
            write_set.read_unvalidated(messages, name, GUARDED) or b"",
        )
    values = f"session:s:{session.session_id}"
    for name, value in session.state.items():
        write_set.put(values, name, dump(value))
    for name in session.gone:
        write_set.drop(values, name)


def forget(write_set: WriteSet, key: str, node: str) -> int:
    """Delete a node's document and messages; return their size in bytes."""
    field = f"k:{node}"
    messages = f"{key}:m"
    write_set.read_set.ask("HSTRLEN", key, field)
    had = int(write_set.read_unvalidated(messages, f"#{node}", GUARDED) or 0)
    names = [f"{nth}.{node}" for nth in range(1, had + 1)]
    for name in names:
        write_set.read_set.ask("HSTRLEN", messages, name)
    size = MESSAGE_BYTES * had + sum(
        int(write_set.read_set.reply("HSTRLEN", messages, name)) for name in names
    )
    document = int(write_set.read_set.reply("HSTRLEN", key, field))
    for name in [*names, f"#{node}"]:
        write_set.drop(messages, name)
    write_set.drop(key, field)
    return size + (document if document > 1 else 0)
