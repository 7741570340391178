"""What is known of a Redis server and of the store on it, for `runner doctor` and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import StoreError
from runner.records.listings import InterruptQuery, RunQuery
from runner.store.redis import measurements
from runner.store.redis.connection import RedisConnection
from runner.store.redis.durability import incapable
from runner.store.redis.keys import NAMESPACE, STATUSES, Keys
from runner.store.redis.workers import WorkerRegistry


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server. `now` is its time in ms; memory is in bytes, `memory_limit` 0 without a limit.

    `overdue` is for how many ms the oldest timer has waited for a sweep. `fsync` is "always", "everysec"
    or "no", and "" where the server hides it, as some hosted ones do. `unable` is why it can't wait for
    its disk; with fewer than `least_replicas` it refuses writes, None where it hides that.
    `failing` are some runs whose timers fail. `unarchived` ended runs wait for the archive, of
    which `archive` has what workers last recorded: `place`, `at` (ms) and `problem`.
    """

    server: str
    version: tuple[int, int]
    now: int
    policy: str
    appendonly: bool
    memory: int
    memory_limit: int
    overdue: int
    fsync: str = ""
    unable: str = ""
    replicas: int = 0
    least_replicas: int | None = None
    failing: Sequence[str] = ()
    archive: Mapping[str, str] = field(default_factory=dict)
    unarchived: int = 0

    @property
    def forgets(self) -> bool:
        """Whether the server may evict waiting runs when memory is full."""
        return self.policy.startswith("allkeys")


def read_server_info(url: str, namespace: str = NAMESPACE) -> ServerInfo:
    """Read what a server reports of itself.

    Raises:
        StoreError: it can't be reached.
    """
    connection, keys = RedisConnection(url), Keys(namespace)
    try:
        info = _info(connection.call("INFO"))
        seconds, micros = connection.call("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        fsync, least = _setting(connection, "appendfsync"), _setting(connection, "min-replicas-to-write")
        failing = connection.call("HRANDFIELD", keys.failing, 10)
        oldest = connection.call("ZRANGE", keys.timers, 0, 0, "WITHSCORES")
        archive = [bytes(part).decode() for part in connection.call("HGETALL", keys.archive)]
        unarchived = int(connection.call("ZCARD", keys.unarchived))
    finally:
        connection.close()
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "0.0")
    major, minor = (int(part) for part in (version + ".0").split(".")[:2])
    return ServerInfo(
        server=f"{name} {version}",
        version=(major, minor),
        now=now,
        policy=info.get("maxmemory_policy", ""),
        appendonly=info.get("aof_enabled") == "1",
        memory=int(info.get("used_memory", 0)),
        memory_limit=int(info.get("maxmemory", 0)),
        overdue=max(0, now - int(float(oldest[1]))) if oldest else 0,
        fsync=fsync,
        unable=incapable(info),
        replicas=int(info.get("connected_slaves", 0)),
        least_replicas=int(least) if least else None,
        archive=dict(zip(archive[::2], archive[1::2], strict=True)),
        unarchived=unarchived,
        failing=sorted({bytes(member).decode().split("|")[1] for member in failing}),
    )


def _setting(connection: RedisConnection, name: str) -> str:
    try:
        pair = connection.call("CONFIG", "GET", name)
    except StoreError:
        return ""
    return bytes(pair[1]).decode() if pair else ""


def _info(text: Any) -> dict[str, str]:
    lines = bytes(text).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


# Numbers about a store, for Prometheus: cheap commands, however many runs there are.


@dataclass(frozen=True, slots=True)
class Metric:
    """One number; its labels have few values and never name a run.

    `family` is the histogram that it is a part of; a number without one is a gauge.
    """

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    family: str = ""


def read_metrics(url: str, namespace: str = NAMESPACE) -> list[Metric]:
    """Read all numbers.

    Raises:
        StoreError: the store can't be reached.
    """
    connection, roster, keys = RedisConnection(url), WorkerRegistry(url, namespace), Keys(namespace)
    try:
        now = roster.now()
        graphs = [name.decode() for name in connection.call("HKEYS", keys.graphs)]
        return [
            *_runs(connection, keys, graphs),
            *_questions(connection, keys, graphs, now),
            *_rest(connection, keys, now),
            *_workers(roster, now),
            *_histograms(connection, keys),
        ]
    finally:
        connection.close()
        roster.close()


def _runs(connection: RedisConnection, keys: Keys, graphs: Sequence[str]) -> Iterator[Metric]:
    for status in STATUSES:
        indexes, *_ = keys.runs(RunQuery(status), graphs)
        count = sum(connection.call("ZCARD", index) for index in indexes)
        yield Metric("runner_runs", "Runs that are kept, by status.", count, {"status": str(status)})


def _questions(connection: RedisConnection, keys: Keys, graphs: Sequence[str], now: int) -> Iterator[Metric]:
    indexes, *_ = keys.questions(InterruptQuery(), "", graphs)
    first = [connection.call("ZRANGE", index, 0, 0, "WITHSCORES") for index in indexes]
    asked = min((float(oldest[1]) for oldest in first if oldest), default=now)
    age = max(0.0, now - asked) / 1000
    count = sum(connection.call("ZCARD", index) for index in indexes)
    yield Metric("runner_questions_open", "Questions that wait for people.", count)
    yield Metric("runner_question_oldest_seconds", "For how long the oldest open question waits.", age)


def _rest(connection: RedisConnection, keys: Keys, now: int) -> Iterator[Metric]:
    due = connection.call("ZRANGE", keys.timers, 0, 0, "WITHSCORES")
    late = max(0.0, now - float(due[1])) / 1000 if due else 0.0
    yield Metric("runner_sweep_late_seconds", "For how long something that is due was not swept.", late)
    unarchived = int(connection.call("ZCARD", keys.unarchived))
    yield Metric("runner_runs_unarchived", "Ended runs that wait for the archive.", unarchived)
    fails = bool(connection.call("HGET", keys.archive, "problem"))
    yield Metric("runner_archive_failing", "1 while the last write to the archive failed.", int(fails))
    for kind, stream in (("message", keys.dead_messages), ("node", keys.dead)):
        count = int(connection.call("XLEN", stream))
        yield Metric("runner_dead_letters", "Dead letters, by kind.", count, {"kind": kind})
    for door, stream in (("responses", keys.responses), ("starts", keys.starts)):
        count = int(connection.call("XLEN", stream))
        yield Metric("runner_messages_pending", "Messages not applied yet.", count, {"stream": door})


def _workers(roster: WorkerRegistry, now: int) -> Iterator[Metric]:
    alive = [worker for worker in roster.all() if worker.alive(now)]
    yield Metric("runner_workers", "Workers that gave a sign of life lately.", len(alive))
    yield Metric("runner_slots", "Nodes that can run at once.", sum(worker.slots for worker in alive))
    yield Metric("runner_slots_busy", "Nodes that run now.", sum(worker.busy for worker in alive))


def _histograms(connection: RedisConnection, keys: Keys) -> Iterator[Metric]:
    pairs = connection.call("HGETALL", keys.metrics)
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    for name, suffix, value, labels in measurements.histograms(fields):
        yield Metric(f"{name}{suffix}", measurements.HELP[name], value, labels, family=name)
