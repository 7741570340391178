"""Reading runs, questions and events from Redis, without changing anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.interrupts import Interrupt, address_of
from runner.outcomes import Session
from runner.ports import Event, RunSnapshot
from runner.run import NodeRecord, RunRecord
from runner.store import layout, questions
from runner.store.blobs import Blobs
from runner.store.keys import Keys
from runner.store.link import TIMEOUT, Link

JSON = Any

RECORD = (
    b"v",
    b"run",
    b"of",
    b"reason",
    b"lock",
    b"parent_node",
    b"root",
    b"path",
    b"on_end",
    b"ends",
    b"untold",
)

LONGEST_BLOCK = TIMEOUT / 2
"""Seconds of one blocking read: it must end before the connection counts as dead."""


class Reader:
    """Reads one partition."""

    def __init__(self, link: Link, keys: Keys, blobs: Blobs) -> None:
        self._link, self._keys, self._blobs = link, keys, blobs

    def graphs(self) -> dict[str, str]:
        """Return the fingerprint of every known graph, by name."""
        with self._link.translated():
            found: dict[bytes, bytes] = self._link.client.hgetall(self._keys.graphs)
        return _texts(found)

    def peek(self, run_id: str) -> RunRecord | None:
        """Read a run's own fields."""
        with self._link.translated():
            found: list[bytes | None] = self._link.client.hmget(self._keys.run(run_id), RECORD)
        fields = {name: value for name, value in zip(RECORD, found, strict=True) if value is not None}
        return layout.run_record(run_id, fields) if fields else None

    def read(self, run_id: str) -> RunSnapshot | None:
        """Read a whole run as it is at one moment."""
        with self._link.translated(), self._link.client.pipeline(transaction=True) as pipe:
            for part in ("", ":m", ":i", ":d"):
                pipe.hgetall(self._keys.run(run_id, part))
            own, messages, asked, decided = pipe.execute()
        if not own:
            return None
        own = self._blobs.whole(own)
        outputs, entries, order = layout.results(own)
        return RunSnapshot(
            record=layout.run_record(run_id, own),
            nodes=_nodes(own),
            task=layout.load(own[b"task"]),
            given=layout.load(own[b"given"]),
            tags=layout.load(own[b"tags"]),
            created_at=int(own[b"created"]),
            ended_at=int(own.get(b"ended", 0)),
            order=order,
            outputs=outputs,
            entries=entries,
            interrupts=tuple(
                questions.question(asked[each], decided.get(each))
                for each in sorted(asked, key=lambda each: questions.question_number(asked[each]))
            ),
            messages=_messages(messages),
            maps={
                field[2:].decode(): layout.map_record(value)
                for field, value in own.items()
                if field.startswith(b"m:")
            },
            events=int(own[b"run"].split(b" ")[6]),
            # One that an older release began may count less than nothing.
            size=max(0, int(own.get(b"size", 0))),
        )

    def shape(self, fingerprint: str) -> dict[bytes, bytes]:
        """Read the fields of a graph's shape; none when it is gone."""
        with self._link.translated():
            found: dict[bytes, bytes] = self._link.client.hgetall(self._keys.shape(fingerprint))
        return found if b"meta" in found else {}

    def documents(self, run_id: str) -> dict[str, JSON]:
        """Read what the nodes of a run keep to go on with."""
        with self._link.translated():
            found: dict[bytes, bytes] = self._link.client.hgetall(self._keys.run(run_id, ":s"))
        return {name.decode(): layout.load(value) for name, value in found.items()}

    def session(self, session_id: str) -> Session:
        """Read a session as it is at one moment."""
        messages, state = self._keys.session(session_id)
        with self._link.translated(), self._link.client.pipeline(transaction=True) as pipe:
            said, values = pipe.lrange(messages, 0, -1).hgetall(state).execute()
        return Session(
            [layout.load(message) for message in said],
            {name.decode(): layout.load(value) for name, value in values.items()},
        )

    def standing(self, ids: Sequence[str]) -> tuple[list[Interrupt | None], dict[str, str], int]:
        """Read questions, the nonces that won them, and the server's time in ms."""
        addresses = [address_of(each) for each in ids]
        with self._link.translated(), self._link.client.pipeline(transaction=False) as pipe:
            pipe.time()
            for each, address in zip(ids, addresses, strict=True):
                run_id = address.run_id if address else ""
                pipe.hget(self._keys.run(run_id, ":i"), each)
                pipe.hget(self._keys.run(run_id, ":d"), each)
            (seconds, micros), *read = pipe.execute()
        pairs = list(zip(read[::2], read[1::2], strict=True))
        found = [questions.question(asked, decided) if asked else None for asked, decided in pairs]
        winners = {each: questions.winner(decided) for each, (_, decided) in zip(ids, pairs, strict=True)}
        return found, winners, seconds * 1000 + micros // 1000

    def children(self, run_id: str) -> list[str]:
        """Name the child runs of a run, oldest first."""
        with self._link.translated():
            found: list[bytes] = self._link.client.lrange(self._keys.run(run_id, ":c"), 0, -1)
        return [each.decode() for each in found]

    def events(self, run_id: str, after: str, limit: int, wait: float) -> list[Event]:
        """Read events after a position, waiting up to so many seconds for the first."""
        found = self.stream(
            self._keys.run(run_id, ":e"),
            f"{after or 0}-0",
            limit,
            wait,
            worth_waiting=lambda: bool(self._link.client.exists(self._keys.run(run_id))),
        )
        return [layout.event(position, fields) for position, fields in found]

    def stream(
        self,
        key: str,
        after: str,
        limit: int,
        wait: float,
        *,
        worth_waiting: Callable[[], bool] = lambda: True,
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Read a stream; a wait is cut into short blocking reads, on a connection of their own."""
        deadline = time.monotonic() + wait
        with self._link.translated():
            found = self._link.client.xread({key: after}, count=limit)
            while not found and worth_waiting() and (left := deadline - time.monotonic()) > 0:
                block = max(1, round(min(left, LONGEST_BLOCK) * 1000))
                found = self._link.client.xread({key: after}, count=limit, block=block)
        return list(found[0][1]) if found else []


def _texts(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}


def _nodes(own: Mapping[bytes, bytes]) -> dict[str, NodeRecord]:
    rounds = {
        int(field[2:]): layout.load(value).get("round", 0)
        for field, value in own.items()
        if field.startswith(b"l:")
    }
    nodes = {}
    for field, value in own.items():
        if field.startswith(b"n:"):
            record, scope = layout.node_record(value)
            nodes[field[2:].decode()] = layout.in_round(record, rounds.get(scope, 0))
    return nodes


def _messages(found: Mapping[bytes, bytes]) -> dict[str, list[JSON]]:
    counts = {field[1:]: int(count) for field, count in found.items() if field.startswith(b"#")}
    return {
        name.decode(): [layout.load(found[b"%d.%s" % (number, name)]) for number in range(1, count + 1)]
        for name, count in counts.items()
    }
