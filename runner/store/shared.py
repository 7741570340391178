"""Data that programs share, beside the runs: the packages above the store open it here, by the settings.

Each connects when it is first used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from urllib.parse import urlsplit

from runner.errors import StoreError
from runner.limits.concurrency import QueuedKey
from runner.limits.fairness import FairKey
from runner.limits.setting import LimitSetting
from runner.records.listings import Page, SessionSummary
from runner.records.metrics import Metric
from runner.settings import Settings
from runner.store.addresses import ALTERNATIVE, SENTINELS, without_password
from runner.store.archive import open_archive
from runner.store.archive.interface import Archive
from runner.store.redis import layout, measurements, server_info
from runner.store.redis.connection import RedisConnection, mapping_of
from runner.store.redis.dead_letters import DeadLetters
from runner.store.redis.deliveries import Deliveries
from runner.store.redis.documents import Documents, Kind
from runner.store.redis.history import SPANS, History, Sample, figures
from runner.store.redis.jobs import Jobs
from runner.store.redis.keys import Keys
from runner.store.redis.ledger import AuditLog
from runner.store.redis.partitions import SharedStore, connections, open_store
from runner.store.redis.queued_keys import queued_keys
from runner.store.redis.queued_nodes import QueuedNodes, graphs_by_queue, queued_nodes
from runner.store.redis.server_info import ServerInfo, WaitingKey
from runner.store.redis.sessions import list_sessions
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import NoticeGroups, NoticeReader, NoticeTail
from runner.store.redis.workers import WorkerRegistry

__all__ = [
    "SPANS",
    "AuditLog",
    "DeadLetters",
    "Deliveries",
    "Documents",
    "Jobs",
    "NoticeReader",
    "NoticeTail",
    "RedisStore",
    "Sample",
    "ServerInfo",
    "Shared",
    "SharedStore",
    "WaitingKey",
    "open_store",
]


class Shared:
    """The data of one store that its programs share."""

    def __init__(self, settings: Settings) -> None:
        """Keep the settings; nothing is connected yet."""
        self.settings = settings
        namespace = settings.namespace
        self._keys = Keys(namespace)
        first = self._first = RedisConnection(settings.first_url, self._keys.prefix)
        self.jobs = Jobs(first, namespace)
        self.deliveries = Deliveries(first, namespace)
        self.workers = WorkerRegistry(first, namespace)
        self.server_processes = WorkerRegistry(first, namespace, server_processes=True)
        # The samples of metrics, for charts.
        self.history = History(first, self._keys.history)
        self._address = settings.redis_url, namespace, settings.partitions
        self.notices = NoticeTail(*self._address)
        self.notice_groups = NoticeGroups(*self._address)
        self.dead_letters = DeadLetters(*self._address)

    def release(self, *, runs: bool = False) -> None:
        """Close this thread's connections to documents, deliveries and notices; with `runs` also to runs."""
        self._first.release()
        self.notice_groups.release()
        for connection in connections(self.store) if runs else ():
            connection.release()

    @cached_property
    def store(self) -> SharedStore:
        """The store of runs."""
        return open_store(self.settings)

    @cached_property
    def archive(self) -> Archive | None:
        """The archive of ended runs; None if RUNNER_ARCHIVE isn't set."""
        return open_archive(self.settings.archive) if self.settings.archive else None

    def documents(self, document_type: type[Kind]) -> Documents[Kind]:
        """Open the documents of a type."""
        return Documents(document_type, self._first, self.settings.namespace)

    def use_key(self, key_hash: str) -> None:
        """Record that an API key was used now; StoreError if the store can't be reached."""
        self._first.call(
            "ZADD", self._keys.api_keys, "GT", time.time_ns() // 1_000_000, key_hash
        )

    def key_uses(self) -> dict[str, int]:
        """Read the time of each API key's last use, in ms, by the key's hash."""
        scores = self._first.call("ZRANGE", self._keys.api_keys, 0, -1, "WITHSCORES")
        return {key.decode(): int(used_at) for key, used_at in mapping_of(scores).items()}

    def sessions(self, limit: int = 100, cursor: str | None = None) -> Page[SessionSummary]:
        """List sessions: see `list_sessions`."""
        return list_sessions(self._partitions(), limit, cursor or "")

    def metrics(self) -> list[Metric]:
        """Read all metrics, combined over partitions; StoreError if a server can't be reached."""
        return server_info.read_metrics(*self._address)

    def servers(self) -> dict[str, ServerInfo]:
        """Read each server's report, in the order of the URLs; StoreError if one can't be reached."""
        servers: dict[str, ServerInfo] = {}
        places = self.settings.partition_addresses
        for url in dict.fromkeys(place.url for place in places):
            partitions = [place.partition for place in places if place.url == url]
            reports = server_info.read_servers(url, self.settings.namespace, partitions)
            for number, (name, report) in enumerate(reports):
                servers[name if number else without_password(url)] = report
        return servers

    def layout_problem(self) -> str:
        """Return why the partitions can't be used as configured, or ""."""
        return layout.problem(self.settings.partition_addresses, self.settings.namespace)

    def limit_settings(self) -> tuple[dict[str, LimitSetting], int]:
        """Return the settings of limits by name, and the store's time in ms."""
        return server_info.limit_settings(self._first, self._keys)

    def waiting_keys(self) -> list[WaitingKey]:
        """Return the keys of limits for which nodes have waited longest."""
        return server_info.waiting_keys(self._partitions())

    def rate_times(self, names: Sequence[str], now: int) -> list[tuple[str, int]]:
        """Return the keys of rate limits with the time (ms) of their next execution, latest first."""
        return server_info.rate_times(self._partitions(), names, now) if names else []

    def fair_keys(self, most: int) -> list[FairKey]:
        """Return the keys whose nodes wait for their turn, longest wait first."""
        return server_info.fair_keys(self._partitions(), most)

    def queued_keys(
        self, graph: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[QueuedKey]:
        """List the concurrency keys of graphs for which runs wait: see `queued_keys`."""
        return queued_keys(self._partitions(), graph, limit, cursor or "")

    def _partitions(self) -> list[tuple[RedisConnection, Keys]]:
        places = self.settings.partition_addresses
        namespace = self.settings.namespace
        keys = [Keys(namespace, place.partition) for place in places]
        return list(zip(connections(self.store), keys, strict=True))

    def graphs_by_queue(self) -> dict[str, set[str]]:
        """Return the graphs of each queue of nodes that a graph has or a worker serves."""
        return graphs_by_queue(self._first, self.settings.namespace, self.workers.all())

    def queued_nodes(self, queues: Iterable[str]) -> list[QueuedNodes]:
        """Read the nodes on queues of the store's server, by the broker's names of the queues."""
        return list(queued_nodes(self._first, self.settings.namespace, queues))

    def take_sample(self) -> None:
        """Add a sample of all metrics to the history if it is due, and count runs started since the last."""
        now = self.workers.now()
        history = self.history
        due = [span for span in SPANS if history.is_due(span, now)]
        if not due:
            return
        newest = history.read("hour", newest=1)
        since = int(newest[0]["at"]) if newest else now
        for graph, runs in server_info.started_runs(self._partitions(), since, now).items():
            self.store.measure(measurements.started(graph, runs))
        totals = figures(self.metrics())
        for span in due:
            history.add(span, {graph: {"at": now, **total} for graph, total in totals.items()})

    def drop_doorbells(self, queue: str) -> None:
        """Delete the doorbells on a queue of nodes, if they are in the store."""
        if self.settings.broker_is_store:
            server_info.drop_queued(
                self._first, self.settings.namespace, self.settings.node_queue(queue)
            )

    def unreadable_queues(self, queues: Iterable[str]) -> list[str]:
        """Return the queues that a worker can't read because their keys aren't lists; on Redis only."""
        settings = self.settings
        url = settings.first_url if settings.broker_is_store else settings.broker_url
        if ALTERNATIVE.search(url) or urlsplit(url).scheme not in {
            "redis",
            "rediss",
            "unix",
            *SENTINELS,
        }:
            return []
        connection = RedisConnection(url)
        try:
            return sorted(
                queue
                for queue in queues
                if connection.call("TYPE", queue) not in {b"list", b"none"}
            )
        except StoreError:
            return []  # the broker's own check reports why
        finally:
            connection.close()
