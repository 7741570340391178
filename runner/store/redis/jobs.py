"""The jobs of a namespace: a hash for each in the first partition, and a timer while it has not ended.

The process that works on a job moves its timer by a lease with each result, so that a sweep continues a job
that its process has left.
"""

from __future__ import annotations

import json

from runner.errors import NotFoundError
from runner.records.jobs import Job
from runner.store.addresses import NAMESPACE
from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import Keys

TIMER = "job|{}|"

LEASE, KEPT = 30_000, 7 * 86_400_000
"""Ms after which another process continues a job that gets no results, and ms for which a job is kept."""

HEAD, ENDED, RESULT = "job", "ended", "="
"""Fields of a job; a run's result has the run's id after the third."""


class Jobs:
    """Reads and writes jobs. Every method raises StoreError when Redis can't be reached."""

    def __init__(self, place: str | RedisConnection, namespace: str = NAMESPACE) -> None:
        """Take the first server's URL or connection; nothing is connected yet."""
        self._keys = Keys(namespace)
        self._redis = connected(place, self._keys.prefix)

    def now(self) -> int:
        """Return the store's time in ms."""
        return self._redis.now()

    def add(self, job: Job) -> None:
        """Store a new job."""
        head = {
            name: getattr(job, name)
            for name in ("action", "reason", "by", "created_at", "run_ids")
        }
        self._write(job.job_id, HEAD, json.dumps(head), due=self.now() + LEASE)

    def get(self, job_id: str) -> Job:
        """Read a job.

        Raises:
            NotFoundError: no job has that id.
        """
        fields = self._redis.texts(self._keys.job(job_id))
        if HEAD not in fields:
            raise NotFoundError(f"there is no job {job_id!r:.80}; one is kept for seven days.")
        head = json.loads(fields.pop(HEAD))
        ended = int(fields.pop(ENDED, 0))
        results = {name.removeprefix(RESULT): result for name, result in fields.items()}
        return Job(job_id, **head, results=results, ended_at=ended)

    def record(self, job_id: str, run_id: str, result: str) -> None:
        """Record a run's result, unless it has one, and extend the job's lease."""
        self._write(job_id, RESULT + run_id, result, due=self.now() + LEASE)

    def leave(self, job_id: str) -> None:
        """Let the next sweep continue the job."""
        self._redis.call("ZADD", self._keys.timers, self.now(), TIMER.format(job_id))

    def end(self, job_id: str) -> None:
        """Record that all runs have their results."""
        self._write(job_id, ENDED, str(self.now()), due=0)

    def forget(self, job_id: str) -> None:
        """Stop continuing a job that is no longer kept."""
        self._redis.call("ZREM", self._keys.timers, TIMER.format(job_id))

    def _write(self, job_id: str, field: str, value: str, *, due: int) -> None:
        key = self._keys.job(job_id)
        timer = TIMER.format(job_id)
        with self._redis.translated(), self._redis.client_of(key).pipeline() as pipe:
            pipe.hsetnx(key, field, value)
            pipe.pexpire(key, KEPT)
            if due:
                pipe.zadd(self._keys.timers, {timer: due})
            else:
                pipe.zrem(self._keys.timers, timer)
            pipe.execute()
