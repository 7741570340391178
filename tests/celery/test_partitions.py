"""Real workers on a store of several partitions: on two servers, on one, and in a cluster."""

from __future__ import annotations

import json
from contextlib import closing
from uuid import uuid4

import amqp
import pytest
from celery import Celery

from runner import Client, Status
from runner.definition.registry import Registry
from runner.errors import StoreError
from runner.operations.doctor import FAIL, examine, read_facts
from runner.records.asking import numbered_question
from runner.records.interrupts import Address
from runner.settings import Settings
from runner.store.redis.keys import Keys
from runner.store.redis.partitions import open_store
from runner.store.redis.workers import WorkerRegistry
from tests.celery import graphs
from tests.celery.workers import LEASE, MARGIN, RECOVERY, Site
from tests.chaos.servers import Server
from tests.rabbitmq import listen
from tests.waiting import wait_until

REPLIES = "runner:replies:here"
RUNS = 12
"""As many in each partition."""

pytestmark = pytest.mark.slow


class Spread(Site):
    """A site whose store has several partitions."""

    def __init__(self, folder, servers, *, urls, partitions=1, broker=""):
        super().__init__(servers[0].url, folder)
        self.servers = servers
        self.store_servers = [server for server in servers if server.url in urls]
        self.settings = {"RUNNER_REDIS_URL": urls, "RUNNER_BROKER_URL": broker}
        self.settings |= {"RUNNER_PARTITIONS": str(partitions)} if partitions > 1 else {}
        self.client.engine.store.close()
        options = {"partitions": partitions} if partitions > 1 else {}
        settings = Settings(redis_url=urls, broker_url=broker, lease=LEASE, **options)
        self.store = open_store(settings)
        self.client = Client(store=self.store, registry=Registry())
        self.places, self.broker = settings, settings.broker

    def boot(self, count=1, **settings):
        for _ in range(count):
            self.add(**self.settings, **settings)
        self.ready(count)
        return self

    def start(self, graph, count=RUNS):
        """Start as many runs in each partition, and wait until they have ended or wait for people."""
        left = dict.fromkeys(
            range(len(self.places.partition_addresses)),
            count // len(self.places.partition_addresses),
        )
        runs = []
        while any(left.values()):
            key = str(uuid4())
            number = self.store.partition(graph, key)
            if left[number]:
                left[number] -= 1
                runs.append(self.client.start(graph, "go", idempotency_key=key))
        wait_until(
            lambda: all(run.status is not Status.EXECUTING for run in runs),
            "all runs have settled",
        )
        return runs

    def end(self):
        super().end()
        for server in self.servers:
            server.end()


def two_servers(folder):
    servers = [Server(folder, appendonly="yes").start() for _ in range(2)]
    return Spread(folder, servers, urls=",".join(server.url for server in servers))


def broker_apart(folder):
    servers = [Server(folder).start() for _ in range(3)]
    urls = ",".join(server.url for server in servers[:2])
    return Spread(folder, servers, urls=urls, broker=servers[2].url)


def one_server(folder):
    server = Server(folder).start()
    return Spread(folder, [server], urls=server.url, partitions=2)


LAYOUTS = (two_servers, broker_apart, one_server)


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: layout.__name__)
def spread(request, tmp_path_factory):
    """A worker, on each layout in turn."""
    site = request.param(tmp_path_factory.mktemp(request.param.__name__))
    site.boot(1)
    yield site
    site.end()


@pytest.fixture
def pair(tmp_path):
    """Two servers without a worker."""
    site = two_servers(tmp_path)
    yield site
    site.end()


def both(site, graph):
    """Start a run in each of two partitions; a gate of any other is open."""
    runs = {}
    while len(runs) < 2:
        run = site.client.start(graph, "go")
        if runs.setdefault(run.id[:2], run) is not run:
            site.open_gate(run)
        wait_until(lambda run=run: site.redis.exists(f"started:{run.id}"), "the node runs")
    return [runs["00"], runs["01"]]


