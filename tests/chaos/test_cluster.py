"""The store in a Redis Cluster of three servers: a partition is whole on one of them, wherever that is."""

from __future__ import annotations

import json
import zlib

import pytest
import redis

from runner import Client, Status
from runner.definition.registry import Registry
from runner.operations.doctor import examine, read_facts
from runner.settings import Settings
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import Outbox
from tests.celery.workers import MARGIN, RECOVERY, Site
from tests.chaos.load import consistent
from tests.chaos.servers import Cluster, Server
from tests.chaos.transitions import Walk
from tests.contract.store import StoreContract
from tests.contract.test_run_sizes import RunSizes
from tests.waiting import wait_until

PARTITIONS = ("p00", "p02", "p03")
"""One on each server."""
REPLIES = "runner:replies:told"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(
        tmp_path_factory.mktemp("cluster"), appendonly="yes", appendfsync="everysec"
    )
    yield cluster
    cluster.end()


@pytest.fixture
def empty(cluster):
    for server in cluster.servers:
        server.client.flushall()
    return cluster


class TestClusterStore(StoreContract, RunSizes):
    """The whole contract and the sizes of runs, spread over the partitions, and so over the servers."""

    @pytest.fixture
    def store(self, clock, empty, request):
        partition = PARTITIONS[zlib.crc32(request.node.name.encode()) % len(PARTITIONS)]
        store = RedisStore(empty.url, partition=partition, clock=clock, lease=30, push=False)
        yield store
        store.close()


@pytest.mark.sample
def test_each_partition_is_whole_on_a_server_of_its_own(empty):
    """A run's keys, timers, notices and indexes share a slot; partitions lie on different servers."""
    for partition in PARTITIONS:
        store = RedisStore(empty.url, partition=partition, push=False)
        for verb, wanted, send in Walk(store, f"00{partition}"):
            assert send("") == wanted, verb
        store.close()

    for partition, server in zip(
        PARTITIONS,
        map(empty.owner, (Keys(partition=name).prefix for name in PARTITIONS)),
        strict=True,
    ):
        keys = [key.decode() for key in server.client.keys("*")]
        assert len(keys) > 5
        assert all(key.startswith(Keys(partition=partition).prefix) for key in keys)


def test_doctor_looks_at_all_servers_of_a_cluster(empty):
    """One that evicts is found, whichever it is; control: none is while all refuse to."""

    def evicting():
        settings = Settings(redis_url=empty.url, broker_url="redis://127.0.0.1:1", partitions=6)
        checks = examine(read_facts(settings))
        return [check.result for check in checks if check.name == "eviction"].count("fail")

    assert evicting() == 0
    for server in empty.servers:
        server.client.config_set("maxmemory-policy", "allkeys-lru")
        assert evicting() == 1
        server.client.config_set("maxmemory-policy", "noeviction")


def test_keys_without_a_common_tag_would_not_share_a_server(empty):
    """Control: scripts that name keys of two partitions are refused, as scripts without tags would be."""
    server = empty.owner(Keys(partition="p00").prefix)
    with pytest.raises(Exception, match=r"slot|non local key"):
        server.client.eval(
            "redis.call('SET', KEYS[1], 1) redis.call('SET', ARGV[1], 1)",
            1,
            Keys(partition="p00").wake,
            Keys(partition="p02").wake,
        )


def test_a_partition_that_moves_to_another_server_is_found_there(empty):
    """When another server gets the slot of a partition, requests follow; control: one server refuses them."""
    store = RedisStore(empty.url, push=False)
    home, other = empty.owner(Keys().prefix), empty.servers[0]
    walk = iter(Walk(store, "00walk"))
    for _ in range(5):
        _, wanted, send = next(walk)
        assert send("") == wanted
    empty.move(Keys().prefix, other)
    try:
        # The first request finds the old map wrong, and is repeated.
        assert store.read("00walk").record.status is not Status.CANCELLED
        with pytest.raises(redis.exceptions.MovedError):
            home.client.hgetall(Keys().run("00walk"))
        for verb, wanted, send in walk:
            assert send("") == wanted, verb
        assert store.read("00walk").record.status is Status.CANCELLED
        assert not home.client.keys(f"{Keys().prefix}*")
        assert other.client.keys(f"{Keys().prefix}*")
    finally:
        other.client.flushall()
        store.close()
        empty.move_back(Keys().prefix, other)


