"""Count claims under limits in four partitions on two servers, while their processes are killed and frozen.

`python -m tests.chaos.limit_claims --claims 100000` prints what it counted. A third server is the witness:
each process writes there what it claimed, until it ends it or its lease is over. It knows nothing of slots.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkProcess

import redis

from runner.dev.embedded import embedded_store
from runner.errors import StoreError
from runner.limits.limit import Limit
from runner.records.run import FINAL, Status
from runner.store.addresses import partition_addresses
from runner.store.interface import Claim, Doorbell, Settlement, Start
from runner.store.redis import layout
from runner.store.redis.partitions import PartitionedStore
from runner.store.redis.store import RedisStore
from runner.store.requests import ClaimVisit, SettleVisit, StartRun
from tests.contract.store.limits import crowd
from tests.waiting import wait_until

LEASE, PROCESSES, RUNS = 1.0, 6, 12
"""Seconds; processes that claim; open runs, each of five nodes."""
FAULT, LONGEST_FREEZE = 2.0, 2 * LEASE
"""Seconds between two faults, and how long a process is frozen at most."""
SLOTS = {"g0": 1, "g1": 2, "g2": 3, "all": 5}
"""The slots of a limit for each graph, and of one for all nodes."""
GRAPHS = [
    crowd(
        *(Limit(key, concurrency=SLOTS[key]) for key in (name, "all")),
        names="a b c d e",
        name=name,
    )
    for name in SLOTS
    if name != "all"
]

chance = random.SystemRandom()

BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('INCR', 'claims')
if tonumber(ARGV[2]) <= now then return end
for i, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('ZADD', key, ARGV[2], ARGV[1])
  if redis.call('ZCARD', key) > tonumber(ARGV[2 + i]) then redis.call('INCR', 'overshoot') end
end
"""
"""The witness counts a claim under its keys, until a time (ms) at which its lease is over."""


@dataclasses.dataclass
class Tally:
    """What was counted; `taken` are slots that are not free after the end of all."""

    claims: int
    overshoot: int
    killed: int
    frozen: int
    taken: int
    seconds: float


def open_store(urls: Sequence[str], *, alone: bool) -> PartitionedStore:
    """Open a partition on each of some servers; `alone` each counts the limits for itself."""
    where = partition_addresses(",".join(urls))
    partitions = [
        RedisStore(place.url, partition=place.partition, lease=LEASE, push=False)
        for place in where
    ]
    store = PartitionedStore(partitions, relays=False)
    for partition in partitions if alone else ():
        partition.limits.home = lambda _: None
    return store


def ring(witness: redis.Redis, doorbells: Sequence[Doorbell]) -> None:
    """Push doorbells, some of them twice."""
    for bell in doorbells:
        text = json.dumps([bell.run_id, bell.node, bell.visit, bell.attempt, bell.graph_id])
        witness.rpush("doorbells", *[text] * chance.choice((1, 1, 1, 2)))


def work(store: PartitionedStore, address: str) -> None:
    """Claim what is rung for, work for a moment, and settle it; sweep now and then."""
    witness, swept = redis.Redis.from_url(address), 0.0
    nonces = (f"{os.getpid()}.{number}" for number in itertools.count())
    while True:
        with contextlib.suppress(StoreError):  # a sweep rings again
            if time.monotonic() > swept + LEASE:
                swept = time.monotonic()
                ring(witness, store.sweep().doorbells)
            _, text = witness.blpop("doorbells", 0.2) or (b"", b"")
            if text:
                run_visit(store, witness, text, nonces)


def run_visit(
    store: PartitionedStore, witness: redis.Redis, doorbell: bytes, nonces: Iterator[str]
) -> None:
    """Claim a visit, and settle it."""
    *visit, graph = json.loads(doorbell)
    lease_ends = time.time_ns() // 1_000_000 + round(LEASE * 1000)
    claim = store.do(ClaimVisit(*visit, next(nonces)))
    ring(witness, claim.doorbells)
    if not isinstance(claim, Claim):
        return
    keys, member = (graph, "all"), str(claim.token)
    witness.eval(BEGIN, len(keys), *keys, member, lease_ends, *(SLOTS[key] for key in keys))
    time.sleep(chance.uniform(0, 0.004))
    for key in keys:
        witness.zrem(key, member)
    settlement = Settlement(Status.COMPLETED, "", None, {"v": 1})
    ring(witness, store.do(SettleVisit(claim.token, settlement, next(nonces))).doorbells)


