"""Facts about a Redis server and the store on it, for `runner doctor` and for Prometheus."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from runner.definition.model import map_of
from runner.errors import StoreError
from runner.immutable import immutable
from runner.limits.fairness import FairKey
from runner.limits.limit import name_of
from runner.limits.setting import LimitKey, LimitSetting
from runner.records.listings import InterruptQuery, RunQuery
from runner.records.metrics import Metric
from runner.records.run import Status, outermost
from runner.records.workers import Worker
from runner.scheduler.changes import MAX_REDISPATCH_MS
from runner.store import encoding
from runner.store.addresses import NAMESPACE
from runner.store.redis import measurements
from runner.store.redis.connection import (
    HOME,
    RedisConnection,
    mapping_of,
    pairs,
    partitions_at,
)
from runner.store.redis.durability import incapable
from runner.store.redis.keys import LIMITS, PARTITION, STATUSES, Keys, node_of, queued_index
from runner.store.redis.queued_nodes import graphs_by_queue, queued_nodes
from runner.store.redis.workers import WorkerRegistry


@immutable
class ServerInfo:
    """One server. `now` is its time in ms; memory is in bytes, `memory_limit` 0 without a limit.

    `overdue` is the ms that the oldest timer has waited for a sweep. `fsync` is "always", "everysec" or "no",
    or "" if the server hides it, as some hosted ones do. `unable` says why it can't wait for its disk. With
    fewer than `least_replicas` it refuses writes; None if it hides that. `failing` lists some runs whose
    timers fail. `unarchived` ended runs wait for the archive; `archive` has the last record of the workers:
    `place`, `at` (ms) and `problem`. `role` is "master", or "slave" for a replica. `refused` is why it
    refuses writes for want of a disk, or "".
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
    role: str = ""
    refused: str = ""

    @property
    def forgets(self) -> bool:
        """Return whether the server may evict waiting runs when memory is full."""
        return self.policy.startswith("allkeys")


def read_server_info(
    url: str,
    namespace: str = NAMESPACE,
    partitions: Sequence[str] = (PARTITION,),
    home: str = HOME,
) -> ServerInfo:
    """Read a server's report about itself, and the timers of its partitions.

    In a cluster it asks the server that has the key `home`.

    Raises:
        StoreError: it can't be reached.
    """
    connection = RedisConnection(url, home)
    try:
        info = _info(connection.call("INFO"))
        now = connection.now()
        refused = _refused(connection)
        fsync = _setting(connection, "appendfsync")
        least = _setting(connection, "min-replicas-to-write")
        failing: list[bytes] = []
        oldest: list[float] = [now]
        archive: dict[str, str] = {}
        unarchived = 0
        for keys in (Keys(namespace, partition) for partition in partitions):
            failing += connection.call("HRANDFIELD", keys.failing, 10)
            oldest += map(float, connection.call("ZRANGE", keys.timers, 0, 0, "WITHSCORES")[1:])
            archive |= connection.texts(keys.archive)
            unarchived += int(connection.call("ZCARD", keys.unarchived))
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
        overdue=now - int(min(oldest)),
        fsync=fsync,
        unable=incapable(info),
        replicas=int(info.get("connected_slaves", 0)),
        least_replicas=int(least) if least else None,
        archive=archive,
        unarchived=unarchived,
        role=info.get("role", ""),
        refused=refused,
        failing=sorted({member.decode().split("|")[1] for member in failing}),
    )


def read_servers(
    url: str, namespace: str, partitions: Sequence[str] = (PARTITION,)
) -> Iterator[tuple[str, ServerInfo]]:
    """Read the name and report of each server of a URL; the first report has the timers.

    Raises:
        StoreError: a server can't be reached.
    """
    connection = RedisConnection(url)
    try:
        homes = connection.homes()
    finally:
        connection.close()
    for number, (name, home) in enumerate(homes.items()):
        yield name, read_server_info(url, namespace, () if number else partitions, home)


