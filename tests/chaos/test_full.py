"""A store without memory or disk space refuses requests whole, and goes on by itself when there is room."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import time
from itertools import islice
from operator import itemgetter

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from runner import Status
from runner.cli.program import runner
from runner.errors import StoreError
from runner.records.listings import grouped
from runner.records.workers import Worker
from runner.settings import as_broker
from runner.store.redis.server_info import read_metrics
from runner.store.redis.store import RedisStore
from runner.store.redis.workers import WorkerRegistry, described
from runner.store.requests import AskQuestions, EmitEvent
from tests.celery.workers import MARGIN, RECOVERY, Site
from tests.chaos.load import consistent
from tests.chaos.servers import Server
from tests.chaos.transitions import Walk
from tests.server.conftest import GRAPHS
from tests.server.conftest import Site as PagesSite
from tests.waiting import wait_until

UNLIMITED = resource.RLIM_INFINITY
ENDS_WORK = {"park", "retry", "settle", "cancel"}
"""What a server without memory lets through."""
RINGS_AGAIN = 4 * RECOVERY + MARGIN
"""Seconds for a node whose doorbell was refused a few times: each time it is rung twice as late."""


def no_memory(server) -> None:
    server.client.config_set("maxmemory", "1mb")


def no_disk(server) -> None:
    """Let its files grow no further."""
    size = max(path.stat().st_size for path in (server.folder / "appendonlydir").iterdir())
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, UNLIMITED))


def no_replica(server) -> None:
    server.client.config_set("min-replicas-to-write", "1")


def demoted(server) -> None:
    """Make it the replica of a server that is away, as after a failover."""
    server.client.replicaof("127.0.0.1", "1")


def read_only(server) -> None:
    server.client.execute_command("ACL", "SETUSER", "default", "-@write", "+@scripting")


def room(server) -> None:
    server.client.config_set("maxmemory", "0")
    server.client.replicaof("NO", "ONE")
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))


def digest(server) -> str:
    return server.client.execute_command("DEBUG", "DIGEST")


def writes(server) -> str:
    return server.client.info("persistence")["aof_last_write_status"]


@pytest.fixture
def server(tmp_path):
    """A server with an append-only file that it writes behind its replies, as is its default."""
    settings = {"appendonly": "yes", "appendfsync": "everysec", "enable_debug_command": "local"}
    server = Server(tmp_path, **settings).start()
    yield server
    server.end()


@pytest.fixture
def store(server):
    store = RedisStore(server.url, push=False)
    yield store
    store.close()


@pytest.mark.sample
def test_without_memory_a_request_is_refused_whole_unless_it_ends_work(server, store):
    """Nothing of a refused request is written, and it is said what to do; what ends work goes through."""
    for verb, wanted, send in Walk(store, "00walk"):
        before = digest(server)
        no_memory(server)
        if verb in ENDS_WORK:
            assert send("") == wanted
            room(server)
            continue
        with pytest.raises(
            StoreError, match=r"Nothing was written.*Give the server more memory"
        ):
            send("")
        assert digest(server) == before, verb
        room(server)
        assert send("") == wanted


def test_writes_one_by_one_would_have_been_half_done(server):
    """Control: where each write stands alone, the first ones of a transition stay when memory runs out."""
    before = digest(server)
    server.client.hset("run", "status", "completed")
    no_memory(server)
    with pytest.raises(Exception, match="maxmemory"):
        server.client.zadd("timers", {"next": 1})
    room(server)

    assert digest(server) != before


def test_without_disk_space_every_write_is_refused_until_there_is_some(server, store):
    """A full disk refuses whole requests with the reason, reading goes on, and room is all it takes."""
    walk = iter(Walk(store, "00walk"))
    for _ in range(2):
        _, _, send = next(walk)
        send("")
    no_disk(server)
    store.do(EmitEvent("00walk", "fills.the.disk", "", 0, "x" * 1000))
    wait_until(lambda: writes(server) == "err", "the disk is full")
    before = digest(server)
    _, wanted, send = next(walk)
    with pytest.raises(StoreError, match=r"Nothing was written.*disk is full"):
        send("")
    assert digest(server) == before
    assert store.peek("00walk").status is Status.EXECUTING
    room(server)
    wait_until(lambda: writes(server) == "ok", "the file is written again")

    assert send("") == wanted
    assert all(again("") == word for _, word, again in walk)


def test_a_server_that_ends_for_want_of_disk_space_has_acknowledged_nothing_that_it_lost(
    tmp_path,
):
    """With `appendfsync always` a full disk ends the server; it comes back with all that it acknowledged."""
    server = Server(tmp_path, appendonly="yes").start()
    store = RedisStore(server.url, push=False)
    walk = Walk(store, "00walk")
    try:
        for verb, _, send in walk:
            if verb == "ask":
                break
            send("")
        no_disk(server)
        with pytest.raises(StoreError, match="could not be reached"):
            send("")
        wait_until(lambda: not server.alive, "the server has ended")
        server.start()

        assert store.read("00walk").nodes["a"].status is Status.RUNNING
        assert store.read("00walk").interrupts == ()
        assert store.do(AskQuestions(walk.token, [walk.question], None)).word == "asked"
    finally:
        store.close()
        server.end()


OWN_APP = {"app": "tests.celery.other_teams_app:app", "options": ["--task-events"]}
"""With kombu's copies of the messages that a worker has, each of which is a write."""


