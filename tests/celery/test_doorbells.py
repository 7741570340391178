"""The message that rings for a node: written by Celery, filled in by the store's script."""

from __future__ import annotations

import json

import pytest
import redis
from celery import Celery
from kombu import Connection, Queue

import runner.celery
from runner import Client, GraphBuilder, Status
from runner.celery.application import THREADS, make_app
from runner.celery.config import celery_config, settings_of
from runner.celery.doorbells import CeleryDispatcher, make_template, visit_of
from runner.celery.engines import pushes
from runner.definition.registry import Registry
from runner.dev.embedded import embedded_store
from runner.errors import BrokerError, RunnerError, UsageError
from runner.settings import Settings, as_broker
from runner.store.interface import Doorbell
from runner.store.redis.doorbell_template import PLACES, VERSION
from runner.store.redis.store import RedisStore

BELL = Doorbell("00run", "my.node", 3, 2, "gpu", 0, "refund")


@pytest.fixture
def app(redis_url):
    app = make_app(Settings(redis_url=redis_url))
    yield app
    app.close()


def take(app, queue: str):
    """Take a message off a queue as a worker does, through kombu."""
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(queue).get(timeout=60)
        message.ack()
        return message


def builder_of(node_id: str, **node: object) -> GraphBuilder:
    builder = GraphBuilder()
    builder.add_node(lambda ctx: None, node_id, **node)
    return builder


def ring(redis_url, app, **node: object) -> str:
    """Start a run whose first node has these options, rung by the store's own script."""
    registry = Registry()
    registry.add("refund", builder_of("a quoted node", **node).build)
    store = RedisStore(redis_url)
    store.install_doorbell(make_template(app))
    return Client(store=store, registry=registry).start("refund", "go").id


def test_the_script_s_message_is_the_one_that_celery_writes(redis_url, app):
    """A worker reads the same from the store's doorbell as from one that Celery published."""
    run_id = ring(redis_url, app, queue="gpu", priority=0)
    pushed = take(app, "runner/gpu")
    CeleryDispatcher(app).ring([Doorbell(run_id, "a quoted node", 1, 1, "gpu", 0, "refund")])
    published = take(app, "runner/gpu")

    assert pushed.headers == {name: published.headers[name] for name in pushed.headers}
    assert pushed.headers["id"] == f"{run_id}.a quoted node.1.1"
    assert pushed.headers["shadow"] == "refund/a quoted node"
    assert pushed.payload[:2] == published.payload[:2] == [[], {}]
    assert pushed.delivery_info == published.delivery_info
    assert pushed.properties["priority"] == published.properties["priority"] == 0


def test_a_doorbell_is_short(redis_url, app):
    """A doorbell carries ids and nothing else: half of what Celery would send, or less."""
    ring(redis_url, app)
    with redis.Redis.from_url(redis_url) as client:
        ((message,),) = [
            client.lrange(key, 0, -1) for key in client.scan_iter("runner/*", _type="list")
        ]

    assert len(message) <= 460


def test_processes_of_two_releases_ring_with_their_own_templates(redis_url, app):
    """A later release's template has places that this one can't fill in: it is left to that release."""
    later = {"template": '{"id": "%s", "tenant": "%s"}', "places": "id tenant", "5": ""}
    registry = Registry()
    registry.add("refund", builder_of("a").build)
    with redis.Redis.from_url(redis_url) as client:
        client.hset(f"runner:{{p00}}:doorbell:{VERSION + 1}", mapping=later)
        store = RedisStore(redis_url)
        before = Client(store=store, registry=registry).start("refund", "go")
        assert list(client.scan_iter("runner/*")) == []
        assert client.llen("runner:{p00}:wake") == 1  # a worker that sweeps rings for it
        store.install_doorbell(make_template(app))
        after = Client(store=store, registry=registry).start("refund", "go")

    assert before.status is Status.EXECUTING
    assert take(app, "runner/refund").headers["id"] == f"{after.id}.a.1.1"


def test_what_a_template_can_hold_changes_with_its_version_only():
    """Who changes the places raises VERSION, here and in the script that fills them in."""
    names = "argsrepr correlation_id delivery_tag id parent_id priority queue root_id shadow"

    assert (VERSION, " ".join(sorted(PLACES))) == (1, names)


@pytest.mark.parametrize("priority", range(10))
def test_every_priority_has_the_list_that_the_worker_reads(redis_url, app, priority):
    """The store rings on the very list that kombu uses for that priority."""
    ring(redis_url, app, priority=priority)
    with redis.Redis.from_url(redis_url) as client:
        keys = list(client.scan_iter("runner/*", _type="list"))
    with app.connection_for_read() as connection, connection.channel() as channel:
        assert keys == [channel._q_for_pri("runner/refund", priority).encode()]


def test_a_time_limit_is_part_of_every_doorbell(redis_url, app):
    """What an app's settings say of all tasks is in the store's doorbells, too."""
    app.tasks["runner.node"].time_limit = 77
    try:
        ring(redis_url, app)
        assert take(app, "runner/refund").headers["timelimit"] == [77, None]
    finally:
        app.tasks["runner.node"].time_limit = None


def test_the_serializer_of_an_app_is_for_its_own_tasks(redis_url, app):
    """Doorbells are JSON beside tasks that are pickled."""
    app.conf.task_serializer = "pickle"
    ring(redis_url, app)

    assert take(app, "runner/refund").content_type == "application/json"


