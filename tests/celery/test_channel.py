"""How a worker reads queues in Redis: which lists it names, and over how many connections."""

from __future__ import annotations

import pytest

from runner.celery import kombu_fixes
from runner.celery.application import make_app
from runner.celery.kombu_fixes import READ, SafeChannel, SafeSentinelChannel
from runner.celery.queues import priorities_of
from runner.definition.registry import Registry
from runner.settings import Settings, as_broker
from tests.celery.workers import Worker
from tests.chaos.servers import Sentinel, Server
from tests.graphs import wired
from tests.waiting import wait_until

QUEUE = "runner/one"


def one(ctx):
    return ctx.node_id


@pytest.fixture
def app(redis_url):
    return make_app(Settings(redis_url=redis_url, broker_url=as_broker(redis_url)))


@pytest.fixture
def channel(app, monkeypatch):
    """A channel of a worker which has one graph, whose nodes have one priority."""
    registry = Registry()
    registry.add("one", wired({"a": one}).build)
    monkeypatch.setattr(SafeChannel, "priorities", priorities_of(app, registry))
    monkeypatch.setattr("kombu.transport.redis.Transport.Channel", SafeChannel)
    with app.connection_for_read() as connection, connection.channel() as channel:
        yield channel


def lists(channel, queue: str) -> list[str]:
    return [channel._q_for_pri(queue, step) for step in channel.priority_steps]


def command(channel) -> tuple[object, ...]:
    return ("BRPOP", *lists(channel, QUEUE), *lists(channel, "celery"), READ)


def test_an_idle_worker_names_every_list(channel):
    """A node of another release may have a priority that this worker's graphs lack: it is found at once."""
    assert channel.shortened(command(channel)) == command(channel)


def test_a_busy_worker_names_the_lists_that_its_graphs_use(channel):
    """Of a graph's queue one of four, of other apps' queues all; and it waits for no longer than a second."""
    channel.shortened(command(channel))
    channel._is_busy = True

    short = channel.shortened(command(channel))

    assert short == ("BRPOP", channel._q_for_pri(QUEUE, 5), *lists(channel, "celery"), 1.0)


def test_a_busy_worker_names_all_each_second(channel, monkeypatch):
    """However busy the worker is, a message of any priority is found within that time."""
    channel.shortened(command(channel))
    channel._is_busy = True
    monkeypatch.setattr(kombu_fixes, "NAME_ALL_EVERY", 0)

    assert channel.shortened(command(channel)) == command(channel)


def test_a_list_that_had_a_message_is_named_from_then_on(channel):
    """Reports of tasks have another priority than nodes: a worker would take one of them each second."""
    channel.shortened(command(channel))
    reports = channel._q_for_pri(QUEUE, 0)

    channel._parse(lambda *_: (reports.encode(), b"{}"), None, "BRPOP")

    assert channel.shortened(command(channel))[1:3] == (reports, channel._q_for_pri(QUEUE, 5))


def test_names_of_lists_are_made_once(channel, monkeypatch):
    """Neither our part nor kombu's makes them again for each read of a busy worker."""
    channel.shortened(command(channel))
    channel._is_busy = True
    channel.shortened(command(channel))
    made = []
    monkeypatch.setattr(channel, "priority", lambda step: made.append(step) or step)
    short = channel.shortened(command(channel))

    assert short[2:] == (*lists(channel, "celery"), 1.0)
    assert made == []


def test_other_commands_are_sent_as_they_are(channel):
    """Only the reading of queues is shortened."""
    channel._is_busy = True

    assert channel.shortened(("LPUSH", QUEUE, "x")) == ("LPUSH", QUEUE, "x")


def test_channels_that_write_share_connections(app, channel):
    """A worker has half a dozen channels; what they write goes over one connection."""
    with app.connection_for_write() as connection, connection.channel() as other:
        assert other.pool is channel.pool
        assert other.async_pool is not channel.async_pool


def test_a_channel_that_closes_takes_no_connection_from_another(app, channel):
    """One that is used meanwhile stays open."""
    used = channel.pool.get_connection()
    used.connect()
    with app.connection_for_write() as connection:
        connection.channel().close()

    assert used._sock is not None
    channel.pool.release(used)


def test_apps_with_other_options_share_nothing(redis_url, channel):
    """An app with another password or timeout has connections of its own."""
    app = make_app(Settings(redis_url=redis_url, broker_url=as_broker(redis_url)))
    app.conf.broker_transport_options = {"socket_timeout": 7}
    with app.connection_for_write() as connection, connection.channel() as other:
        assert other.pool is not channel.pool


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A server, and the Sentinel that names it."""
    folder = tmp_path_factory.mktemp("sentinel")
    servers = Server(folder), Sentinel(folder)
    try:
        primary, sentinel = (server.start() for server in servers)
        sentinel.watch(primary)
        yield primary, sentinel
    finally:
        for server in servers:
            server.end()


@pytest.mark.full
@pytest.mark.parametrize("app", ["runner.celery:app", "tests.celery.watched_app:app"])
def test_a_worker_behind_sentinels_outlives_a_malformed_message(watched, app, tmp_path):
    """It is a dead letter, as on any Redis, whether the app is ours or has a Sentinel as its own broker."""
    primary, sentinel = watched
    (log := tmp_path / "worker.log").touch()
    settings = {"BROKER": f"sentinel://127.0.0.1:{sentinel.port}/0"}
    worker = Worker(sentinel.url, log, ["--pool", "threads"], settings=settings, app=app)
    try:
        worker.wait_ready()
        for queue in ("runner", "celery"):
            primary.client.lpush(queue, "rubbish")
        wait_until(lambda: primary.client.xlen("runner:dead"), "it is a dead letter")
        assert worker.alive
    finally:
        worker.end()
        primary.client.flushall()


def test_the_primaries_of_two_services_share_no_connections(watched, monkeypatch):
    """One Sentinel may watch several."""
    primary, sentinel = watched
    sentinel.client.execute_command(
        "SENTINEL", "MONITOR", "another", "127.0.0.1", primary.port, 1
    )
    app = make_app(Settings(redis_url=sentinel.url))
    monkeypatch.setattr("kombu.transport.redis.SentinelTransport.Channel", SafeSentinelChannel)
    with app.connection_for_write() as connection, connection.channel() as channel:
        ours = channel.pool
    app.conf.broker_transport_options["master_name"] = "another"
    with app.connection_for_write() as connection, connection.channel() as other:
        assert other.pool is not ours
