"""Celery tasks of another app as nodes: sent by our workers, run by theirs, reported to ours."""

from __future__ import annotations

import json
from contextlib import closing
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from runner import GraphBuilder, Status
from runner.celery import CeleryTask
from runner.celery.queues import tasks_of
from runner.cli.program import runner
from runner.definition.registry import Registry
from runner.errors import DefinitionError
from runner.operations.doctor import FAIL, PASS, examine, read_facts
from runner.operations.views import read_run
from runner.settings import Settings
from runner.store.redis.store import RedisStore
from tests.celery.workers import BOOT, MARGIN, RECOVERY
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.task_graphs"}
PLAIN, WITH_OURS = "tests.celery.shop:app", "tests.celery.shop_with_ours:app"


def open_shop(site, app=PLAIN, slots=2):
    """Start a worker of the shop, and wait until it takes tasks."""
    worker = site.add(slots=slots, app=app, forked=app is WITH_OURS, **GRAPHS)
    wait_until(lambda: " ready." in worker.output(), "the shop's worker is ready", seconds=BOOT)
    return worker


def start_ours(site):
    """Start a worker of ours with two slots."""
    site.add(slots=2, **GRAPHS)
    site.ready()
    return site


def queues_check(site):
    facts = read_facts(Settings(redis_url=site.url))
    return next(check for check in examine(facts) if check.name == "queues")


def charge_node(site, run):
    with closing(RedisStore(site.url)) as store:
        return next(node for node in read_run(store, run.id).nodes if node.id == "charge")


@pytest.fixture(scope="module")
def plain(databases):
    """Six runs that waited for the shop, and what was said of one; an app without ours serves them now."""
    site = start_ours(next(databases))
    runs = [site.client.start("charging", number) for number in range(6)]
    wait_until(lambda: site.redis.llen("celery") == 6, "all six tasks are sent")
    waited = SimpleNamespace(
        site=site,
        runs=runs,
        statuses={run.status for run in runs},
        charge=charge_node(site, runs[0]),
        queues=queues_check(site),
        shown=CliRunner().invoke(
            runner, ["runs", "show", runs[0].id], env={"RUNNER_REDIS_URL": site.url}
        ),
    )
    open_shop(site)
    yield waited
    site.end()


@pytest.mark.slow
def test_a_node_that_waits_for_a_task_of_another_app_holds_no_worker(plain):
    """Six wait on two slots; then each gets its input, whose id names run, node, visit and attempt."""
    assert plain.statuses == {Status.EXECUTING}
    for number, run in enumerate(plain.runs):
        result = run.wait(60)
        charged = {"order": {"id": number}, "task": f"{run.id}.charge.1.1.task"}
        assert result.status is Status.COMPLETED
        assert result.results["charge"].result == charged
        assert result.results["note"].output == charged


@pytest.mark.slow
def test_a_task_on_a_queue_that_nobody_serves_is_named(plain):
    """The run says what it waits for, doctor which queue is not served; not once a worker is there."""
    plain.runs[0].wait(60)

    assert plain.charge.waits_for == "task shop.charge on queue celery"
    assert "\twaits for task shop.charge on queue celery\t" in plain.shown.stdout
    assert (plain.queues.result, queues_check(plain.site).result) == (FAIL, PASS)
    assert "'shop.charge' on 'celery'" in plain.queues.detail
    assert charge_node(plain.site, plain.runs[0]).waits_for == ""


@pytest.mark.slow
def test_a_failed_task_of_an_app_without_ours_says_where_to_look(plain):
    """Celery tells other workers which task failed and no more; what is not JSON fails its node, too."""
    failed = plain.site.client.start("declined", "visa").wait(60)
    unsent = plain.site.client.start("unsendable", "x").wait(60)

    assert failed.status is Status.FAILED
    assert "runner.celery.install(app)" in str(failed.results["work"].result)
    assert unsent.status is Status.FAILED
    assert "can't be stored" in str(unsent.results["work"].result)