def late_question(run):
    """Return the id that the question of a run will have."""
    return numbered_question(Address(run.id, "b", 1), {}, "approval", None, scope="function").id


def partitions_of(runs):
    return {run.id[:2] for run in runs}


def test_a_program_with_more_partitions_starts_where_workers_are(empty_site):
    """Each run of such a program ends; doctor names the worker that differs; control: not before that."""
    empty_site.add().wait_ready()
    settings = Settings(redis_url=empty_site.url, partitions=2, lease=LEASE)
    registry = Registry()
    registry.add("chain", graphs.chain)
    program = Client(store=open_store(settings), registry=registry)

    runs = [program.start("chain", "go") for _ in range(8)]
    runs += [program.start("chain", "go", idempotency_key=str(uuid4())) for _ in range(8)]

    wait_until(lambda: all(run.status is Status.COMPLETED for run in runs), "all have run")
    assert partitions_of(runs) == {"00"}
    (worker,) = WorkerRegistry(empty_site.url).all()
    (check,) = [each for each in examine(read_facts(settings)) if each.name == "partitions"]
    assert (check.result, check.detail) == (FAIL, f"2 set here, but {worker.name} has 1")
    assert "RUNNER_PARTITIONS" in check.fix
    alike = examine(read_facts(settings.model_copy(update={"partitions": 1})))
    assert "partitions" not in {each.name for each in alike}
    program.engine.store.close()


def test_graphs_run_in_both_partitions(spread):
    """Joins, loops, retries, maps and graphs inside graphs end as they do anywhere."""
    for graph, status in {
        "diamond": Status.COMPLETED,
        "loop": Status.COMPLETED,
        "retry": Status.COMPLETED,
        "failure": Status.FAILED,
        "nested": Status.INTERRUPTED,
    }.items():
        runs = spread.start(graph)
        assert {run.status for run in runs} == {status}, graph
        assert partitions_of(runs) == {"00", "01"}, graph
        for run in runs:
            assert {child[:2] for child in spread.store.children(run.id)} <= {run.id[:2]}