def _refused(connection: RedisConnection) -> str:
    try:
        connection.call("PING")  # a full disk refuses it, too
    except StoreError as error:
        return str(error) if "MISCONF" in str(error) else ""
    return ""


def _setting(connection: RedisConnection, name: str) -> str:
    try:
        pair = connection.call("CONFIG", "GET", name)
    except StoreError:
        return ""
    return bytes(pair[1]).decode() if pair else ""


def _info(text: Any) -> dict[str, str]:
    lines = bytes(text).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def drop_queued(connection: RedisConnection, namespace: str, queue: str) -> None:
    """Delete the doorbells on a queue of the store's server."""
    fields = connection.texts(Keys(namespace).doorbell)
    for end in {end for name, end in fields.items() if name.isdecimal()}:
        connection.call("DEL", f"{queue}{end}")


# Metrics of a store, for Prometheus: cheap commands, however many runs exist.


RUNG_NEXT, QUEUES = 1_000, 50
"""The most timers of a partition that are searched for ready nodes, and the most queues reported."""

LEASE = 30.0
"""Seconds until a doorbell is first rung again, unless workers report another lease."""

EXPIRING = {"1h": 3600, "1d": 86_400}
"""Time spans (s) for which expiring questions are counted."""


@immutable
class Partition:
    """A partition's connection, the names of its keys, and its graphs."""

    redis: RedisConnection
    keys: Keys
    graphs: Sequence[str]

    def sum(self, command: str, *keys: str) -> int:
        return sum(int(self.redis.call(command, key)) for key in keys)

    def first(self, *keys: str) -> list[float]:
        """Return the first time of each sorted set that has one, skipping closed questions' negative ones."""
        span = "0", "+inf", "WITHSCORES", "LIMIT", 0, 1
        return [
            float(score)
            for key in keys
            for score in self.redis.call("ZRANGEBYSCORE", key, *span)[1:]
        ]


def read_metrics(urls: str, namespace: str = NAMESPACE, partitions: int = 1) -> list[Metric]:
    """Read all metrics, combined over partitions.

    Raises:
        StoreError: a server can't be reached.
    """
    connections = partitions_at(urls, namespace, partitions)
    roster = WorkerRegistry(connections[0][0], namespace)
    try:
        now = roster.now()
        workers = roster.all()
        opened = [
            Partition(redis, keys, [name.decode() for name in redis.call("HKEYS", keys.graphs)])
            for redis, keys in connections
        ]
        return [
            *_runs(opened),
            *_questions(opened, now),
            *_ready(opened, namespace, now, workers),
            *_fair_nodes(opened, now),
            *_rest(opened, now),
            *_memory(opened),
            *_audit(opened, now),
            *_queued(opened, now),
            *_workers(workers, opened, now),
            *_histograms(opened),
        ]
    finally:
        for connection, _ in connections:
            connection.close()


def _runs(partitions: Sequence[Partition]) -> Iterator[Metric]:
    for status in STATUSES:
        query = RunQuery(status)
        count = sum(
            one.sum("ZCARD", *one.keys.runs(query, one.graphs)[0]) for one in partitions
        )
        yield Metric(
            "runner_runs", "Runs that are kept, by status.", count, {"status": str(status)}
        )


def started_runs(
    partitions: Iterable[tuple[RedisConnection, Keys]], since: int, until: int
) -> Counter[str]:
    """Count the runs of each graph that began after a time (ms), until another; not runs inside others."""
    counts = Counter[str]()
    for redis, keys in partitions:
        for graph in [name for name in redis.texts(keys.graphs) if name == outermost(name)]:
            (indexes,) = keys.runs(RunQuery(), [graph])
            looks = [("ZCOUNT", index, f"({since}", until) for index in indexes]
            counts[graph] += sum(redis.call_all(*looks))
    return +counts