def test_an_app_whose_messages_are_unusual_is_found_out(app):
    """Where Celery writes what the template can't hold, it is not used, and the reason is told."""
    app.conf.task_compression = "zlib"

    with pytest.raises(RunnerError, match="published one by one"):
        make_template(app)


def test_a_lost_broker_is_a_broker_error():
    """A doorbell that can't be published says so in the library's words; the sweeper rings again."""
    app = make_app(Settings(broker_url="amqp://127.0.0.1:1//"))

    with pytest.raises(BrokerError, match="could not be reached"):
        CeleryDispatcher(app).ring([BELL])


def test_a_broker_elsewhere_is_published_to(redis_url):
    """With the queue in another database the store's script rings nothing, and doorbells are published."""
    elsewhere = redis_url.replace("db=0", "db=9")
    app = make_app(Settings(redis_url=redis_url, broker_url=as_broker(elsewhere)))
    assert not pushes(app, settings_of(app))

    CeleryDispatcher(app).ring([BELL])

    with redis.Redis.from_url(redis_url) as here, redis.Redis.from_url(elsewhere) as there:
        assert list(here.scan_iter(_type="list")) == []
        assert take(app, "runner/gpu").headers["id"] == BELL.task_id
        there.flushdb()
    app.close()


@pytest.mark.parametrize(("prefix", "is_pushed"), [("", True), ("team:", False)])
def test_queues_whose_names_kombu_changes_are_published_to(redis_url, prefix, is_pushed):
    """The script of the store rings no queue to whose name kombu adds a prefix; it rings the others."""
    app = make_app(Settings(redis_url=redis_url))
    app.conf.broker_transport_options = {"global_keyprefix": prefix}

    assert pushes(app, settings_of(app)) == is_pushed
    app.close()


@pytest.mark.parametrize(
    ("task_id", "visit"),
    [
        ("00run.node.1.1", ("00run", "node", 1, 1)),
        ("00run.my.dotted.node.12.3", ("00run", "my.dotted.node", 12, 3)),
        ("00run.7.8.9", ("00run", "7", 8, 9)),
    ],
)
def test_a_task_s_id_names_the_visit(task_id, visit):
    """The run ends at the first dot, visit and attempt are the last two parts, the rest is the node."""
    assert visit_of(task_id) == visit


@pytest.mark.parametrize(
    "task_id", ["", "x", "run.node", "run.node.1", "run..1.1", "run.node.1.x", ".n.1.1"]
)
def test_other_ids_are_refused(task_id):
    """A task of our name with an id that names no visit runs nothing."""
    with pytest.raises(UsageError, match=r"run\.node\.visit\.attempt"):
        visit_of(task_id)


def test_only_json_is_taken_and_no_result_is_kept():
    """The app takes JSON only, keeps no results, and leaves the care for messages to the store."""
    config = celery_config(Settings())

    assert config["accept_content"] == config["result_accept_content"] == ["json"]
    assert config["task_ignore_result"] is True
    assert config["result_backend"] is None
    assert config["worker_prefetch_multiplier"] == 1
    assert config["broker_transport_options"]["ack_emulation"] is False


def test_rabbitmq_gets_quorum_queues_and_confirms():
    """With RabbitMQ as the broker, queues survive the loss of a machine and publishing is confirmed."""
    config = celery_config(Settings(broker_url="amqp://guest@localhost//"))

    assert config["task_default_queue_type"] == "quorum"
    assert config["broker_transport_options"] == {"confirm_publish": True}


def test_monitors_do_not_see_our_settings(redis_url):
    """The store's address, which may hold a password, is masked where Celery shows its configuration."""
    app = make_app(Settings(redis_url="redis://:hunter2@127.0.0.1/0"))

    assert "hunter2" not in app.conf.humanize(with_defaults=True, censored=True)
    assert "hunter2" not in json.dumps(
        app.conf.table(with_defaults=True, censored=True), default=repr
    )


def test_installing_adds_to_an_app_and_changes_nothing_else():
    """`runner.celery.install` gives an existing app our tasks and threads; its own settings stay."""
    app = Celery("other_team", broker="redis://127.0.0.1/5", set_as_current=False)
    app.conf.task_default_queue = "mine"

    runner.celery.install(app)

    assert {"runner.node", "runner.respond", "runner.start"} <= app.tasks.keys()
    assert app.conf.task_default_queue == "mine"
    assert app.conf.broker_transport_options == {}
    assert app.steps["worker"] == THREADS


def test_a_password_guarded_socket_serves_as_store_and_broker():
    """A store behind a password is rung on like any other."""
    with embedded_store(tcp=True) as store:
        app = make_app(Settings(redis_url=store.url, broker_url=store.broker_url))
        with Connection(store.broker_url) as connection:
            connection.ensure_connection(max_retries=1)
        assert pushes(app, settings_of(app))
        run_id = ring(store.url, app)
        assert take(app, "runner/refund").headers["id"] == f"{run_id}.a quoted node.1.1"
        app.close()


@pytest.mark.parametrize(("ours", "theirs"), [(0, 9), (5, 4), (9, 0)])
def test_the_first_priority_is_the_highest_where_the_broker_is_no_redis(ours, theirs):
    """Priority 0 comes first: RabbitMQ takes the highest number first, so there it is sent as 9."""
    app = make_app(Settings(broker_url="memory://"))
    bell = Doorbell("0run", "node", 1, 1, "gpu", ours, "graph")
    CeleryDispatcher(app).ring([bell])

    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(Queue("runner/gpu", routing_key="runner/gpu")).get(
            timeout=60
        )
        assert message.properties["priority"] == theirs
        assert message.headers["id"] == bell.task_id
    app.close()
