"""The schedules of a namespace: documents in the first partition, and a timer for each that is not paused.

A sweep takes the timer and moves it by a lease; whoever took it starts the run and sets the next time. Every
change compares the document with what was read, so that of two processes one changes it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from runner.errors import ConflictError, NotFoundError
from runner.records.schedules import Schedule
from runner.store.addresses import places
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import NAMESPACE, Keys

TIMER = "schedule|{}|"
"""The member of the timers that stands for a schedule."""

SOON = 1_000
"""Ms after which a schedule is looked at again whose run waits for another one to end."""


class Schedules:
    """Reads and changes schedules. Every method raises StoreError when Redis can't be reached."""

    def __init__(self, urls: str, namespace: str = NAMESPACE, partitions: int = 1) -> None:
        """Take the servers as RUNNER_REDIS_URL names them; nothing is connected yet."""
        place, self._keys = places(urls, partitions)[0], Keys(namespace)
        self._redis = RedisConnection(place.url, self._keys.prefix)

    def now(self) -> int:
        """Return the store's time in ms."""
        seconds, micros = self._redis.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def all(self) -> list[Schedule]:
        """List the schedules by their ids."""
        stored = self._redis.call("HGETALL", self._keys.schedules)
        documents = stored.values() if isinstance(stored, dict) else stored[1::2]
        return sorted((_read(document) for document in documents), key=lambda schedule: schedule.id)

    def get(self, schedule_id: str) -> Schedule:
        """Read a schedule.

        Raises:
            NotFoundError: there is none of that id.
        """
        document = self._redis.call("HGET", self._keys.schedules, schedule_id)
        if document is None:
            raise NotFoundError(f"there is no schedule {schedule_id!r:.80}.")
        return _read(document)

    def add(self, schedule: Schedule) -> None:
        """Store a new schedule.

        Raises:
            ConflictError: there is one of that id.
        """
        if not self._write(schedule.id, None, schedule):
            raise ConflictError(f"there is a schedule {schedule.id!r} already; nothing was changed.")

    def replace(self, before: Schedule, after: Schedule) -> bool:
        """Change a schedule; False where it is not what was read any more."""
        return self._write(before.id, before, after)

    def remove(self, schedule: Schedule) -> bool:
        """Delete a schedule; False where it is not what was read any more."""
        return self._write(schedule.id, schedule, None)

    def _write(self, schedule_id: str, before: Schedule | None, after: Schedule | None) -> bool:
        key, timer = self._keys.schedules, TIMER.format(schedule_id)
        # Repeated after a lost reply, it finds what it has written itself.
        same = {_text(before), _text(after)}
        soon = self.now() + SOON

        def write(pipe: Any) -> bool:
            present = pipe.hget(key, schedule_id) or b""
            if present.decode() not in same:
                return False
            pipe.multi()
            if after is None:
                pipe.hdel(key, schedule_id)
            else:
                pipe.hset(key, schedule_id, _text(after))
            if after is None or after.paused:
                pipe.zrem(self._keys.timers, timer)
            else:
                due = min(after.next_at, soon) if after.waiting_at else after.next_at
                pipe.zadd(self._keys.timers, {timer: due})
            return True

        with self._redis.translated():
            client = self._redis.client_of(key)
            return bool(client.transaction(write, key, value_from_callable=True))


def _text(schedule: Schedule | None) -> str:
    # Always the same text for the same schedule: it is compared.
    return "" if schedule is None else json.dumps(schedule.document(), sort_keys=True, ensure_ascii=False)


def _read(document: Any) -> Schedule:
    values = json.loads(document)
    return replace(Schedule(values["id"], values["graph"]), **values)
