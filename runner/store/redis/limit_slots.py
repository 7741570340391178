"""Slots of limits that runs of other partitions hold: docs/decisions/0030-limits-in-partitions.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner import scheduler
from runner.limits.setting import LimitSetting
from runner.records.run import NodeRecord
from runner.store import encoding, requests
from runner.store.interface import Doorbell, Reply
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import LIMITS, Keys, run_key
from runner.store.redis.transaction.transaction import Call, Transaction, Transactions, of_run


class LimitSlots:
    """The limits of one partition.

    `home` gives the calls of the partition that counts a key, None for this one; `offer` rings for a node of
    any partition that a limit offers a slot. Alone, a partition counts all keys, and has all nodes.
    """

    def __init__(
        self, connection: RedisConnection, keys: Keys, call: Call, transactions: Transactions
    ) -> None:
        """`call` runs a script of this partition."""
        self.call = call
        self._redis, self._keys, self._transactions = connection, keys, transactions
        self.home: Callable[[str], Call | None] = lambda _: None
        self.offer: Callable[[str, str], Sequence[Doorbell]] = lambda run_id, node: (
            self.ring(run_id, node).doorbells
        )

    def ring(self, run_id: str, node: str) -> Reply:
        """Ring for a node of this partition that a limit offers a slot."""

        def plan(transaction: Transaction) -> Reply:
            return requests.make(transaction, run_id, scheduler.offer_slot, node)

        return self._transactions.run("offer", plan, of_run(run_id, f"n:{node}"))

    def drop(self, key: str, member: str, version: str) -> list[str]:
        """Return a slot that has this version; return the members that are offered one."""
        return [
            name.decode() for name in self.call("slot", "drop", key, 0, member, version)[1:]
        ]

    def node(self, run_id: str, node: str) -> NodeRecord:
        """Read a node of this partition."""
        text = self._redis.call("HGET", f"{self._keys.prefix}{run_key(run_id)}", f"n:{node}")
        return encoding.node_record(run_id, text)[0]

    def settings(self) -> dict[str, LimitSetting]:
        """Read all that is set of limits, by name."""
        fields = self._redis.call("HGETALL", f"{self._keys.prefix}{LIMITS}")
        names = [name.decode() for name in fields[::2]]
        return dict(zip(names, map(LimitSetting.read, names, fields[1::2]), strict=True))