def _questions(partitions: Sequence[Partition], now: int) -> Iterator[Metric]:
    indexes = [
        (one, key)
        for one in partitions
        for key in one.keys.questions(InterruptQuery(), "", one.graphs)[0]
    ]
    asked = min((first for one, key in indexes for first in one.first(key)), default=now)
    counts = Counter[str]()
    for one, key in indexes:
        counts[key.rpartition(":g:")[2]] += int(one.redis.call("ZCOUNT", key, 0, "+inf"))
    for graph, count in counts.items():
        labels = {"graph": graph}
        yield Metric("runner_questions_open", "Questions that wait for people.", count, labels)
    yield Metric(
        "runner_question_oldest_seconds",
        "For how long the oldest open question waits.",
        max(0.0, now - asked) / 1000,
    )
    for within, seconds in EXPIRING.items():
        yield Metric(
            "runner_questions_expiring",
            "Open questions that expire within so long.",
            sum(
                int(one.redis.call("ZCOUNT", one.keys.expiring(key), now, now + seconds * 1000))
                for one, key in indexes
            ),
            {"within": within},
        )


def _ready(
    partitions: Sequence[Partition], namespace: str, now: int, workers: Sequence[Worker]
) -> Iterator[Metric]:
    """Yield the number of each graph's nodes on queues of the store's server, and each queue's longest wait.

    Of queues elsewhere that is the longest among the nodes that are rung again next.
    """
    lease = max([0.0, *(one.lease for one in workers)]) or LEASE
    oldest: dict[str, float] = {}
    for one in partitions:
        names = one.redis.call(
            *("ZRANGEBYSCORE", one.keys.timers, "-inf", now + MAX_REDISPATCH_MS, "WITHSCORES"),
            *("LIMIT", 0, RUNG_NEXT),
        )
        timers = [
            (name.decode().split("|", 2), float(due)) for name, due in mapping_of(names).items()
        ]
        nodes = [(run, node, due) for (kind, run, node), due in timers if kind == "node"]
        records = one.redis.call_all(
            *(("HMGET", one.keys.run(run), "of", f"n:{node}") for run, node, _ in nodes)
        )
        ready = [
            (
                encoding.read_of(of)[0],
                map_of(node) or node,
                encoding.node_record(run, node, stored)[0].rings,
                due,
            )
            for (run, node, due), (of, stored) in zip(nodes, records, strict=True)
            if of and stored and stored.startswith(b"ready ")
        ]
        partition_addresses = list(dict.fromkeys((shape, node) for shape, node, _, _ in ready))
        shapes = one.redis.call_all(
            *(
                ("HGET", one.keys.shape(shape), f"n:{node}")
                for shape, node in partition_addresses
            )
        )
        queues = {
            place: json.loads(text)["queue"]
            for place, text in zip(partition_addresses, shapes, strict=True)
            if text
        }
        for shape, node, rings, due in ready:
            queue = f"{namespace}/{queues.get((shape, node), '')}"
            rung = due - sum(
                min(lease * 1000 * 2**ring, MAX_REDISPATCH_MS) for ring in range(rings + 1)
            )
            oldest[queue] = max(oldest.get(queue, 0.0), (now - rung) / 1000)
    graphs = {outermost(graph) for one in partitions for graph in one.graphs}
    broker = partitions[0].redis
    counts = dict.fromkeys(sorted(graphs), 0)
    for waiting_nodes in queued_nodes(
        broker, namespace, graphs_by_queue(broker, namespace, workers)
    ):
        for graph, number in waiting_nodes.graphs.items():
            counts[graph] = counts.get(graph, 0) + number
        if waiting_nodes.since:
            oldest[waiting_nodes.queue] = (now - waiting_nodes.since) / 1000
    for graph, number in counts.items():
        yield Metric(
            "runner_ready_nodes",
            "Nodes that wait for a worker on a queue of the store's server.",
            number,
            {"graph": graph},
        )
    for queue, seconds in sorted(oldest.items(), key=lambda pair: -pair[1])[:QUEUES]:
        yield Metric(
            "runner_ready_oldest_seconds",
            "For how long the first ready node of a queue waits for a worker.",
            seconds,
            {"queue": queue},
        )