class Fleet:
    """Processes that claim, of which one at a time is killed or frozen."""

    def __init__(self, urls: Sequence[str], address: str, *, alone: bool) -> None:
        self._arguments = open_store(urls, alone=alone), address
        self._processes = [self._begin() for _ in range(PROCESSES)]
        self._frozen: dict[ForkProcess, float] = {}
        self.killed = self.frozen = 0

    def _begin(self) -> ForkProcess:
        process = multiprocessing.get_context("fork").Process(target=work, args=self._arguments)
        process.start()
        return process

    def strike(self) -> None:
        """Kill or freeze a process, and let those go on that were frozen for long enough."""
        for process, until in list(self._frozen.items()):
            if time.monotonic() > until:
                os.kill(process.pid or 0, signal.SIGCONT)
                del self._frozen[process]
        place = chance.randrange(PROCESSES)
        process = self._processes[place]
        if process in self._frozen:
            return
        if not process.is_alive():
            raise AssertionError("a process has ended by itself: its traceback is above")
        if chance.random() < 0.5:
            self._frozen[process] = time.monotonic() + chance.uniform(0, LONGEST_FREEZE)
            os.kill(process.pid or 0, signal.SIGSTOP)
            self.frozen += 1
        else:
            process.kill()
            process.join()
            self._processes[place] = self._begin()
            self.killed += 1

    def thaw(self) -> None:
        for process in self._frozen:
            os.kill(process.pid or 0, signal.SIGCONT)
        self._frozen.clear()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def taken(store: PartitionedStore) -> int:
    """Count the slots that nodes have, in all partitions."""
    count = 0
    for partition in store._partitions:
        client = partition.connection.client
        prefix = f"{partition._keys.prefix}limit:h:"
        now = client.time()[0] * 1000
        count += sum(
            client.zcount(key, f"({now}", "inf") for key in client.scan_iter(f"{prefix}*")
        )
    return count


def count(claims: int, seconds: float, *, faults: int = 0, alone: bool = False) -> Tally:
    """Have so many claims made under so many faults, or as many as there is time for; every run ends."""
    with contextlib.ExitStack() as stack:
        one, two, third = (stack.enter_context(embedded_store()) for _ in range(3))
        urls, begun = [one.url, two.url] * 2, time.monotonic()
        problem = layout.record(partition_addresses(",".join(urls)))
        if problem:
            raise AssertionError(problem)
        store = open_store(urls, alone=alone)
        stack.callback(store.close)
        store.publish(GRAPHS)
        witness = stack.enter_context(redis.Redis.from_url(third.url))
        fleet = Fleet(urls, third.url, alone=alone)
        stack.callback(fleet.end)
        runs: list[str] = []
        numbers, struck = itertools.count(), begun

        def is_done() -> bool:
            nonlocal struck
            run = chance.choice(runs) if runs else ""
            if run and store.read(run).record.status in FINAL:
                runs.remove(run)
            is_over = time.monotonic() > begun + seconds
            is_struck = fleet.killed + fleet.frozen >= faults
            is_enough = is_over or (is_struck and int(witness.get("claims") or 0) >= claims)
            while len(runs) < RUNS and not is_enough:
                graph = chance.choice(GRAPHS)
                runs.append(f"{chance.randrange(4):02d}run{next(numbers)}")
                start = Start(runs[-1], graph.graph_id, graph.fingerprint, None)
                ring(witness, store.do(StartRun(start)).doorbells)
            if time.monotonic() > struck + FAULT and not is_enough:
                fleet.strike()
                struck = time.monotonic()
            return is_enough

        wait_until(is_done, "enough is claimed", seconds=2 * seconds)
        fleet.thaw()
        wait_until(lambda: is_done() and not runs, "every run has ended", seconds=60)
        # Whose process died between a settle and the return of its slot.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not taken(store), "all slots are free", seconds=30)
        return Tally(
            claims=int(witness.get("claims") or 0),
            overshoot=int(witness.get("overshoot") or 0),
            killed=fleet.killed,
            frozen=fleet.frozen,
            taken=taken(store),
            seconds=round(time.monotonic() - begun, 1),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=100_000)
    parser.add_argument("--faults", type=int, default=0, help="at least so many")
    parser.add_argument("--seconds", type=float, default=3600, help="the longest time")
    parser.add_argument("--alone", action="store_true", help="each partition counts for itself")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    tally = count(chosen.claims, chosen.seconds, faults=chosen.faults, alone=chosen.alone)
    sys.stdout.write(json.dumps(dataclasses.asdict(tally)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
