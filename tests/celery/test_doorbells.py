"""The message that rings for a node: written by Celery, filled in by the store's script."""

from __future__ import annotations

import functools
import json

import pytest
import redis
from celery import Celery, Task
from celery.signals import before_task_publish
from kombu import Connection, Queue

import runner.celery
from runner import Client, GraphBuilder, Status
from runner.celery.application import THREADS, make_app
from runner.celery.config import celery_config, settings_of
from runner.celery.doorbells import CeleryDispatcher, make_template, visit_of
from runner.celery.engines import pushes
from runner.celery.queues import declared
from runner.celery.startup import Publisher
from runner.definition.registry import Registry
from runner.errors import BrokerError, RunnerError, UsageError
from runner.execution.engine import Engine
from runner.settings import Settings, as_broker
from runner.store.interface import Doorbell
from runner.store.redis.doorbell_template import PLACES, VERSION
from runner.store.redis.store import RedisStore
from runner.store.shared import open_store
from tests.tcp_store import tcp_store

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


@pytest.mark.full
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


class Sends(Task):
    """A base class that sends each task later, with a callback and a header."""

    def apply_async(self, *args: object, **options: object) -> object:
        late = {"countdown": 60, "link": self.signature(), "headers": {"tenant": "a"}}
        return super().apply_async(*args, **{**options, **late})


def stamp(headers: dict, **_: object) -> None:
    """A receiver of before_task_publish, as libraries that trace have one."""
    headers["sent_at"] = "just now"


ATTRIBUTES = {
    "expires": 5,
    "eta": 5,
    "countdown": 5,
    "link": 5,
    "chord": 5,
    "retries": 5,
    "queue": "elsewhere",
    "routing_key": "elsewhere",
    "exchange": "elsewhere",
    "priority": 0,
    "serializer": "yaml",
    "compression": "zlib",
    "immediate": True,
    "mandatory": True,
    "delivery_mode": 1,
    "ignore_result": False,
    "track_started": True,
    "acks_late": False,
    "autoretry_for": (Exception,),
    "max_retries": 0,
    "rate_limit": "1/h",
    "send_events": False,
    "store_errors_even_if_ignored": True,
    "trail": False,
}
"""What a task may have, and so an annotation or a base class give to all tasks."""

CONFIGURATION = {
    "task_compression": "zlib",
    "task_default_delivery_mode": 1,
    "task_default_exchange": "elsewhere",
    "task_default_exchange_type": "topic",
    "task_default_priority": 0,
    "task_default_queue": "elsewhere",
    "task_default_routing_key": "elsewhere",
    "task_create_missing_queues": False,
    "task_ignore_result": False,
    "task_inherit_parent_priority": True,
    "task_publish_retry": True,
    "task_send_sent_event": True,
    "task_serializer": "yaml",
    "task_store_errors_even_if_ignored": True,
    "enable_utc": False,
    "timezone": "Europe/Rome",
}

ROUTE = {
    "countdown": 5,
    "eta": 5,
    "exchange": "elsewhere",
    "exchange_type": "topic",
    "expiration": 5,
    "expires": 5,
    "headers": {"tenant": "a"},
    "link": 5,
    "priority": 0,
    "queue": "elsewhere",
    "retries": 5,
    "routing_key": "elsewhere",
    "time_limit": 5,
}

FOR_ALL_TASKS = [
    *[({"task_annotations": {"*": {name: value}}}, Task) for name, value in ATTRIBUTES.items()],
    *[({}, type("Base", (Task,), {name: value})) for name, value in ATTRIBUTES.items()],
    *[({name: value}, Task) for name, value in CONFIGURATION.items()],
    *[({"task_routes": {"*": {name: value}}}, Task) for name, value in ROUTE.items()],
    ({}, Sends),
]