def test_workers_run_on_a_cluster_through_the_loss_of_its_server(empty, tmp_path):
    """With a plain Redis as broker runs go on: starts, rows on a slot, answers, a server killed and back."""
    broker = Server(tmp_path).start()
    site = Site(broker.url, tmp_path)
    client = Client(store=RedisStore(empty.url, push=False, lease=2.0))
    settings = {"RUNNER_REDIS_URL": empty.url, "RUNNER_BROKER_URL": broker.url}
    try:
        site.ready(1, RUNNER_GRAPHS="tests.chaos.cluster_graphs", **settings)
        runs = [client.start(name, "go") for name in ("spread", "row")]
        for run in runs:
            assert run.wait(RECOVERY + MARGIN).status is Status.INTERRUPTED
        questions = [question.id for run in runs for question in run.interrupts()]
        home = empty.owner(Keys().prefix)
        home.kill()
        home.start()
        wait_until(empty.whole, "the cluster is whole", seconds=150)
        outbox = Outbox(empty.url)
        for question in questions:
            body = {"v": 1, "interrupt_id": question, "response": "yes", "reply_to": REPLIES}
            outbox.send("runner:responses", json.dumps(body).encode())

        for run in runs:
            wait_until(
                lambda run=run: run.status is Status.COMPLETED,
                "the run has its answer",
                seconds=150,
            )
            assert run.result().results["c"].output == "yes"
            consistent(client.engine.store, run.id)
        row = [run.result().results[node].output for node in "abcde"]
        assert row == ["fetched", "stayed", "yes", "stayed", "stayed"]
        assert empty.owner(REPLIES).client.xlen(REPLIES) == len(questions)
        assert site.workers[0].alive
        outbox._redis.close()
    finally:
        client.engine.store.close()
        site.end()
        broker.end()


@pytest.mark.sample
def test_a_cluster_is_its_own_broker_through_a_failover(tmp_path):
    """Runs go on when the slot of the queues moves, when its server is lost and when a worker is killed."""
    cluster = Cluster(tmp_path)
    client = Client(redis_url=cluster.url, registry=Registry())
    site = Site(cluster.servers[0].url, tmp_path)
    queues = "{runner}:"

    def covered(server):
        return b"cluster_state:ok" in server.client.execute_command("CLUSTER", "INFO")

    def passes():
        run = client.start("spread", "go")
        (question,) = run.wait(RECOVERY + MARGIN).interrupts
        client.respond(question.id, "yes")
        return run.wait(RECOVERY + MARGIN).results["c"].output == "yes"

    replica = cluster.replicate(queues, tmp_path)
    try:
        graphs = {"RUNNER_GRAPHS": "tests.chaos.cluster_graphs"}
        site.ready(2, RUNNER_REDIS_URL=cluster.url, **graphs)
        assert passes()
        home = cluster.owner(queues)
        assert home is not cluster.owner(Keys().prefix)
        other = next(server for server in cluster.servers if server is not home)
        cluster.move(queues, other)
        assert passes()
        cluster.move_back(queues, other)

        home.kill()
        wait_until(lambda: replica.client.role()[0] == b"master", "the replica takes over")
        alive = [replica, *(server for server in cluster.servers if server is not home)]
        wait_until(lambda: all(map(covered, alive)), "all servers know that it did")
        assert passes()
        site.workers[0].kill()
        assert passes()

        assert site.workers[1].alive
        assert replica.client.keys(f"{queues}*")
    finally:
        client.engine.store.close()
        site.end()
        replica.end()
        cluster.end()