@pytest.mark.slow
def test_a_task_that_has_done_its_work_never_fails_its_node(plain):
    """A Decimal comes back as one and is one for the next node; what can't be stored is stored as JSON."""
    priced = plain.site.client.start("priced", None).wait(60)
    prices = plain.site.client.start("set_of_prices", None).wait(60)

    assert priced.status is prices.status is Status.COMPLETED
    assert priced.results["work"].result == Decimal("1.5")
    assert priced.results["double"].result == Decimal("3.0")
    assert prices.results["work"].result == {"prices": ["1.5", "Infinity"]}
    assert any(
        "report.converted: the result of" in worker.output() for worker in plain.site.workers
    )


@pytest.fixture(scope="module")
def shop_site(databases):
    """A worker of ours, and one with one slot of the shop that has our tasks in its app."""
    site = start_ours(next(databases))
    open_shop(site, WITH_OURS, slots=1)
    yield site
    site.end()


def begun(site, gate):
    return [line.decode() for line in site.redis.lrange(f"begun:{gate}", 0, -1)]


@pytest.mark.slow
def test_a_failed_task_fails_its_node_and_a_policy_tries_again(shop_site):
    """With our tasks in its app the error comes whole: type and message, and the policy counts it."""
    failed = shop_site.client.start("declined", "visa").wait(60)
    again = shop_site.client.start("declined_once", "amex").wait(60)

    assert failed.status is Status.FAILED
    assert repr(failed.results["work"].result) == "LookupError('no card visa')"
    assert again.results["work"].output == "amex"
    assert again.results["work"].attempts == 2


@pytest.mark.slow
def test_a_task_whose_worker_died_is_late(empty_site):
    """Its node's timeout fails the node."""
    shop = open_shop(start_ours(empty_site), WITH_OURS)
    run = empty_site.client.start("slow_in_time", "g1")
    wait_until(lambda: begun(empty_site, "g1"), "the task has begun")
    shop.kill()

    result = run.wait(5 + RECOVERY + MARGIN)
    assert result.status is Status.FAILED
    assert "did not end within the node's timeout" in str(result.results["work"].result)


class ThreeTasks:
    """Three runs of which one has begun its task, and one's task is still queued: the idle one."""

    def __init__(self, site, name) -> None:
        self.site, self.gates = site, [f"{name}{number}" for number in range(3)]
        self.shop = site.workers[1]
        before = self.shop.output().count("] received")
        runs = {run.id: run for run in (site.client.start("slow", gate) for gate in self.gates)}
        # One runs and one has come: a third stays where it is.
        wait_until(
            lambda: self.shop.output().count("] received") == before + 2,
            "the worker has no room for more",
        )
        wait_until(lambda: site.redis.llen("celery") == 1, "one task is still queued")
        headers = json.loads(site.redis.lindex("celery", 0))["headers"]
        self.idle = runs.pop(headers["id"].partition(".")[0])
        self.others = list(runs.values())

    def heard(self):
        """Wait until the shop knows that the idle one's task is revoked."""
        told = f"Tasks flagged as revoked: {self.idle.id}"
        wait_until(lambda: told in self.shop.output(), "it is revoked")

    def finish(self):
        """Let all tasks end."""
        for gate in self.gates:
            self.site.redis.set(f"gate:{gate}", 1)
        assert {run.wait(60).status for run in self.others} == {Status.COMPLETED}


@pytest.mark.slow
def test_a_cancelled_run_revokes_its_task(shop_site):
    """A task that no worker has taken when its run is cancelled never begins."""
    three = ThreeTasks(shop_site, "cancelled")

    three.idle.cancel("enough")
    three.heard()
    three.finish()

    left_out = f"Discarding revoked task: shop.slow[{three.idle.id}"
    wait_until(lambda: left_out in three.shop.output(), "the third one is left out")
    assert sum(len(begun(shop_site, gate)) for gate in three.gates) == 2
    assert three.idle.wait(60).status is Status.CANCELLED


