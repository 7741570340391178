"""A new run: its first fields, its entries in lists, and a fork's copies of another run's results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.records.codec import LazyValue
from runner.records.run import RunRecord, VisitKey
from runner.records.size_limits import no_room
from runner.store.encoding import OF, V, dump
from runner.store.interface import Start
from runner.store.redis.connection import Argument
from runner.store.redis.keys import idempotency_key, run_key, shape_key
from runner.store.redis.large_values import MARK, referred, size_of
from runner.store.redis.sizes import MESSAGE_BYTES, RUN_BYTES, VISIT_BYTES
from runner.store.redis.transaction.sets import ADDED, CONSTANT, GUARDED, WriteSet

TABLE_MARKER = "-" * 63
"""The end of a value with more than 64 bytes, which makes the server keep the hash as a table: otherwise it
would search through hundreds of fields, one after another."""

DEFAULTS = {"task": b"null", "state": b"{}", "tags": b"{}"}
"""The most frequent values, which aren't stored; empty texts aren't stored either."""


def write(write_set: WriteSet, record: RunRecord, start: Start) -> None:
    """Write a run that has no nodes yet; its counters are written with its nodes.

    Raises:
        PayloadTooLarge: it is larger than a run may be.
    """
    key = run_key(record.run_id)
    created_at = write_set.time(write_set.read_set.now)
    write_set.new_keys.add(key)
    idem = (
        idempotency_key(record.graph_id, start.idempotency_key) if start.idempotency_key else ""
    )
    values = {
        "task": _encode(write_set, start, start.task),
        "state": _encode(write_set, start, start.invocation_state),
        "tags": dump(dict(start.tags)),
    }
    texts = {
        "parent_node": record.parent_node,
        "root": record.root if record.root != record.run_id else "",
        "path": record.path,
        "idem": idem and write_set.settings.prefix + idem,
        "on_end": record.on_end,
        "trace": record.trace,
        "requester": dump(dict(start.requester)).decode()
        if start.requester and not start.parent
        else "",
    }
    fields: dict[str, Argument] = {
        "v": f"\1{V} {write_set.time_within(write_set.read_set.now)} {TABLE_MARKER}",
        "of": OF.text(
            fingerprint=record.fingerprint, parent=record.parent or "-", graph=record.graph_id
        ),
        **{name: value for name, value in values.items() if value != DEFAULTS[name]},
        **{name: text for name, text in texts.items() if text},
    }
    for name, value in fields.items():
        write_set.put(key, name, value)
    add_size(write_set, record, RUN_BYTES + sum(map(len, values.values())))
    if idem:
        write_set.command("SET", idem, record.run_id)
    if record.parent:
        write_set.command("RPUSH", f"{run_key(record.parent)}:c", record.run_id)
    for name in [
        f"{record.status}:{record.graph_id}",
        *(f"t:{tag}={value}" for tag, value in start.tags.items()),
    ]:
        write_set.command("ZADD", f"runs:{name}", created_at, record.run_id)
    use_shape(write_set, record.fingerprint)


def replace_input(write_set: WriteSet, record: RunRecord, start: Start) -> None:
    """Replace the task, the state and the requester of a run without nodes by another start's.

    Raises:
        PayloadTooLarge: there is no room for them.
    """
    key = run_key(record.run_id)
    for name, value in (("task", start.task), ("state", start.invocation_state)):
        previous = write_set.read(key, name) or DEFAULTS[name]
        data = _encode(write_set, start, value)
        write_set.put(key, name, data)
        write_set.add_size(record.root, len(data) - len(previous))
    if start.requester:
        write_set.read(key, "requester")  # other starts may have joined it meanwhile
        write_set.put(key, "requester", dump(dict(start.requester)).decode())
    write_set.bounded_roots.add(record.root)


def use_shape(write_set: WriteSet, fingerprint: str) -> None:
    """Count a run that uses a shape, so that the shape stays."""
    write_set.command("HINCRBY", shape_key(fingerprint), "runs", 1)
    write_set.command("PERSIST", shape_key(fingerprint))


def add_size(write_set: WriteSet, record: RunRecord, size: int) -> None:
    """Count bytes of a new run: at its root, or in its own field if it is a root.

    Raises:
        PayloadTooLarge: there is no room for them.
    """
    if record.root != record.run_id:
        write_set.add_size(record.root, size)
        write_set.bounded_roots.add(record.root)
        return
    key = run_key(record.run_id)
    size += int(write_set.read_unvalidated(key, "size", ADDED) or 0)
    if size > write_set.settings.most():
        raise no_room(0, size, write_set.settings.most())
    write_set.put(key, "size", size)


def _encode(write_set: WriteSet, start: Start, value: object) -> bytes:
    """Encode a run's input; a child's large value is stored with its root, which exists already."""
    if start.parent is None:
        return dump(value)
    return write_set.encode(
        start.parent.run_id, value if isinstance(value, LazyValue) else dump(value)
    )


def copy_results(
    write_set: WriteSet, source: str, run_id: str, visits: Mapping[VisitKey, int]
) -> int:
    """Copy results from the run with the key `source`, each with its new number; return their size."""
    key = run_key(run_id)
    size = VISIT_BYTES * len(visits)
    names = [f"{node}.{number}" for node, number in visits]
    write_set.read_set.want(source, [f"{kind}:{name}" for name in names for kind in "xo"])
    for name, number in zip(names, visits.values(), strict=True):
        output = write_set.read_unvalidated(source, f"o:{name}", GUARDED)
        if output is not None:
            value, value_size = _copy_value(write_set, run_id, output)
            write_set.put(key, f"o:{name}", value)
            size += value_size
        numbered_entry = write_set.read_unvalidated(source, f"x:{name}", GUARDED)
        if numbered_entry is not None:
            entry, value_size = _copy_value(
                write_set, run_id, numbered_entry.partition(b" ")[2]
            )
            write_set.put(key, f"x:{name}", b"%d %b" % (number, entry))
            size += value_size
    return size


def _copy_value(write_set: WriteSet, run_id: str, value: bytes) -> tuple[bytes, int]:
    """Return a value for another run, and the bytes by which that run grows."""
    if not value.startswith(MARK):
        return value, len(value)
    root, name = referred(value)
    data = write_set.read_unvalidated(run_key(root, ":b"), name, CONSTANT)
    target = run_key(run_id, ":b")
    is_new = not write_set.changes_field(target, name)
    if data is not None:
        write_set.put(target, name, data)
    reference = MARK + f"{run_id} {name}".encode()
    return reference, len(reference) + (size_of(data) if data is not None and is_new else 0)


def copy_checkpoints(
    write_set: WriteSet, source: str, run_id: str, nodes: Iterable[str]
) -> int:
    """Copy the checkpoints of nodes, documents and messages; return their size."""
    key = run_key(run_id)
    nodes = list(nodes)
    size = 0
    write_set.read_set.want(source, [f"k:{node}" for node in nodes])
    write_set.read_set.want(f"{source}:m", [f"#{node}" for node in nodes])
    for node in nodes:
        # If these two fields hold, its messages are unchanged since the read, whatever the node does.
        document = write_set.read(source, f"k:{node}")
        # A single byte isn't a document: it marks a node with a task of its own.
        if document is None or len(document) == 1:
            continue
        write_set.put(key, f"k:{node}", document)
        count = int(write_set.read(f"{source}:m", f"#{node}") or 0)
        names = [f"{number}.{node}" for number in range(1, count + 1)]
        write_set.read_set.want(f"{source}:m", names)
        for name in names:
            message = write_set.read_unvalidated(f"{source}:m", name, GUARDED) or b""
            write_set.put(f"{key}:m", name, message)
            size += MESSAGE_BYTES + len(message)
        if count:
            write_set.put(f"{key}:m", f"#{node}", count)
        size += len(document)
    return size
