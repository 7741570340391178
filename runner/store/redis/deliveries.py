"""The deliveries of each webhook: those to send, and for a while those already sent.

One process at a time sends for a webhook: the holder of its lock, which lapses if that process dies. It moves
the webhook's notices from a consumer group to the deliveries, so an endpoint that doesn't answer keeps no
notice in the stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from runner.errors import NotFoundError
from runner.records.listings import Page, cursor_of, position_in
from runner.store.addresses import NAMESPACE
from runner.store.interface import Reply
from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import Keys
from runner.store.redis.transaction.transaction import Transaction, transactions_of
from runner.webhooks.webhook import Delivery

MOST = 10_000
"""The most deliveries stored for one webhook, including finished ones."""

MOST_BYTES = 50_000_000
"""The most bytes of their bodies."""

STAY_MS = 7 * 86_400_000
"""Ms for which a delivery is stored."""

LOCK_MS = 15_000
"""Ms for which a lock to send lasts unless it is prolonged: longer than one request takes."""

BYTES, DROPPED, LOCK = b"#bytes", b"#dropped", "#lock"
"""Fields beside the documents: their bytes, the number dropped, and the lock's holder and end (ms)."""


class Deliveries:
    """Deliveries to webhooks. Every method raises StoreError when Redis can't be reached."""

    def __init__(self, place: str | RedisConnection, namespace: str = NAMESPACE) -> None:
        """Take the first server's URL or connection; nothing is connected yet."""
        self._keys = Keys(namespace)
        self._redis = connected(place, self._keys.prefix)
        self._transactions = transactions_of(self._redis, self._keys.prefix)

    # Locks

    def hold(self, webhook_id: str, holder: str, ms: int = LOCK_MS) -> bool:
        """Take or prolong the lock to send; return False if another process has it."""
        return self._change_lock(webhook_id, holder, ms)

    def release(self, webhook_id: str, holder: str) -> None:
        """Release the lock for the next process that asks."""
        self._change_lock(webhook_id, holder, 0)

    def _change_lock(self, webhook_id: str, holder: str, ms: int) -> bool:
        key = self._keys.deliveries(webhook_id)[0].removeprefix(self._keys.prefix)

        def plan(transaction: Transaction) -> Reply:
            write_set = transaction.write_set
            now = transaction.clock()
            current, _, until = (write_set.read(key, LOCK) or b"").decode().partition(" ")
            if current not in {"", holder} and now < int(until):
                return Reply("taken")
            if ms:
                write_set.put(key, LOCK, f"{holder} {now + ms}")
            else:
                write_set.drop(key, LOCK)
            return Reply("held")

        return self._transactions.run("webhook", plan, [(key, LOCK)]).word == "held"

    # Deliveries

    def enqueue(self, webhook_id: str, deliveries: Iterable[tuple[Delivery, bytes]]) -> int:
        """Add deliveries, and remove old or excess ones; return how many of the removed still waited."""
        documents, queue, log = self._keys.deliveries(webhook_id)
        client = self._redis.client_of(documents)
        with self._redis.translated():
            for delivery, body in deliveries:
                # An existing delivery came twice because its notice was not acknowledged.
                if client.hexists(documents, delivery.id):
                    continue
                with client.pipeline(transaction=True) as pipe:
                    pipe.hset(documents, delivery.id, _text(delivery, body))
                    pipe.hincrby(documents, BYTES, len(body))
                    pipe.zadd(queue, {delivery.id: delivery.due_at})
                    pipe.zadd(log, {delivery.id: delivery.at})
                    pipe.execute()
            old: list[bytes] = client.zrangebyscore(
                log, "-inf", self._redis.now() - STAY_MS, start=0, num=100
            )
            dropped = sum(self._drop(webhook_id, name) for name in old)
            while (
                client.zcard(log) > MOST or int(client.hget(documents, BYTES) or 0) > MOST_BYTES
            ):
                dropped += self._drop(webhook_id, client.zrange(log, 0, 0)[0])
            return dropped

    def _drop(self, webhook_id: str, name: bytes) -> bool:
        documents, queue, log = self._keys.deliveries(webhook_id)
        client = self._redis.client_of(documents)
        text = client.hget(documents, name)
        delivery, body = _read(text) if text else (None, b"")
        is_waiting = delivery is not None and delivery.status == "waiting"
        with client.pipeline(transaction=True) as pipe:
            pipe.hdel(documents, name)
            pipe.hincrby(documents, BYTES, -len(body))
            pipe.zrem(queue, name)
            pipe.zrem(log, name)
            if is_waiting:
                pipe.hincrby(documents, DROPPED, 1)
            pipe.execute()
        return is_waiting

    def next_delivery(self, webhook_id: str, place: int = 0) -> tuple[Delivery, bytes] | None:
        """Return the delivery that is due first, even if it isn't due yet, with its body.

        With `place` -1 it is the one that is due last.
        """
        documents, queue, _ = self._keys.deliveries(webhook_id)
        first = self._redis.call("ZRANGE", queue, place, place)
        text = self._redis.call("HGET", documents, first[0]) if first else None
        return _read(text) if text else None

    def record(self, webhook_id: str, delivery: Delivery) -> None:
        """Write a delivery's new state, unless it was removed."""
        documents, queue, _ = self._keys.deliveries(webhook_id)
        text = self._redis.call("HGET", documents, delivery.id)
        if text is None:
            return
        with (
            self._redis.translated(),
            self._redis.client_of(documents).pipeline(transaction=True) as pipe,
        ):
            pipe.hset(documents, delivery.id, _text(delivery, _read(text)[1]))
            if delivery.due_at:
                pipe.zadd(queue, {delivery.id: delivery.due_at})
            else:
                pipe.zrem(queue, delivery.id)
            pipe.execute()

    def get(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Read a delivery.

        Raises:
            NotFoundError: no delivery has that id.
        """
        text = self._redis.call("HGET", self._keys.deliveries(webhook_id)[0], delivery_id)
        if text is None or delivery_id.startswith("#"):
            raise NotFoundError(
                f"the webhook {webhook_id!r:.80} has no delivery {delivery_id!r:.80}."
            )
        return _read(text)[0]

    def page(self, webhook_id: str, limit: int, cursor: str | None = None) -> Page[Delivery]:
        """List the deliveries of a webhook, newest first; `cursor` is `next` of the previous page."""
        documents, _, log = self._keys.deliveries(webhook_id)
        start = 0
        if cursor:
            at, last = position_in(cursor)
            rank = self._redis.call("ZREVRANK", log, last)
            # A delivery that is gone by now was the oldest, or shared its millisecond with earlier ones.
            start = (
                int(self._redis.call("ZCOUNT", log, at, "+inf"))
                if rank is None
                else int(rank) + 1
            )
        names = self._redis.call("ZREVRANGE", log, start, start + limit - 1)
        texts: Sequence[bytes | None] = (
            self._redis.call("HMGET", documents, *names) if names else []
        )
        items = [_read(text)[0] for text in texts if text is not None]
        more = items and len(names) == limit
        return Page(items, cursor_of((items[-1].at, items[-1].id)) if more else None)

    def backlog(self, webhook_id: str) -> tuple[int, int]:
        """Return how many deliveries wait, and how many were dropped while waiting."""
        documents, queue, _ = self._keys.deliveries(webhook_id)
        waiting, dropped = self._redis.call_all(("ZCARD", queue), ("HGET", documents, DROPPED))
        return int(waiting), int(dropped or 0)

    def forget(self, webhook_id: str) -> None:
        """Delete the deliveries of a webhook."""
        self._redis.call("DEL", *self._keys.deliveries(webhook_id))


def _text(delivery: Delivery, body: bytes) -> str:
    return json.dumps({**asdict(delivery), "body": body.decode()}, ensure_ascii=False)


def _read(text: bytes) -> tuple[Delivery, bytes]:
    values = json.loads(text)
    body = values.pop("body").encode()
    return Delivery(**values), body