def _fair_nodes(partitions: Sequence[Partition], now: int) -> Iterator[Metric]:
    """Yield the number and longest wait of nodes in each queue that wait while other keys go first."""
    waiting_keys = fair_keys([(one.redis, one.keys) for one in partitions], RUNG_NEXT)
    for queue in list(dict.fromkeys(key.queue for key in waiting_keys))[:QUEUES]:
        nodes, since = zip(
            *[(key.nodes, key.since) for key in waiting_keys if key.queue == queue],
            strict=True,
        )
        labels = {"queue": queue}
        yield Metric(
            "runner_fair_nodes_waiting",
            "Nodes that wait while other keys go first.",
            sum(nodes),
            labels,
        )
        yield Metric(
            "runner_fair_nodes_oldest_seconds",
            "For how long the first of them waits.",
            max(0, now - min(since)) / 1000,
            labels,
        )


def _memory(partitions: Sequence[Partition]) -> Iterator[Metric]:
    for place, one in {one.redis.place: one for one in partitions}.items():
        try:
            info = _info(one.redis.call("INFO", "memory"))
        except StoreError:
            continue  # the server doesn't tell, or not this user
        used = int(info.get("used_memory", 0))
        limit = int(info.get("maxmemory", 0))
        labels = {"server": place}
        yield Metric("runner_store_memory_bytes", "Memory that the store uses.", used, labels)
        yield Metric(
            "runner_store_memory_limit_bytes", "Its maxmemory; 0 for no limit.", limit, labels
        )


def _rest(partitions: Sequence[Partition], now: int) -> Iterator[Metric]:
    due = min(
        (first for one in partitions for first in one.first(one.keys.timers)), default=now
    )
    late = max(0.0, now - due) / 1000
    yield Metric(
        "runner_sweep_late_seconds", "For how long something that is due was not swept.", late
    )
    unarchived = sum(one.sum("ZCARD", one.keys.unarchived) for one in partitions)
    yield Metric("runner_runs_unarchived", "Ended runs that wait for the archive.", unarchived)
    fails = any(one.redis.call("HGET", one.keys.archive, "problem") for one in partitions)
    yield Metric(
        "runner_archive_failing", "1 while the last write to the archive failed.", int(fails)
    )
    first = partitions[0]
    for kind, count in {
        "message": first.sum("XLEN", first.keys.dead_messages),
        "node": sum(one.sum("XLEN", one.keys.dead) for one in partitions),
    }.items():
        yield Metric("runner_dead_letters", "Dead letters, by kind.", count, {"kind": kind})
    for door, stream in (("responses", first.keys.responses), ("starts", first.keys.starts)):
        count = first.sum("XLEN", stream)
        yield Metric(
            "runner_messages_pending", "Messages not applied yet.", count, {"stream": door}
        )


def _audit(partitions: Sequence[Partition], now: int) -> Iterator[Metric]:
    waiting = 0
    oldest = now
    unsigned = 0
    fails = False
    for one in partitions:
        names = ("size", "steps", "last", "signed", "problem")
        size, steps, last, signed, problem = one.redis.call(
            "HMGET", one.keys.audit_head, *names
        )
        waiting += max(0, one.sum("XLEN", one.keys.audit) - int(steps or 0))
        rows = one.redis.call(
            "XRANGE", one.keys.audit, f"({(last or b'0-0').decode()}", "+", "COUNT", 1
        )
        oldest = min([oldest, *(int(row[0].partition(b"-")[0]) for row in rows)])
        unsigned += int(size or 0) - int(signed or 0)
        fails = fails or bool(problem)
    yield Metric(
        "runner_audit_unsealed",
        "Steps with entries of the audit that are not sealed yet.",
        waiting,
    )
    yield Metric(
        "runner_audit_unsealed_seconds",
        "For how long the oldest of them waits.",
        max(0, now - oldest) / 1000,
    )
    yield Metric(
        "runner_audit_unsigned", "Sealed entries that no checkpoint has signed.", unsigned
    )
    yield Metric(
        "runner_audit_failing", "1 while the audit can't be signed or anchored.", int(fails)
    )
    frozen = partitions[0].redis.call("HKEYS", partitions[0].keys.frozen)
    yield Metric(
        "runner_frozen", "Freezes of effects: of graphs, of tools or of all.", len(frozen)
    )


