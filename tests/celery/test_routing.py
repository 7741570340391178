"""Which worker gets which node: services, environments and teams that share one Redis."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace

import pytest
import redis
from celery import Celery, signals

from runner import Client, GraphBuilder
from runner.celery.application import make_app
from runner.celery.queues import add_queues, check_queues
from runner.definition.registry import Registry
from runner.errors import UsageError
from runner.operations.doctor import FAIL, examine, read_facts
from runner.records.run import Status
from runner.settings import Settings, as_broker
from runner.store.redis.store import RedisStore
from tests.celery import service_graphs
from tests.celery.workers import BOOT, MARGIN, RECOVERY, Site
from tests.waiting import wait_until

RUNS = 60

RECEIVED = re.compile(r"Task \S+\[(\w+)\.\S+\.\d+\.\d+\] received")

PATIENT = {
    "RUNNER_GRAPHS": "tests.celery.node_lines,tests.celery.service_graphs",
    "RUNNER_LEASE": "60",
}
"""With a lease so long nothing is rung again while a test runs."""


def deliveries(worker) -> Counter[str]:
    """Count the nodes that a worker got, by run."""
    return Counter(found[1] for found in RECEIVED.finditer(worker.output()))


def served(app, registry=None, **options: list[str]) -> set[str]:
    """Return the queues that a worker of an app would serve with options of its command line."""
    worker = SimpleNamespace(hostname="some@worker")
    add_queues(app, registry or Registry(), worker, options)
    app.amqp.queues.select(options.get("queues"))
    app.amqp.queues.deselect(options.get("exclude_queues"))
    signals.celeryd_after_setup.send(sender=worker.hostname, instance=worker, conf=app.conf)
    return set(app.amqp.queues.consume_from)


@pytest.fixture
def registry():
    registry = Registry()
    for kind in service_graphs.KINDS:
        registry.add(kind, lambda kind=kind: service_graphs.build(kind))
    builder = GraphBuilder()
    builder.add_node(lambda ctx: None, "a", queue="gpu")
    registry.add("special", builder.build)
    return registry


def test_a_worker_serves_the_queues_of_its_graphs_and_no_others(registry):
    """Without -Q: the queues of the graphs, those that nodes name, and that of messages."""
    app = make_app(Settings())

    assert served(app, registry) == {
        "runner",
        "runner/chain",
        "runner/diamond",
        "runner/nested",
        "runner/gpu",
    }


def test_with_q_a_worker_serves_what_is_named(registry):
    """A name means the app's own queue and that of nodes; a queue's whole name means itself."""
    assert served(make_app(Settings()), registry, queues=["gpu"]) == {"gpu", "runner/gpu"}
    assert served(make_app(Settings()), registry, queues=["runner/chain"]) == {"runner/chain"}


def test_q_without_a_queue_of_the_graphs_is_noticed(registry, caplog):
    """A project that names its queues runs no nodes before it names theirs, too: the log has the names."""
    served(make_app(Settings()), registry, queues=["shop", "gpu"])
    assert caplog.text == ""

    served(make_app(Settings()), registry, queues=["shop"])
    assert (
        "add these to --queues: runner/chain,runner/diamond,runner/gpu,runner/nested"
        in caplog.text
    )


def test_a_queue_can_be_left_to_other_workers(registry):
    """`--exclude-queues` takes the short name of a queue, too."""
    assert "runner/gpu" not in served(make_app(Settings()), registry, exclude_queues=["gpu"])
    assert "runner/gpu" not in served(
        make_app(Settings()), registry, exclude_queues=["runner/gpu"]
    )


def test_an_app_keeps_its_own_queues(registry):
    """Our queues are added to those that an app consumes from already."""
    app = make_app(Settings())
    app.conf.task_default_queue = "shop"

    assert {"shop", "runner", "runner/chain"} <= served(app, registry)


def test_the_namespace_begins_every_queue(registry):
    """Two environments have no queue in common, whatever their graphs name."""
    one = served(make_app(Settings()), registry)
    two = served(make_app(Settings(namespace="staging")), registry)

    assert "staging/gpu" in two
    assert not one & two


def test_a_queue_that_is_another_key_is_refused(redis_url, registry):
    """A worker can't read it: that is said at the start, with the queue's name."""
    app = make_app(Settings(redis_url=redis_url))
    served(app, registry)
    check_queues(app)
    with redis.Redis.from_url(redis_url) as client:
        client.set("runner/chain", "no list")

    with pytest.raises(UsageError, match="'runner/chain' can't be read"):
        check_queues(app)
    app.close()


# -- real workers ------------------------------------------------------------------------------------


def start_all(site, services: list[str], count: int):
    """Start runs of all graphs of some services in turn, wait for them, and return them by graph."""
    names = [name for service in services for name in service_graphs.names(service)]
    runs = [
        (names[number % len(names)], site.client.start(names[number % len(names)], "go"))
        for number in range(count)
    ]
    for _, run in runs:
        assert run.wait(120).status is Status.COMPLETED
    return runs


def family(site, run) -> list[str]:
    """Return the ids of a run and of the runs inside it."""
    nodes = site.client.engine.store.read(run.id).nodes.values()
    return [run.id, *(record.child for record in nodes if record.child)]


@pytest.mark.slow
def test_two_services_share_a_redis_untouched(empty_site):
    """No node goes to a worker without its graph, and none comes more often than to one alone."""
    site = empty_site
    shop = site.add(SERVICE="shop", **PATIENT)
    shop.wait_ready()
    alone = start_all(site, ["shop"], len(service_graphs.KINDS))
    wanted = {name.removeprefix("shop-"): total(site, shop, run) for name, run in alone}
    assert wanted["diamond"] == 4
    desk = site.add(SERVICE="desk", **PATIENT)
    desk.wait_ready()

    runs = start_all(site, ["shop", "desk"], RUNS)

    for worker, service in ((shop, "shop"), (desk, "desk")):
        own = [run for name, run in (*alone, *runs) if name.startswith(service)]
        assert deliveries(worker).keys() == {
            run_id for run in own for run_id in family(site, run)
        }
        assert "node.unserved" not in worker.output()
    for name, run in runs:
        service, _, kind = name.partition("-")
        assert total(site, shop if service == "shop" else desk, run) == wanted[kind]


def total(site, worker, run) -> int:
    got = deliveries(worker)
    return sum(got[run_id] for run_id in family(site, run))


@pytest.mark.slow
def test_services_on_one_queue_are_noticed(empty_site):
    """The control: on one queue nodes meet workers without their graph, which say so, as does doctor."""
    site = empty_site
    shop, desk = (
        site.add(SERVICE=name, SERVICE_QUEUE="both", **PATIENT, RUNNER_SWEEP_INTERVAL="0.5")
        for name in ("shop", "desk")
    )
    for worker in (shop, desk):
        worker.wait_ready()

    runs = start_all(site, ["shop", "desk"], 12)

    strange = {run.id for name, run in runs if name.startswith("desk")} & set(deliveries(shop))
    assert strange
    warning = next(line for line in shop.output().splitlines() if "node.unserved" in line)
    assert "WARNING" in warning
    assert "queue 'both'" in warning
    assert "its graph is 'desk-" in warning
    checks = doctor(site)
    assert {check.name for check in checks if check.result == FAIL} == {"routing"}
    assert any(
        "desk-chain" in check.detail and "runner/both" in check.detail for check in checks
    )


def doctor(site, **settings: str):
    return examine(read_facts(Settings(redis_url=site.url, **settings)))


@pytest.mark.slow
def test_a_start_before_the_first_worker_waits_for_it(empty_site):
    """Another service's worker neither gets the run nor hides it; it begins when its own worker comes."""
    site = empty_site
    shop = site.add(SERVICE="shop", **PATIENT)
    shop.wait_ready()
    registry = Registry()
    for kind in service_graphs.KINDS:
        registry.add(f"desk-{kind}", lambda kind=kind: service_graphs.build(kind))
    client = Client(store=RedisStore(site.url), registry=registry)

    run = client.start("desk-chain", "go")

    (queue,) = site.redis.scan_iter("runner/desk-chain*")
    assert site.redis.llen(queue) == 1
    failed = {check.name: check.detail for check in doctor(site) if check.result == FAIL}
    assert "desk-chain" in failed["graphs"]
    desk = site.add(SERVICE="desk", **PATIENT)
    assert run.wait(60).status is Status.COMPLETED
    assert total(site, desk, run) == 3
    assert run.id not in deliveries(shop)