def test_answers_reach_both_partitions_by_every_door(spread):
    """On the stream, from Python, and as a Celery task: each with its receipt."""
    runs = spread.start("question")
    for number, run in enumerate(runs):
        (question,) = run.interrupts()
        if number % 3 == 0:
            assert spread.client.respond(question.id, "yes").status == "accepted"
        body = {"v": 1, "interrupt_id": question.id, "response": "yes", "reply_to": REPLIES}
        if number % 3 == 1:
            spread.send(json.dumps(body))
        if number % 3 == 2:
            Celery("client", broker=spread.broker, set_as_current=False).send_task(
                "runner.respond", kwargs=body, queue="runner"
            )
    for _ in range(RUNS * 2 // 3):
        assert spread.receipt(REPLIES)["status"] == "accepted"

    wait_until(
        lambda: {run.status for run in runs} == {Status.COMPLETED}, "all answers are applied"
    )
    assert partitions_of(runs) == {"00", "01"}


def test_rabbitmq_serves_both_partitions(tmp_path, rabbit, channel):
    """Early and late answers come over its queue, and the notices of both go to its exchange."""
    site = two_servers(tmp_path)
    site.settings["RUNNER_BROKER_URL"] = rabbit.url
    try:
        site.boot(1)
        notices = listen(channel)
        runs = both(site, "late_question")
        for run, server in zip(runs, site.servers, strict=True):
            body = {
                "v": 1,
                "interrupt_id": late_question(run),
                "response": "yes",
                "reply_to": REPLIES,
            }
            message = amqp.Message(json.dumps(body), content_type="application/json")
            channel.basic_publish(message, exchange="", routing_key="runner.responses")
            early = Keys(partition=f"p{run.id[:2]}").early
            wait_until(
                lambda server=server, early=early: server.client.exists(early), "it is kept"
            )
            site.open_gate(run)
        ended = set()

        def both_ended():
            message = channel.basic_get(notices, no_ack=True)
            notice = json.loads(message.body) if message else {"kind": ""}
            ended.update({notice["run_id"]} if notice["kind"] == "run.ended" else ())
            return ended >= {run.id for run in runs}

        wait_until(both_ended, "both ends are published")
        assert {run.status for run in runs} == {Status.COMPLETED}
        assert {site.receipt(REPLIES)["status"] for _ in runs} == {"accepted"}
    finally:
        site.end()


def test_a_partition_that_is_away_keeps_the_other_going(pair):
    """With the second server down, runs of the first end; back again, so do those of the second."""
    pair.boot(1)
    waiting = pair.start("question")
    away = next(run for run in waiting if run.id.startswith("01"))
    near = [run for run in waiting if run.id.startswith("00")]
    (question,) = away.interrupts()
    questions = [run.interrupts()[0].id for run in near]
    pair.servers[1].kill()
    for name in (question.id, *questions):
        pair.send(json.dumps({"v": 1, "interrupt_id": name, "response": "yes"}))

    wait_until(
        lambda: {run.status for run in near} == {Status.COMPLETED},
        "the near ones end",
        seconds=60,
    )
    pair.servers[1].start()
    assert away.wait(RECOVERY + MARGIN).status in {Status.COMPLETED, Status.INTERRUPTED}
    wait_until(lambda: away.status is Status.COMPLETED, "the answer is applied")


@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize("fault", [Server.kill, Server.freeze], ids=["killed", "frozen"])
def test_runs_go_on_without_a_server_that_has_none_of_them(pair, pool, fault):
    """What a process does for the first time asks no other server; control: a start there is refused."""
    pair.boot(1, pool=pool, slots=1)

    def key_of(graph, number):
        keys = (str(uuid4()) for _ in range(1_000))
        return next(key for key in keys if pair.store.partition(graph, key) == number)

    keys = {graph: key_of(graph, 0) for graph in ("chain", "retry", "nested")}
    there = key_of("chain", 1)
    fault(pair.servers[1])
    registry = Registry()
    registry.add("chain", graphs.chain)
    with closing(open_store(pair.places)) as store:
        program = Client(store=store, registry=registry)
        with pytest.raises(StoreError, match=f":{pair.servers[1].port}"):
            program.start("chain", "go", idempotency_key=there)
        program.start("chain", "go", idempotency_key=keys["chain"])
    for graph, key in keys.items():
        run = pair.client.start(graph, "go", idempotency_key=key)
        wait_until(lambda run=run: run.status is not Status.EXECUTING, f"{graph} rests")
        for question in run.interrupts():
            pair.send(json.dumps({"v": 1, "interrupt_id": question.id, "response": "yes"}))
        wait_until(lambda run=run: run.status is Status.COMPLETED, f"{graph} ends")


def test_a_worker_with_too_many_partitions_is_named_and_can_be_taken_back(empty_site):
    """It logs what it changed, programs are told its name and both remedies, and a restart undoes it."""
    empty_site.ready(1)
    wrong = empty_site.add(RUNNER_PARTITIONS="2")
    wrong.wait_ready()
    assert "was 1 and is now 2" in wrong.output()
    assert "layout.changed" not in empty_site.workers[0].output()
    registry = WorkerRegistry(empty_site.url)
    wait_until(
        lambda: {worker.partitions for worker in registry.all()} == {1, 2}, "both are listed"
    )

    def program():
        return open_store(Settings(redis_url=empty_site.url), push=False)

    with pytest.raises(
        StoreError, match=rf"Workers set to 2: {wrong.log.stem}@.*PARTITIONS=2 here.*If not"
    ):
        program().runs()
    empty_site.workers.remove(wrong)
    wrong.end()
    with pytest.raises(StoreError, match=wrong.log.stem):
        program().runs()
    empty_site.workers[0].end()
    empty_site.ready(1)
    assert "was 2 and is now 1" in empty_site.workers[0].output()
    assert not program().runs().items
    registry.close()
