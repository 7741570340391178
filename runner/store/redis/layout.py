"""The number of a store's layout, and the partitions of runs, sessions and limits.

A store of another layout is refused: a version that knows other keys would miss stored runs, and so would a
program with fewer partitions.

A run stays where it was started, and its id names that partition. The partition of an idempotency key and
of a session is computed from a hash and the number of partitions; if that number has grown, existing ones
are found at their earlier place. The first partition records all past numbers.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterable, Mapping, Sequence

from runner.errors import StoreError
from runner.limits.concurrency import key_of, tag_of
from runner.records.listings import RunQuery
from runner.store.addresses import MOST_PARTITIONS, NAMESPACE, PartitionAddress
from runner.store.apply_transition import DELAYED, OPEN, QUEUED
from runner.store.interface import NO_TAGS
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys
from runner.store.redis.workers import WorkerRegistry

log = logging.getLogger(__name__)

LAYOUT = b"1"
"""The version of the dictionary in keys.py: a change that other versions can't read gets another number.

`lua/publish.lua` writes it, before a store has any run.
"""

FREE = b"1"
"""The mark of a graph whose runs may live in any partition."""

BY_KEY = b"key:"
"""The mark of a graph with keys, before their name: a key's runs live in the partition of its hash."""

NAMED = 3
"""Most workers that a refusal names."""

IN_ORDER = "Name all servers in RUNNER_REDIS_URL, in the order they were first used"


class Layout:
    """The partitions of one namespace, in their order. Thread-safe, and usable after a fork."""

    def __init__(self, connections: Sequence[RedisConnection], namespace: str) -> None:
        """Take the partitions' connections; nothing is connected yet."""
        self._connections = connections
        self._keys = [
            Keys(namespace, PartitionAddress("", number).partition)
            for number in range(len(connections))
        ]
        self._numbers: tuple[int, ...] = ()

    def allow(self, graphs: Iterable[str]) -> None:
        """Record that runs of some graphs may live in any partition."""
        for graph in graphs:
            self._connections[0].call("HSETNX", self._keys[0].spread, graph, FREE)

    def allow_by_key(self, graph: str, by: str) -> None:
        """Record that a start's key decides its partition."""
        self._connections[0].call("HSET", self._keys[0].spread, graph, BY_KEY + by.encode())

    def spread(self, graph_id: str) -> bytes | None:
        """Return the mark that says where new runs of a graph may live."""
        fact: bytes | None = self._connections[0].call("HGET", self._keys[0].spread, graph_id)
        return fact

    def choose(
        self, graph_id: str, idempotency_key: str | None, tags: Mapping[str, str] = NO_TAGS
    ) -> int:
        """Choose the partition of a new run, or return the one of the run that already has the key.

        A new run is in a partition that workers serve, even if more are set here.
        """
        keys = self._keys[0]
        first = self._connections[0]
        with first.translated(), first.pipeline() as pipe:
            pipe.hget(keys.spread, graph_id)
            pipe.lindex(keys.partitions, -1)
            pipe.exists(keys.idempotency(graph_id, idempotency_key or ""))
            spread, last_number, is_first = pipe.execute()
        usable = min(int(last_number or len(self._keys)), len(self._keys))
        if spread is not None and spread.startswith(BY_KEY):
            return self._home_of(graph_id, spread, tags, usable)
        if idempotency_key is None:
            return random.randrange(usable) if spread == FREE else 0  # noqa: S311 - no secret
        if is_first or spread is None:
            return 0
        homes = self._homes(f"{graph_id}\n{idempotency_key}", usable)
        for number in {*homes} - {0, homes[-1]}:
            key = self._keys[number].idempotency(graph_id, idempotency_key)
            if self._connections[number].call("EXISTS", key):
                return number
        return homes[-1]

    def _home_of(self, graph_id: str, fact: bytes, tags: Mapping[str, str], usable: int) -> int:
        """Return the partition of a key: an earlier one as long as the key has open runs there."""
        key = key_of(graph_id, fact.removeprefix(BY_KEY).decode(), tag_of(tags))
        homes = self._homes(key, usable)
        for number in homes[:-1]:
            prefix = self._keys[number].prefix
            names = [f"{prefix}{name}{key}" for name in (OPEN, QUEUED, DELAYED)]
            if number != homes[-1] and self._connections[number].call("EXISTS", *names):
                return number
        return homes[-1]

    def limit_home(self, key: str) -> int:
        """Return the partition that counts a limit's key, which stays when partitions are added."""
        return _digest(key) % min(*self._known(), len(self._keys))

    def session_home(self, session_id: str) -> int:
        """Return the partition that has or will have a session."""
        homes = self._homes(session_id, self.usable())
        for number in homes[:-1]:
            key = self._keys[number].session(session_id)
            if number != homes[-1] and any(
                self._connections[number].call("EXISTS", part) for part in key
            ):
                return number
        return homes[-1]

    def usable(self) -> int:
        """Return the number of partitions that workers serve."""
        return min(self._known()[-1], len(self._keys))

    def _known(self) -> Sequence[int]:
        """Return all numbers of partitions so far, reading them until the present one is recorded."""
        if not self._numbers:
            known = tuple(_numbers(self._connections[0], self._keys[0])) or (1, len(self._keys))
            if known[-1] != len(self._keys):
                return known
            self._numbers = known
        return self._numbers

    def _homes(self, name: str, usable: int) -> list[int]:
        """Return a name's partition under each number of partitions so far, the present one last."""
        homes = [_digest(name) % number for number in (*self._known(), usable)]
        return [home for home in homes if home < len(self._keys)]


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=8).digest())