def _queued(partitions: Sequence[Partition], now: int) -> Iterator[Metric]:
    """Yield the number of each graph's concurrency keys for which runs wait, and the longest wait."""
    waits: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for one in partitions:
        looks = [
            look
            for index in [f"{one.keys.prefix}{queued_index(graph)}" for graph in one.graphs]
            for look in (("ZCARD", index), ("ZRANGE", index, "0", "0", "WITHSCORES"))
        ]
        replies = one.redis.call_all(*looks)
        for graph, keys, first in zip(one.graphs, replies[::2], replies[1::2], strict=True):
            if first:
                waits[graph].append((keys, float(first[1])))
    oldest = {graph: min(since for _, since in each) for graph, each in waits.items()}
    for graph in sorted(oldest, key=oldest.__getitem__)[:QUEUES]:
        labels = {"graph": graph}
        yield Metric(
            "runner_queued_keys",
            "Keys of a graph's concurrency for which runs wait.",
            sum(keys for keys, _ in waits[graph]),
            labels,
        )
        yield Metric(
            "runner_queued_oldest_seconds",
            "For how long the first of them waits.",
            max(0, now - oldest[graph]) / 1000,
            labels,
        )


def _workers(
    workers: Sequence[Worker], partitions: Sequence[Partition], now: int
) -> Iterator[Metric]:
    reporting = [worker for worker in workers if worker.alive(now)]
    alive = [worker for worker in reporting if not worker.is_keeper]
    yield Metric("runner_workers", "Workers that gave a sign of life lately.", len(alive))
    yield Metric(
        "runner_slots", "Nodes that can run at once.", sum(worker.slots for worker in alive)
    )
    yield Metric(
        "runner_slots_busy", "Nodes that run now.", sum(worker.busy for worker in alive)
    )
    longest = max((worker.longest for worker in alive), default=0.0)
    yield Metric(
        "runner_executing_oldest_seconds", "For how long the first of them runs.", longest
    )
    yield Metric(
        "runner_clock_skew_seconds",
        "By how much a worker's clock differs from the store's.",
        max((abs(worker.ahead) for worker in reporting), default=0) / 1000,
    )
    current = partitions[0].redis.texts(partitions[0].keys.graphs)
    served = {served for worker in alive for served in worker.graphs.items()}
    unserved = [
        name
        for name in current
        if name == outermost(name) and (name, current[name]) not in served
    ]
    query = RunQuery(Status.EXECUTING)
    count = sum(one.sum("ZCARD", *one.keys.runs(query, unserved)[0]) for one in partitions)
    yield Metric(
        "runner_runs_unserved", "Executing runs whose current graph no worker has.", count
    )


def _histograms(partitions: Sequence[Partition]) -> Iterator[Metric]:
    fields: dict[bytes, float] = defaultdict(float)
    for one in partitions:
        for name, value in mapping_of(one.redis.call("HGETALL", one.keys.metrics)).items():
            fields[name] += float(value)
    for family, suffix, count, labels in measurements.histograms(fields):
        yield Metric(
            f"{family}{suffix}", measurements.HELP[family], count, labels, family=family
        )
    for counter, count, labels in measurements.counters(fields):
        yield Metric(counter, measurements.HELP[counter], count, labels)


def limit_settings(place: RedisConnection, keys: Keys) -> tuple[dict[str, LimitSetting], int]:
    """Return the settings of limits by name, and the server's time in ms."""
    fields = mapping_of(place.call("HGETALL", f"{keys.prefix}{LIMITS}"))
    names = {name.decode(): text for name, text in fields.items()}
    return {name: LimitSetting.read(name, text) for name, text in names.items()}, place.now()


MOST_KEYS = 1_000
"""The most keys with waiting nodes that are read, longest wait first."""