@pytest.mark.slow
def test_a_task_that_is_discarded_fails_its_node(shop_site):
    """One that an operator revokes, and one that has expired; control: the tasks beside them complete."""
    three = ThreeTasks(shop_site, "discarded")
    shop_site.control.revoke(f"{three.idle.id}.work.1.1.task")
    three.heard()
    three.finish()
    late = shop_site.client.start("expiring", "late")
    expired = late.wait(60)

    assert "was revoked" in str(three.idle.wait(60).results["work"].result)
    assert "expired before a worker took it" in str(expired.results["work"].result)
    outputs = "".join(worker.output() for worker in shop_site.workers)
    for run in (three.idle, late):
        assert outputs.count(f"task.discarded: task shop.slow ({run.id}") == 1


@pytest.mark.slow
def test_a_task_that_can_never_be_sent_fails_its_node(empty_site):
    """Its app's serializer can't write an argument, or the task doesn't take it; the worker logs an error."""
    module = "tests.celery.opinionated_shop"
    worker = empty_site.add(app=f"{module}:app", RUNNER_GRAPHS=module)
    empty_site.ready()
    result = empty_site.client.start("unsendable", 0).wait(60)

    value, number = (result.results[node].result for node in ("value", "number"))
    assert "shop.double can't be sent with these arguments: " in str(value)
    assert "Decimal" in str(value)
    assert "takes 1 positional argument but 2 were given" in str(number)
    logged = "raised unexpected: UnstorableError("
    wait_until(lambda: worker.output().count(logged) == 2, "both errors are logged")
    assert "external_task.unsent" not in worker.output()


def test_in_process_there_is_no_worker_to_send_it():
    """The node fails and says what to do, and nothing was sent."""
    builder = GraphBuilder()
    builder.add_node(CeleryTask("shop.charge"), "charge")
    result = builder.build()("o1")

    assert result.status is Status.FAILED
    assert "Start the graph with a Client, and run workers" in str(
        result.results["charge"].result
    )


@pytest.mark.parametrize("is_eager", [True, False])
def test_in_process_an_eager_app_runs_its_task(is_eager):
    """Its error fails the node; a result that can't be stored does not. Nothing is sent."""
    app = Celery(broker="redis://127.0.0.1:1", set_as_current=False)
    app.conf.task_always_eager = is_eager

    @app.task(shared=False)
    def divide(pair):
        return {Decimal(pair[0]) / pair[1]: frozenset({7})}

    builder = GraphBuilder()
    builder.add_node(CeleryTask(divide), "divide")
    graph = builder.build()

    result = graph([3, 2]).results["divide"]
    if is_eager:
        assert result.output == {"1.5": [7]}
        assert isinstance(graph([3, 0]).results["divide"].result, ZeroDivisionError)
    else:
        assert "set task_always_eager" in str(result.result)


def test_what_is_no_task_is_refused():
    """Only a name or a Celery task can be one."""
    for wrong in ("", 3, len):
        with pytest.raises(DefinitionError, match="isn't a Celery task"):
            CeleryTask(wrong)


def test_the_queues_of_tasks_are_known_before_any_is_sent():
    """By `queue=`, by a route of a name or a task, and for the items of a map; not if the router fails."""
    app = Celery(broker="redis://127.0.0.1:1", set_as_current=False)

    def route(name, *_, **__):
        if name == "shop.broken":
            raise LookupError(name)
        queues = {"shop.pack": "routed", "shop.own": "own"}
        return {"queue": queues[name]} if name in queues else None

    app.conf.task_routes = [route]

    @app.task(name="shop.own")
    def own():
        return None

    registry, builder = Registry(), GraphBuilder()
    builder.add_node(CeleryTask("shop.charge", queue="named"), "named")
    builder.add_node(CeleryTask(own), "own")
    builder.add_node(CeleryTask("shop.pack"), "routed")
    builder.add_node(CeleryTask("shop.broken"), "broken")
    builder.add_map(CeleryTask("shop.item", queue="items"), "items", over="named")
    for source, target in pairwise(("own", "routed", "broken", "named", "items")):
        builder.add_edge(source, target)
    registry.add("sending", builder.build)

    assert tasks_of(app, registry) == {
        "named": "shop.charge",
        "own": "shop.own",
        "routed": "shop.pack",
        "items": "shop.item",
    }