def check(
    server: RedisConnection,
    keys: Keys,
    places: Sequence[PartitionAddress] = (),
    namespace: str = NAMESPACE,
) -> None:
    """Refuse a partition of another layout, or a server that doesn't match `places`, if any are given.

    Raises:
        StoreError: it is refused, or the server can't be reached.
    """
    problem = _other(server, keys)
    if places and not problem:
        recorded = int(server.call("LINDEX", keys.partitions, -1) or 0)
        if recorded > len(places):
            workers = WorkerRegistry(server, namespace).all()
            having = [each.name for each in workers if each.partitions == recorded][:NAMED]
            problem = (
                f"the store at {server.place} has {recorded} partitions, and {len(places)} "
                f"{'is' if len(places) == 1 else 'are'} set here: runs of the others would be missing. "
                f"Workers set to {recorded}: {', '.join(having) or 'none known'}. If that's intended, set "
                f"RUNNER_PARTITIONS={recorded} here, or all servers in RUNNER_REDIS_URL. If not, correct "
                "those workers, then restart all workers: each records its number as it starts"
            )
        elif not recorded and not server.call("EXISTS", keys.layout):
            problem = _misplaced(server, keys, places, namespace)
    if problem:
        refusal = StoreError(f"{problem[:1].upper()}{problem[1:]}.")
        refusal.passing = False
        raise refusal


def _misplaced(
    server: RedisConnection, keys: Keys, places: Sequence[PartitionAddress], namespace: str
) -> str:
    """Return why an empty partition is on the wrong server (it has another partition), or ""."""
    url = next(place.url for place in places if place.partition == keys.partition)
    here = [place.number for place in places if place.url == url]
    foreign = {
        Keys(namespace, PartitionAddress(url, number).partition).layout: number
        for number in range(MOST_PARTITIONS)
        if number not in here
    }
    for names in server.apart(list(foreign)):
        for name, layout in zip(names, server.call("MGET", *names), strict=True):
            if layout:
                return (
                    f"the store at {server.place} has partition {foreign[name]}, but is set to have "
                    f"{here[0]}, which it lacks: runs would be missing. {IN_ORDER}"
                )
    return ""


def _other(server: RedisConnection, keys: Keys) -> str:
    """Return why a partition can't be read, or ""; an empty partition has no number yet."""
    number = server.call("GET", keys.layout)
    if number is None and server.call("EXISTS", keys.graphs):
        # The number is written before the first graph, so it exists by now or was never written.
        number = server.call("GET", keys.layout) or b"0"
    if number in {None, LAYOUT}:
        return ""
    older = number.isdigit() and int(number) < int(LAYOUT)
    text = number.decode(errors="replace")
    return (
        f"the store at {server.place} has data of layout {text if text != '0' else '0 (no number)'}, "
        f"and this version of runner needs layout {LAYOUT.decode()}; nothing was changed. Use "
        f"{'an older' if older else 'a newer'} version until its runs have ended, or set another "
        "RUNNER_NAMESPACE or database"
    )