MOST_HOLDERS = 20
"""The most holders of a key's slots that are named."""


@immutable
class WaitingKey:
    """A key of a limit for which `nodes` nodes wait `since` a time (ms), with the "<run>|<node>" of holders.

    For a rate, `last_start_at` (ms) is when the last of them may start, in place of `since`.
    """

    key: LimitKey
    nodes: int
    since: int
    holders: list[str]
    last_start_at: int = 0

    @property
    def limit(self) -> str:
        """The name of the limit."""
        return name_of(self.key)


def waiting_keys(partitions: Iterable[tuple[RedisConnection, Keys]]) -> list[WaitingKey]:
    """Return the keys of limits for which nodes have waited longest."""
    found = (key for redis, keys in partitions for key in _waiting_keys(redis, keys))
    return sorted(found, key=lambda each: each.since)[:MOST_KEYS]


def rate_times(
    partitions: Iterable[tuple[RedisConnection, Keys]], names: Sequence[str], now: int
) -> list[tuple[str, int]]:
    """Return the keys of rate limits with the time (ms) of their next execution, latest first."""
    later = ("+inf", f"({now}", "WITHSCORES", "LIMIT", 0, MOST_KEYS)
    times = [
        (key.decode(errors="replace"), int(float(time)))
        for redis, keys in partitions
        for reply in redis.call_all(
            *(("ZREVRANGEBYSCORE", f"{keys.prefix}rates:{name}", *later) for name in names)
        )
        for key, time in pairs(reply)
    ]
    return sorted(times, key=lambda each: -each[1])


def _waiting_keys(redis: RedisConnection, keys: Keys) -> list[WaitingKey]:
    names = [
        name.decode(errors="replace")
        for name in redis.call("ZRANGE", f"{keys.prefix}limit:waiting", 0, MOST_KEYS - 1)
    ]
    commands: list[Sequence[str | int]] = []
    for name in names:
        queue = f"{keys.prefix}limit:q:{name}"
        commands += [
            ("ZRANGE", queue, 0, 0, "WITHSCORES"),
            ("ZCARD", queue),
            ("ZRANGE", f"{keys.prefix}limit:h:{name}", 0, MOST_HOLDERS - 1),
        ]
    replies = redis.call_all(*commands)
    return [
        WaitingKey(
            name,
            count,
            int(float(first[1])),
            [node_of(member.decode(errors="replace")) for member in slots],
        )
        for name, first, count, slots in zip(
            names, replies[::3], replies[1::3], replies[2::3], strict=True
        )
        if count and first
    ]


def fair_keys(partitions: Iterable[tuple[RedisConnection, Keys]], most: int) -> list[FairKey]:
    """Return keys whose nodes wait: at most `most` per queue and priority, next turn first."""
    waits: dict[tuple[str, int, str], list[tuple[int, int]]] = defaultdict(list)
    for redis, keys in partitions:
        fair = f"{keys.prefix}fair:"
        queues = [queue.decode() for queue in redis.call("HKEYS", f"{fair}windows")]
        lanes = [(queue, priority) for queue in queues for priority in range(10)]
        looks = [("ZRANGE", f"{fair}p:{lane[0]}|{lane[1]}", 0, most - 1) for lane in lanes]
        lines = [
            (*lane, key.decode())
            for lane, names in zip(lanes, redis.call_all(*looks), strict=True)
            for key in names
        ]
        commands: list[Sequence[str | int]] = []
        for queue, priority, key in lines:
            name = f"{fair}n:{queue}|{priority}:{key}"
            commands += [("ZCARD", name), ("ZRANGE", name, 0, 0, "WITHSCORES")]
        replies = redis.call_all(*commands)
        for line, nodes, first in zip(lines, replies[::2], replies[1::2], strict=True):
            if first:
                waits[line].append((nodes, int(float(first[1]))))
    found = [
        FairKey(*line, sum(nodes for nodes, _ in each), min(since for _, since in each))
        for line, each in waits.items()
    ]
    return sorted(found, key=lambda key: (key.since, key.key))