@pytest.mark.slow
def test_two_environments_share_no_key(databases):
    """A worker, its runs, its messages and its monitors: nothing of one namespace is in the other's way."""
    sites = [next(databases) for _ in range(3)]
    keys = []
    try:
        for site, namespace in zip(sites, ("runner", "staging", "staging"), strict=True):
            keys.append(live(site, namespace))
    finally:
        for site in sites:
            site.end()

    # kombu has one list of when the queues of clients that are gone go, whoever's they are.
    assert keys[0] & keys[1] <= {"_kombu.binding_deadlines"}
    assert "staging:workers" in keys[1] & keys[2]  # the control


def live(site: Site, namespace: str) -> set[str]:
    """Have a worker do what workers do, and return every key that was there."""
    site.add(RUNNER_NAMESPACE=namespace).wait_ready()
    client = Client(site.url, namespace=namespace)
    run = client.start("question", "go")
    (question,) = run.wait(60).interrupts
    body = f'{{"v":1,"interrupt_id":"{question.id}","response":1,"reply_to":"{namespace}:replies:me"}}'
    site.redis.xadd(f"{namespace}:responses", {"body": body})
    site.redis.xadd(f"{namespace}:starts", {"body": "no JSON"})
    wait_until(lambda: run.status is Status.COMPLETED, "the run has its answer")
    wait_until(lambda: site.redis.exists(f"{namespace}:replies:me"), "the receipt is there")
    wait_until(lambda: site.redis.exists(f"{namespace}:dead"), "the dead letter is there")
    assert all(check.result != FAIL for check in doctor(site, namespace=namespace))
    return {key.decode() for key in site.redis.scan_iter(count=1000)}