def record(places: Sequence[PartitionAddress], namespace: str = NAMESPACE) -> str:
    """Record the number of partitions if it is new; return why it can't be used, or "".

    Raises:
        StoreError: a server can't be reached.
    """
    keys = Keys(namespace)
    first = RedisConnection(places[0].url)
    try:
        numbers = _numbers(first, keys)
        problem = _problem(places, namespace, numbers)
        if not problem and numbers[-1:] != [len(places)]:
            # A store that was used before any number was recorded had one partition.
            had_one = not numbers and len(places) > 1 and first.call("EXISTS", keys.graphs)
            additions = [*([1] if had_one else []), len(places)]
            first.call("RPUSH", keys.partitions, *additions)
            for old in [*numbers, *additions][-2:-1]:
                log.warning(
                    "layout.changed: the number of partitions at %s was %d and is now %d, as set here. "
                    "Programs with fewer are refused. If that isn't intended, set RUNNER_PARTITIONS and "
                    "RUNNER_REDIS_URL as before, and restart all workers.",
                    first.place,
                    old,
                    len(places),
                )
        return problem
    finally:
        first.close()


def problem(places: Sequence[PartitionAddress], namespace: str = NAMESPACE) -> str:
    """Return why these places can't be used with the stored data, or "".

    Raises:
        StoreError: a server can't be reached.
    """
    keys = Keys(namespace)
    first = RedisConnection(places[0].url)
    try:
        return _problem(places, namespace, _numbers(first, keys))
    finally:
        first.close()


def _numbers(first: RedisConnection, keys: Keys) -> list[int]:
    return [int(number) for number in first.call("LRANGE", keys.partitions, 0, -1)]


def _problem(places: Sequence[PartitionAddress], namespace: str, numbers: Sequence[int]) -> str:
    recorded = max(numbers[-1:], default=1)
    servers = {
        place.url: RedisConnection(place.url, Keys(namespace, place.partition).prefix)
        for place in places
    }
    try:
        for place in places:
            if why := _other(servers[place.url], Keys(namespace, place.partition)):
                return why
        # One more than known: these may be only the servers of later partitions.
        for number in range(max(len(places), recorded) + 1):
            own = places[number].url if number < len(places) else ""
            keys = Keys(namespace, PartitionAddress("", number).partition)
            having = [
                url for url, server in servers.items() if server.call("EXISTS", keys.graphs)
            ]
            if (
                having
                and len(places) < min(numbers, default=0)
                and _counts(servers[having[0]], keys)
            ):
                return (
                    f"nodes run under limits that {min(numbers)} partitions count, and {len(places)} "
                    f"{'is' if len(places) == 1 else 'are'} set. Set RUNNER_PARTITIONS or RUNNER_REDIS_URL "
                    "as before until they have ended"
                )
            if own and (wrong := [servers[url].place for url in having if url != own]):
                return (
                    f"partition {number} is on {wrong[0]}, but is set to be on {servers[own].place}. "
                    f"{IN_ORDER}"
                )
            if not own:
                gone = "is on a server that is not named" if number < recorded else ""
                if why := _in_use(servers[having[0]], keys) if having else gone:
                    return (
                        f"the store has {max(recorded, number + 1)} partitions, {len(places)} are set, and "
                        f"partition {number} {why}. Set RUNNER_PARTITIONS or RUNNER_REDIS_URL as before"
                    )
        return ""
    finally:
        for server in servers.values():
            server.close()


def _counts(server: RedisConnection, keys: Keys) -> bool:
    """Return whether a partition has taken slots, or start times in the future."""
    with server.translated():
        client = server.client_of(keys.prefix)
        seconds, _ = client.time()
        return any(
            client.zcount(key, f"({seconds * 1000}", "inf")
            for name in ("limit:h:", "rates:")
            for key in client.scan_iter(f"{keys.prefix}{name}*", count=1000)
        )


def _in_use(server: RedisConnection, keys: Keys) -> str:
    """Return why a partition that is no longer configured can't be left out, or ""."""
    graphs = [name.decode() for name in server.call("HKEYS", keys.graphs)]
    if runs := sum(server.call("ZCARD", index) for index in keys.runs(RunQuery(), graphs)[0]):
        return f"has {runs} runs"
    with server.translated():
        sessions = server.client_of(keys.prefix).scan_iter(
            f"{keys.prefix}session:*", count=1000
        )
        return "has sessions" if next(iter(sessions), None) else ""
