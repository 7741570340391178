"""Slots of limits that runs of other partitions hold: docs/decisions/0030-limits-in-partitions.md."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from runner import scheduler
from runner.errors import StoreError
from runner.limits.setting import LimitSetting
from runner.records import codec
from runner.records.run import NodeRecord
from runner.store import encoding, requests
from runner.store.interface import Doorbell, Reply
from runner.store.redis.connection import RedisConnection, mapping_of
from runner.store.redis.keys import LIMITS, Keys, run_key
from runner.store.redis.transaction.transaction import Call, Transaction, Transactions, of_run

log = logging.getLogger(__name__)


class LimitSlots:
    """The limits of one partition.

    `home` returns the script call of the partition that counts a key, or None for this one; `offer` rings for
    a node in any partition to which a limit offers a slot. A single partition counts all keys, and has all
    nodes.
    """

    def __init__(
        self, connection: RedisConnection, keys: Keys, call: Call, transactions: Transactions
    ) -> None:
        """Take the partition, and `call`, which runs its scripts."""
        self.call = call
        self._redis = connection
        self._keys = keys
        self._transactions = transactions
        self.home: Callable[[str], Call | None] = lambda _: None
        self.offer: Callable[[str, str], Sequence[Doorbell]] = lambda run_id, node: (
            self.ring(run_id, node).doorbells
        )

    def ring(self, run_id: str, node: str) -> Reply:
        """Ring for a node of this partition to which a limit offers a slot."""

        def plan(transaction: Transaction) -> Reply:
            return requests.make(transaction, run_id, scheduler.offer_slot, node)

        try:
            return self._transactions.run("offer", plan, of_run(run_id, f"n:{node}"))
        except (StoreError, *codec.READ_ERRORS) as error:
            # The error must not stop the node that gave up the slot, nor a sweep.
            log.warning("limit.later: run %s: %s Another node gets the slot.", run_id, error)
            return Reply("later")

    def drop(self, how: str, key: str, member: str, version: str) -> list[str]:
        """Drop a slot that has this version, or with "leave" only a kept one; return the offered nodes."""
        return [name.decode() for name in self.call("slot", how, key, 0, member, version)[1:]]

    def node(self, run_id: str, node: str) -> NodeRecord | None:
        """Read a node of this partition; None if it can't be read."""
        key = f"{self._keys.prefix}{run_key(run_id)}"
        try:
            return encoding.node_record(
                run_id, node, self._redis.call("HGET", key, f"n:{node}")
            )[0]
        except (StoreError, *codec.READ_ERRORS) as error:
            log.warning(
                "limit.later: run %s: %s A slot of %r stays taken.", run_id, error, node
            )
            return None

    def settings(self) -> dict[str, LimitSetting]:
        """Read all settings of limits, by name."""
        fields = self._redis.call("HGETALL", f"{self._keys.prefix}{LIMITS}")
        names = {name.decode(): text for name, text in mapping_of(fields).items()}
        return {name: LimitSetting.read(name, text) for name, text in names.items()}