def doorbells(redis_url, base: type[Task] = Task, **configuration: object) -> list:
    """Return an app's doorbells as a worker reads them: the one pushed, then the one published."""
    app = Celery("shop", task_cls=base, broker=as_broker(redis_url), set_as_current=False)
    app.conf.update(configuration)
    runner.celery.install(app)
    run_id = ring(redis_url, app, queue="gpu", priority=7)
    CeleryDispatcher(app).ring([Doorbell(run_id, "a quoted node", 1, 1, "gpu", 7, "refund")])
    with redis.Redis.from_url(redis_url) as client:
        queues = {key: client.llen(key) for key in client.scan_iter("runner/*", _type="list")}
    read = []
    for message in (take(app, "runner/gpu"), take(app, "runner/gpu")):
        assert message.headers.pop("id") == f"{run_id}.a quoted node.1.1"
        ours = {
            name: message.headers.get(name) for name in message.headers.keys() - PER_MESSAGE
        }
        read.append(
            (ours, message.payload, message.delivery_info, message.properties["priority"])
        )
    app.close()
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    return [queues, read]


PER_MESSAGE = {"root_id", "origin", "compression"}


@functools.cache
def plain_doorbells(redis_url):
    """Return the doorbells of an app without settings, read once."""
    return doorbells(redis_url)


@pytest.mark.full
@pytest.mark.parametrize(("configuration", "base"), FOR_ALL_TASKS)
def test_what_holds_for_all_tasks_of_an_app_changes_no_doorbell(redis_url, configuration, base):
    """No expiry, countdown, callback, route or header of an app is in a doorbell, pushed or published."""
    assert doorbells(redis_url, base, **configuration) == plain_doorbells(redis_url)


@pytest.mark.full
def test_what_a_receiver_knows_of_one_message_is_not_in_all(redis_url):
    """A header of `before_task_publish` is what it was when a worker started: pushed doorbells lack it."""
    before_task_publish.connect(stamp)
    try:
        _, (pushed, published) = doorbells(redis_url)
    finally:
        before_task_publish.disconnect(stamp)

    assert "sent_at" not in pushed[0]
    assert published[0]["sent_at"] == "just now"


@pytest.mark.slow
def test_nodes_run_in_an_app_whose_tasks_are_late_and_expire(empty_site):
    """Nodes, an external task's report and a failure are what they are in any app."""
    module = "tests.celery.opinionated_shop"
    empty_site.add(app=f"{module}:app", RUNNER_GRAPHS=module)
    empty_site.ready()
    at_once = empty_site.client.start("failing_at_once", "go").wait(60)
    result = empty_site.client.start("opinionated", 4).wait(60)

    assert at_once.status is Status.FAILED
    assert str(result.results["fail"].result) == "no order 8"
    assert not empty_site.redis.exists("celery", "shop.notes")
    assert "retry" not in empty_site.workers[0].output().lower()


@pytest.mark.slow
def test_a_node_runs_though_its_doorbell_has_expired(empty_site, databases):
    """A receiver of `before_task_publish` expires each message, which a broker elsewhere gets one by one."""
    module, broker = "tests.celery.expiring_shop", next(databases)
    empty_site.add(
        app=f"{module}:app", RUNNER_GRAPHS=module, RUNNER_BROKER_URL=as_broker(broker.url)
    )
    try:
        empty_site.ready()
        run = empty_site.client.start("expiring", 4)

        assert run.wait(60).results["second"].output == 4
        assert "revoked" not in empty_site.workers[0].output()
    finally:
        broker.end()


def test_an_app_whose_messages_are_unusual_is_found_out(app):
    """Where Celery writes what the template can't hold, it is not used, and the reason is told."""
    app.conf.task_protocol = 1

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


def test_an_app_that_moves_to_another_broker_takes_the_template_away(redis_url, app):
    """Otherwise every start would ring a queue that nobody reads, and wait for a lease."""
    settings = Settings(redis_url=redis_url)
    store = open_store(settings)
    store.install_doorbell(make_template(app))
    app.conf.broker_transport_options = {"global_keyprefix": "team:"}

    Publisher(app, Engine(store, CeleryDispatcher(app), Registry()), settings).publish()

    assert not store.has_doorbell()


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
    settings = Settings(broker_url="amqp://guest@localhost//")
    config, app = celery_config(settings), make_app(settings)

    assert declared(app, "runner/refund").queue_arguments == {"x-queue-type": "quorum"}
    assert declared(app, settings.messages_queue).queue_arguments is None
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
    with tcp_store() as store:
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
