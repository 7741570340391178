"""What a run takes over from the one that it is a fork of: results, and what nodes keep.

A large value lies with the root of its run: the fork gets one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.records.run import VisitKey
from runner.store.redis.draft import Draft
from runner.store.redis.keys import run_key
from runner.store.redis.large_values import MARK, referred, size_of
from runner.store.redis.sizes import MESSAGE_BYTES, VISIT_BYTES


def copy_results(draft: Draft, source: str, run_id: str, visits: Mapping[VisitKey, int]) -> int:
    """Copy results from the run with the key `source`, each to another place; return their bytes."""
    key, size = run_key(run_id), VISIT_BYTES * len(visits)
    names = [f"{node}.{number}" for node, number in visits]
    draft.reads.want(source, [f"{kind}:{name}" for name in names for kind in "xo"])
    for name, place in zip(names, visits.values(), strict=True):
        output = draft.peek(source, f"o:{name}")
        if output is not None:
            value, more = _own(draft, run_id, output)
            draft.put(key, f"o:{name}", value)
            size += more
        stored = draft.peek(source, f"x:{name}")
        if stored is not None:
            entry, more = _own(draft, run_id, stored.partition(b" ")[2])
            draft.put(key, f"x:{name}", b"%d %b" % (place, entry))
            size += more
    return size


def _own(draft: Draft, run_id: str, value: bytes) -> tuple[bytes, int]:
    """Return a value for another run, and how many bytes it is more with it."""
    if not value.startswith(MARK):
        return value, len(value)
    root, name = referred(value)
    data, own = draft.peek(run_key(root, ":b"), name), run_key(run_id, ":b")
    is_new = name not in draft.puts.get(own, {})
    if data is not None:
        draft.put(own, name, data)
    reference = MARK + f"{run_id} {name}".encode()
    return reference, len(reference) + (size_of(data) if data is not None and is_new else 0)


def copy_kept(draft: Draft, source: str, run_id: str, nodes: Iterable[str]) -> int:
    """Copy what nodes keep, their documents and messages; return the bytes."""
    key, nodes, size = run_key(run_id), list(nodes), 0
    draft.reads.want(source, [f"k:{node}" for node in nodes])
    draft.reads.want(f"{source}:m", [f"#{node}" for node in nodes])
    for node in nodes:
        # With these two its messages are as they were read, whatever the node does meanwhile.
        document = draft.get(source, f"k:{node}")
        # Of one byte it is no document, but says that the node has a task of its own.
        if document is None or len(document) == 1:
            continue
        draft.put(key, f"k:{node}", document)
        count = int(draft.get(f"{source}:m", f"#{node}") or 0)
        names = [f"{number}.{node}" for number in range(1, count + 1)]
        draft.reads.want(f"{source}:m", names)
        for name in names:
            message = draft.peek(f"{source}:m", name) or b""
            draft.put(f"{key}:m", name, message)
            size += MESSAGE_BYTES + len(message)
        if count:
            draft.put(f"{key}:m", f"#{node}", count)
        size += len(document)
    return size