@pytest.mark.parametrize(
    ("full", "worker"),
    [
        pytest.param(no_memory, {}, marks=pytest.mark.sample),
        (no_disk, {}),
        (no_disk, OWN_APP),
        (demoted, {}),
    ],
    ids=["memory", "disk", "disk of an own app", "demoted"],
)
def test_work_goes_on_by_itself_when_there_is_room(server, tmp_path, full, worker):
    """Starts are refused; a node that runs keeps its result until the store takes it; then all goes on."""
    site = Site(server.url, tmp_path)
    try:
        site.ready(1, **worker)
        run = site.client.start("gated", "go")
        site.starter(run)
        site.open_gate(run)
        full(server)

        def refused():
            try:
                site.client.start("chain", "go")
            except StoreError as error:
                return "Nothing was written" in str(error)

        wait_until(refused, "starts are refused")
        if full is no_memory:  # what ends needs no room, and the next node begins with that
            wait_until(
                lambda: "a" in site.client.engine.store.read(run.id).order, "the node could end"
            )
        else:
            assert run.status is Status.EXECUTING
        room(server)
        wait_until(lambda: writes(server) == "ok", "the file is written again")

        assert run.wait(RINGS_AGAIN).status is Status.COMPLETED
        assert site.client.start("chain", "go").wait(RINGS_AGAIN).status is Status.COMPLETED
        assert len(site.starts(run)) == 1
        assert site.workers[0].alive
        consistent(site.client.engine.store, run.id)
    finally:
        room(server)
        site.end()
        site.client.engine.store.close()


def test_a_worker_of_an_own_app_loses_no_task_that_it_takes_without_memory(server, tmp_path):
    """It can't write its copy of the message, and does the task all the same; then it goes on."""
    site = Site(server.url, tmp_path)
    try:
        worker = site.add(**OWN_APP)
        site.ready(1)
        os.kill(worker.pid, signal.SIGSTOP)
        app = Celery("other_team", broker=as_broker(server.url), set_as_current=False)
        task = app.send_task("other_team.write", ["key"])
        no_memory(server)
        os.kill(worker.pid, signal.SIGCONT)

        wait_until(
            lambda: f"Task other_team.write[{task.id}] received" in worker.output(),
            "the task is taken",
        )
        wait_until(lambda: "broker.refused: " in worker.output(), "it says so")
        room(server)
        assert site.client.start("chain", "go").wait(RINGS_AGAIN).status is Status.COMPLETED
        assert worker.alive
        assert "Connection to broker lost" not in worker.output()
    finally:
        room(server)
        site.end()


@pytest.mark.sample
def test_workers_of_a_full_store_are_alive_and_log_a_line_for_each_refusal(server, tmp_path):
    """Heartbeats go through, and the store is what doctor blames; control: other writes are refused."""
    site, roster = Site(server.url, tmp_path), WorkerRegistry(server.url)
    try:
        site.ready(1, slots=1)
        run = site.client.start("gated", "go")
        site.starter(run)
        site.client.start("chain", "waits for the slot")
        site.open_gate(run)
        no_memory(server)
        (before,) = roster.all()
        with pytest.raises(redis.OutOfMemoryError):
            server.client.hset("runner:workers", "another", "{}")

        wait_until(lambda: roster.all()[0].seen > before.seen, "a heartbeat is written")
        wait_until(
            lambda: "doorbell.refused" in site.workers[0].output(), "a doorbell is refused"
        )
        metrics = {metric.name: metric.value for metric in read_metrics(server.url)}
        done = CliRunner().invoke(
            runner, ["doctor", "--json"], env={"RUNNER_REDIS_URL": server.url}
        )
        checks = {check["name"]: check["result"] for check in json.loads(done.stdout)["checks"]}
        assert metrics["runner_workers"] == 1
        assert list(checks)[:2] == ["store", "memory"]
        assert (checks["memory"], checks["workers"]) == ("fail", "pass")
        assert "Traceback" not in site.workers[0].output()
    finally:
        room(server)
        roster.close()
        site.end()
        site.client.engine.store.close()


PAGES = (
    "/",
    "/runs",
    "/runs/00walk",
    "/inbox",
    "/graphs",
    "/workers",
    "/dead",
    "/schedules",
    "/limits",
)
PAGES += ("/webhooks", "/grants", "/absences")


