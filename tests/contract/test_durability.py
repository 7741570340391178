"""How safe a write is before anybody is told of it: `fast`, `fsync`, `replica`."""

from __future__ import annotations

import pytest
import redis

from runner.dev.embedded import embedded_store
from runner.errors import NotDurable, StoreError
from runner.limits.limit import Limit
from runner.records.interrupts import Decision, ReceiptStatus
from runner.records.run import Status
from runner.store.addresses import partition_addresses
from runner.store.interface import Settlement, Start
from runner.store.redis import durability, layout
from runner.store.redis.store import RedisStore
from runner.store.requests import AnswerQuestions, ParkVisit, SettleVisit, StartRun
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.contract.test_partitions import partitioned

GRAPH = shape("a")
STAYING = Settlement(Status.COMPLETED, "1", "out", {"v": 1}, may_continue=True)


@pytest.fixture(scope="module")
def server():
    """A server with an append-only file; nobody follows it."""
    with embedded_store(appendonly=True) as server:
        yield server


@pytest.fixture
def client(server):
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.flushall()
        client.config_resetstat()
        yield client
        client.config_set("appendfsync", "always")
        client.config_set("appendonly", "yes")


@pytest.fixture
def opened(server):
    """Open stores at a level; they are closed in the end."""
    stores = []

    def store(level: str) -> RedisStore:
        stores.append(RedisStore(server.url, push=False, durability=level))
        return stores[-1]

    yield store
    for each in stores:
        each.close()


@pytest.fixture
def hurried(monkeypatch):
    """Wait for a tenth of a second only."""
    monkeypatch.setattr(durability, "WITHIN", 0.1)
    monkeypatch.setattr(durability, "WAIT_MS", 50)


def waits(client) -> int:
    statistics = client.info("commandstats")
    return sum(
        statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("wait", "waitaof")
    )


def start(store, run_id="00run", **said):
    store.publish([GRAPH])
    return store.do(StartRun(Start(run_id, GRAPH.graph_id, GRAPH.fingerprint, "task", **said)))


def test_fast_waits_for_nothing(opened, client):
    """By default no request costs a second round trip."""
    worker = ManualWorker(opened("fast"))
    run_id = worker.start(GRAPH)
    worker.answer(*worker.park(run_id, "a"))

    assert waits(client) == 0


@pytest.mark.full
def test_what_is_acknowledged_waits_for_the_disk(opened, client, waits_for_disk):
    """At the level `fsync` each reply that promises something waits for the disk once, and no other does."""
    worker = ManualWorker(opened("fsync"))
    counts = [waits(client)]
    run_id = worker.start(GRAPH)
    counts.append(waits(client))
    token = worker.token(run_id, "a")
    counts.append(waits(client))
    question = worker.question(token)
    worker.store.do(ParkVisit(token, [question], None))
    counts.append(waits(client))
    worker.answer(question)
    counts.append(waits(client))
    worker.settle(worker.token(run_id, "a"))
    worker.store.sweep()
    counts.append(waits(client))

    assert counts == [0, 1, 1, 2, 3, 4]


@pytest.mark.parametrize("partition", ["00", "01"])
def test_a_slot_that_another_partition_counts_waits_for_the_disk(
    server, client, waits_for_disk, partition
):
    """A claim may be lost with its slot, but no slot alone; control: one that its partition counts."""
    layout.record(partition_addresses(server.url, 2))
    store = partitioned([server.url] * 2, durability="fsync")
    name = next(name for name in map(str, range(32)) if store._layout.limit_home(name) == 1)
    worker = ManualWorker(store)
    run_id = worker.start(
        shape("a", limits={"a": [Limit(name, concurrency=1)]}), beside=partition
    )
    before = waits(client)
    token = worker.token(run_id, "a")
    claimed = waits(client)
    worker.end(token)

    assert (claimed - before, waits(client) - claimed) == (1 if partition == "00" else 0, 1)
    store.close()


def test_a_server_that_can_t_wait_for_its_disk_is_told_before_anything_is_written(
    opened, client, waits_for_disk
):
    """Without an append-only file the level `fsync` is an error that says so, and nothing is written."""
    client.config_set("appendonly", "no")
    store = opened("fsync")
    store.publish([GRAPH])
    with pytest.raises(
        StoreError, match=r"append-only file is off.*Nothing was done.*appendonly yes"
    ):
        start(store)

    assert store.read("00run") is None


def test_an_append_only_file_that_is_switched_off_later_is_not_durable(
    opened, client, waits_for_disk
):
    """A server that loses the ability while programs run acknowledges nothing from then on."""
    store = opened("fsync")
    start(store, "00first")
    client.config_set("appendonly", "no")

    with pytest.raises(NotDurable, match="same idempotency key"):
        start(store)


@pytest.mark.slow
def test_without_a_replica_nothing_counts_as_accepted(opened, client, hurried):
    """A start and an answer that no replica has are written and yet refused, also when they are repeated."""
    store = opened("replica")
    for _ in range(2):
        with pytest.raises(NotDurable, match="no replica confirmed it"):
            start(store, idempotency_key="key")
    assert store.read("00run") is not None
    fast = ManualWorker(opened("fast"))
    fast.know("00run", GRAPH)
    (question,) = fast.park("00run", "a")
    for _ in range(2):
        with pytest.raises(NotDurable):
            store.do(AnswerQuestions([Decision(question.id, "yes")], "n"))

    (receipt,) = (
        opened("fast").do(AnswerQuestions([Decision(question.id, "yes")], "n")).receipts
    )
    assert receipt.status is ReceiptStatus.ACCEPTED


def test_a_settle_that_claims_the_next_node_waits_once(opened, client, waits_for_disk):
    """A node that stays on its worker is as safe as one that is rung for."""
    worker = ManualWorker(opened("fsync"))
    _, token = worker.begin("a>b")
    before = waits(client)

    assert worker.store.do(SettleVisit(token, STAYING, "n")).claim.token.node == "b"
    assert waits(client) == before + 1


def test_the_claim_of_an_unconfirmed_settle_comes_with_its_repeat(opened, client, hurried):
    """A settle that no replica has is refused with what it claimed; the same one again returns both."""
    worker = ManualWorker(opened("fast"))
    _, token = worker.begin("a>b")
    for _ in range(2):
        with pytest.raises(NotDurable):
            opened("replica").do(SettleVisit(token, STAYING, "n"))

    assert opened("fast").do(SettleVisit(token, STAYING, "n")).claim.token.node == "b"