@pytest.mark.slow
def test_a_worker_ends_where_a_queue_can_t_be_read(empty_site):
    """It would get nothing, silently: it names the queue and stops instead, and doctor names it, too."""
    empty_site.redis.set("runner/chain", "no list")

    worker = empty_site.add()

    wait_until(lambda: not worker.alive, "the worker ends", seconds=BOOT)
    assert "queue.unreadable: the queue 'runner/chain' can't be read" in worker.output()


@pytest.mark.slow
def test_a_worker_ends_on_a_store_of_another_layout(empty_site):
    """It would not see the runs that wait there, silently: it stops, and changes nothing."""
    empty_site.redis.set("runner:{p00}:layout", "2")

    worker = empty_site.add()

    wait_until(lambda: not worker.alive, "the worker ends", seconds=BOOT)
    assert "layout.wrong: the store at " in worker.output()
    assert "has data of layout 2, and this version of runner needs layout 1" in worker.output()
    assert list(empty_site.redis.scan_iter("runner:{p00}:*")) == [b"runner:{p00}:layout"]


@pytest.mark.slow
def test_a_worker_with_tasks_of_its_own_warns_of_no_graphs_and_of_slow_nodes(empty_site):
    """An app with our tasks runs its own; what it sets for all its tasks holds for all nodes together."""
    empty_site.ready(app="tests.celery.rated:app", slots=1, RUNNER_GRAPHS="")
    (worker,) = empty_site.workers

    assert "graphs.none" in worker.output()
    assert "RUNNER_GRAPHS" in worker.output()
    wait_until(
        lambda: "nodes.slowed: 100/s for all nodes" in worker.output(), "the log tells of it"
    )


@pytest.mark.slow
def test_a_limit_that_the_worker_ignores_slows_nothing(empty_site):
    """With `worker_disable_rate_limits` neither the log nor doctor speaks of it."""
    empty_site.ready(app="tests.celery.rated:app", slots=1, RUNNER_GRAPHS="", UNRATED="1")
    (worker,) = empty_site.workers

    assert "nodes.slowed" not in worker.output()
    assert "rate limit" not in {check.name for check in doctor(empty_site)}


@pytest.mark.slow
def test_messages_that_no_worker_takes_are_noticed(empty_site):
    """Where -Q or `cancel_consumer` leaves out their queue, starts wait there: doctor says so."""
    names = service_graphs.names("shop")
    empty_site.ready(queues=",".join(names), SERVICE="shop", **PATIENT)
    client = Celery("client", broker=as_broker(empty_site.url), set_as_current=False)
    failed = lambda: {c.name: c.detail for c in doctor(empty_site) if c.result == FAIL}  # noqa: E731

    for _ in range(2):
        assert "queues" not in failed()  # the control: nothing waits there
        client.send_task("runner.start", kwargs={"graph": names[0]}, queue="runner")
        assert failed()["queues"] == "no worker serves runner"
        empty_site.control.add_consumer("runner", reply=True)
        wait_until(lambda: not empty_site.redis.llen("runner"), "the message was taken")
        empty_site.control.cancel_consumer("runner", reply=True)
    client.close()


@pytest.mark.slow
def test_a_worker_with_another_store_than_the_others_says_what_it_meets(empty_site, databases):
    """It takes doorbells and reports of unknown runs; control: the right one goes on with the run."""
    other = next(databases)
    empty_site.ready()
    empty_site.workers[0].kill()
    stranger = empty_site.add(RUNNER_REDIS_URL=other.url, RUNNER_BROKER_URL=empty_site.url)
    stranger.wait_ready()
    run = empty_site.client.start("chain", "go")
    visit = {"run_id": run.id, "node": "a", "visit": 1, "reference": f"{run.id}.a.1.1.task"}
    client = Celery("client", broker=as_broker(empty_site.url), set_as_current=False)
    client.send_task("runner.report", ["done"], visit, queue="runner")

    for task in (f"{run.id}.a.1.1", visit["reference"]):
        told = f"run.unknown: {task}: this store has no such run."
        wait_until(lambda told=told: told in stranger.output(), "the log tells of the run")
    stranger.kill()
    empty_site.add().wait_ready()
    assert run.wait(RECOVERY * 4 + MARGIN).status is Status.COMPLETED
    client.close()
    other.end()