def doctor(server, **settings):
    """Run doctor as a program would; return each check's lines, by name."""
    environment = {"RUNNER_REDIS_URL": server.url, **settings}
    done = CliRunner().invoke(runner, ["doctor", "--json"], env=environment)
    assert done.exit_code in {0, 1}, done.output
    checks = json.loads(done.stdout)["checks"]
    return grouped(((c["name"], f"{c['result']} {c['detail']}") for c in checks), itemgetter(0))


def needs_another_app(server) -> None:
    """List a worker whose nodes send tasks to a queue of another app."""
    roster = WorkerRegistry(server.url)
    packer = Worker("celery@one", 1, "threads", 1, queues=["runner"], tasks={"depot": "pack"})
    roster.enter(described(packer), time.time_ns() // 1_000_000)
    roster.close()


@pytest.mark.parametrize(
    ("refuse", "check", "reason"),
    [
        (no_memory, "memory", "fail full"),
        (no_disk, "disk", "fail .*MISCONF"),
        (no_replica, "queues", "warn .*NOREPLICAS"),
        (read_only, "queues", "warn .*no permissions"),
    ],
)
def test_doctor_and_each_page_answer_while_the_store_refuses_writes(
    server, store, refuse, check, reason
):
    """The reason is a line among the others, whatever check can't be made; and no page is an error."""
    for _, _, send in islice(Walk(store, "00walk"), 3):
        send("")
    needs_another_app(server)
    site = PagesSite(server.url, GRAPHS)
    refuse(server)
    if refuse is no_disk:
        store.do(EmitEvent("00walk", "fills.the.disk", "", 0, "x" * 1000))
        wait_until(lambda: writes(server) == "err", "the disk is full")
    lines = doctor(server)
    answers = {page: site.http.get(page, headers={"Accept": "text/html"}) for page in PAGES}

    assert any(re.match(reason, line) for _, line in lines[check]), lines
    assert any("can't be asked" in line for _, line in lines["queues"]), lines
    assert {page: answer.status_code for page, answer in answers.items()} == dict.fromkeys(
        PAGES, 200
    )


@pytest.mark.parametrize(
    ("login", "rights", "reason"),
    [
        ("ana:wrong@", "+@all &*", "invalid username-password"),
        ("ana:right@", "+ping +select +client &*", "no permissions"),
        ("ana:right@", "+@all resetchannels", "permissions to access"),
    ],
)
def test_doctor_says_why_the_broker_could_not_be_asked(server, tmp_path, login, rights, reason):
    """The store is well and its broker, another server, refuses the question. Control: one that allows it."""
    broker = Server(tmp_path, appendonly="no").start()
    needs_another_app(server)
    try:
        broker.client.execute_command(
            "ACL", "SETUSER", "ana", "on", ">right", "~*", *rights.split()
        )
        refused = doctor(server, RUNNER_BROKER_URL=f"redis://{login}127.0.0.1:{broker.port}/0")
        asked = doctor(server, RUNNER_BROKER_URL=broker.url)
    finally:
        broker.end()

    assert reason in str(refused["queues"]), refused["queues"]
    assert "depot" not in str(refused["queues"])
    assert "'pack' on 'depot'" in str(asked["queues"])
    assert "can't be asked" not in str(asked)


def test_a_store_that_throws_runs_away_is_shouted_about(server, tmp_path):
    """A worker says at its start that the store evicts. Control: such a store loses a run that waits."""
    server.client.config_set("maxmemory-policy", "allkeys-random")
    site = Site(server.url, tmp_path)
    try:
        worker = site.add()
        wait_until(
            lambda: "store.forgets: maxmemory-policy is allkeys-random" in worker.output(),
            "it says so",
        )
        worker.wait_ready()
        run = site.client.start("question", "go")
        assert run.wait(RINGS_AGAIN).status is Status.INTERRUPTED
        worker.kill()
        no_memory(server)
        wait_until(lambda: _writes_until_gone(server, run), "the run is gone")
    finally:
        site.end()
        site.client.engine.store.close()


def _writes_until_gone(server, run) -> bool:
    with contextlib.suppress(redis.OutOfMemoryError):
        server.client.set("else", "x")
    return not server.client.exists(f"runner:{{p00}}:r:{run.id}")


def test_a_worker_ends_whose_store_can_not_wait_for_its_disk(tmp_path, waits_for_disk):
    """With RUNNER_DURABILITY=fsync a store without an append-only file ends the worker, which says why."""
    server = Server(tmp_path, appendonly="no").start()
    site = Site(server.url, tmp_path)
    try:
        worker = site.add(RUNNER_DURABILITY="fsync")
        wait_until(lambda: not worker.alive, "the worker has ended", seconds=150)
        assert (
            "store.unable: RUNNER_DURABILITY is fsync, but its append-only file is off"
            in worker.output()
        )
    finally:
        site.end()
        site.client.engine.store.close()
        server.end()
