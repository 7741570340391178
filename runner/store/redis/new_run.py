"""The first fields of a run, and its places in lists."""

from __future__ import annotations

from runner.records.run import RunRecord
from runner.records.size_limits import no_room
from runner.store.encoding import V, dump
from runner.store.interface import Start
from runner.store.redis.connection import Argument
from runner.store.redis.draft import Draft
from runner.store.redis.keys import idempotency_key, run_key, shape_key
from runner.store.redis.sizes import RUN_BYTES

FORM = f"{V} {'-' * 63}"
"""A value of more than 64 bytes makes the server keep the hash as a table: otherwise it searches through
hundreds of fields, one after another."""

USUAL = {"task": b"null", "state": b"{}", "tags": b"{}"}
"""What a run is most often is not stored, as texts that are empty are not."""


def write(draft: Draft, record: RunRecord, start: Start) -> None:
    """Write a run that has no nodes yet; its line is written when they are.

    Raises:
        PayloadTooLarge: it is larger than a run may be.
    """
    key, created = run_key(record.run_id), draft.moment(draft.reads.now)
    draft.new.add(key)
    idem = idempotency_key(record.graph_id, start.idempotency_key) if start.idempotency_key else ""
    values = {
        "task": _written(draft, start, start.task),
        "state": _written(draft, start, start.invocation_state),
        "tags": dump(dict(start.tags)),
    }
    texts = {
        "parent_node": record.parent_node,
        "root": record.root if record.root != record.run_id else "",
        "path": record.path,
        "idem": idem and draft.settings.prefix + idem,
        "on_end": record.on_end,
        "trace": record.trace,
        "requester": dump(dict(start.requester)).decode()
        if start.requester and not start.parent
        else "",
    }
    fields: dict[str, Argument] = {
        "v": FORM,
        "of": f"{record.fingerprint} {record.parent or '-'} {record.graph_id}",
        "created": created,
        **{name: value for name, value in values.items() if value != USUAL[name]},
        **{name: text for name, text in texts.items() if text},
    }
    for name, value in fields.items():
        draft.put(key, name, value)
    grow(draft, record, RUN_BYTES + sum(map(len, values.values())))
    if idem:
        draft.command("SET", idem, record.run_id)
    if record.parent:
        draft.command("RPUSH", f"{run_key(record.parent)}:c", record.run_id)
    lists = [
        f"{record.status}:{record.graph_id}",
        *(f"t:{tag}={value}" for tag, value in start.tags.items()),
    ]
    for name in lists:
        draft.command("ZADD", f"runs:{name}", created, record.run_id)
    use_shape(draft, record.fingerprint)


def use_shape(draft: Draft, fingerprint: str) -> None:
    """Count a run that uses a shape: it stays."""
    draft.command("HINCRBY", shape_key(fingerprint), "runs", 1)
    draft.command("PERSIST", shape_key(fingerprint))


def grow(draft: Draft, record: RunRecord, size: int) -> None:
    """Count bytes of a new run: at its root, or in its own field where it is one.

    Raises:
        PayloadTooLarge: there is no room for them.
    """
    if record.root != record.run_id:
        draft.grow(record.root, size)
        draft.bounded.add(record.root)
        return
    key = run_key(record.run_id)
    size += int(draft.peek(key, "size") or 0)
    if size > draft.settings.most():
        raise no_room(0, size, draft.settings.most())
    draft.put(key, "size", size)


def _written(draft: Draft, start: Start, value: object) -> bytes:
    """Write what a run is given; what is large lies with the root of a run that exists already."""
    return draft.written(start.parent.run_id, value) if start.parent else dump(value)
