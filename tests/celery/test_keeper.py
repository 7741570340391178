"""The keeper on its own: it applies what comes and what is due, and nodes wait for a worker to be started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import amqp
import pytest

from runner import Run, Status
from runner.celery.keeper import main
from runner.operations.doctor import FAIL, WARN, examine, read_facts
from runner.settings import Settings
from tests.celery.warm_process import ForkedProcess
from tests.celery.workers import SETTINGS
from tests.chaos.kill_switch import arm, died_at
from tests.rabbitmq import listen
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


class Keeper:
    """One keeper, as `runner keeper` becomes it."""

    def __init__(self, site, app: str = "", **settings: str) -> None:
        self.log = site.folder / f"keeper{len(list(site.folder.iterdir()))}.log"
        self.alive_file = self.log.with_suffix(".alive")
        self.log.touch()
        self._guard = ForkedProcess(
            ["runner.celery.keeper", app or "runner.celery:app", "info"],
            log=self.log,
            environment={
                "RUNNER_REDIS_URL": site.url,
                "RUNNER_ALIVE_FILE": str(self.alive_file),
                **SETTINGS,
                **settings,
            },
        )

    def wait_ready(self) -> Keeper:
        wait_until(self.alive_file.exists, "the keeper is ready", seconds=150)
        return self

    @property
    def pid(self) -> int:
        return self._guard.pid

    @property
    def alive(self) -> bool:
        return self._guard.alive()

    def end(self) -> None:
        if self.alive:
            self._guard.kill()
        self._guard.end()


@pytest.fixture
def keep(empty_site):
    """Start keepers, which end with the test."""
    keepers = []

    def start(app: str = "", **settings: str) -> Keeper:
        keepers.append(Keeper(empty_site, app, **settings))
        return keepers[-1]

    yield start
    for keeper in keepers:
        keeper.end()


def asked(site, count: int = 1) -> list[tuple[Run, str]]:
    """Have a worker begin runs that ask, and scale the workers to zero."""
    site.ready(1)
    runs = [site.client.start("question", "go") for _ in range(count)]
    wait_until(lambda: all(run.interrupts() for run in runs), "the questions are asked")
    stop_workers(site)
    return [(run, run.interrupts()[0].id) for run in runs]


def stop_workers(site) -> None:
    for worker in site.workers:
        os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: not any(worker.alive for worker in site.workers), "no worker is left")


def answer(question: str, name: str = "keeper") -> str:
    reply_to = f"runner:replies:{name}"
    return json.dumps(
        {"v": 1, "interrupt_id": question, "response": "yes", "reply_to": reply_to}
    )


def doorbells(site, graph: str) -> int:
    """Count the doorbells of a graph's queue, of every priority."""
    keys = list(site.redis.scan_iter(f"runner/{graph}*", _type="list"))
    return sum(site.redis.llen(key) for key in keys)


def test_an_answer_is_applied_and_its_node_waits_for_a_worker(empty_site, keep):
    """Without a worker the keeper takes the answer; the worker that is started later goes on with it."""
    ((run, question),) = asked(empty_site)
    keep().wait_ready()

    empty_site.send(answer(question))

    assert empty_site.receipt("runner:replies:keeper")["status"] == "accepted"
    assert doorbells(empty_site, "question") == 1
    assert run.status is Status.EXECUTING
    empty_site.ready(1)
    assert run.wait(60).status is Status.COMPLETED


def test_timers_that_are_due_are_acted_on(empty_site, keep):
    """A question expires, and the node of a worker that was killed is ready again: both wait for a worker."""
    empty_site.ready(1, RUNNER_SWEEP_INTERVAL="3600")
    lost, expiring = (empty_site.client.start(graph, "go") for graph in ("gated", "expiring"))
    wait_until(lambda: len(expiring.interrupts()) == 2, "the questions are asked")
    empty_site.starter(lost).kill()
    assert doorbells(empty_site, "gated") == 0

    keep()

    wait_until(
        lambda: doorbells(empty_site, "gated") == 1, "the lost node is ready", seconds=150
    )
    wait_until(lambda: not expiring.interrupts(), "the questions have expired")
    assert doorbells(empty_site, "expiring")
    empty_site.ready(1)
    empty_site.open_gate(lost)
    assert lost.wait(60).status is Status.COMPLETED
    assert expiring.wait(60).results["lead"].output == "done"


KILLED = "tests.chaos.kill_points:app"


def killed_keeper(site, keep, question: str) -> None:
    """Have a keeper die by kill -9 with an answer in its hand that it has applied and not let go."""
    keeper = keep(app=KILLED).wait_ready()
    arm(site, "answer.after", question)
    site.send(answer(question))
    wait_until(lambda: died_at(site, "answer.after", question), "the keeper is killed")
    wait_until(lambda: not keeper.alive, "it is gone")


def test_what_a_killed_keeper_had_in_hand_is_taken_over(empty_site, keep):
    """The next one gives the receipt; the answer has its effect once."""
    ((run, question),) = asked(empty_site)
    killed_keeper(empty_site, keep, question)

    keep()

    assert empty_site.receipt("runner:replies:keeper")["status"] == "accepted"
    assert [event.kind for event in run.events()].count("interrupt.answered") == 1
    empty_site.ready(1)
    assert run.wait(60).status is Status.COMPLETED


def test_a_keeper_that_takes_nothing_over_leaves_it(empty_site, keep):
    """Control: it applies what is new, and of the message of the dead one nobody hears."""
    (_, question), (_, second) = asked(empty_site, 2)
    killed_keeper(empty_site, keep, question)

    keep(app="tests.chaos.no_take_over:app").wait_ready()
    empty_site.send(answer(second, "second"))

    assert empty_site.receipt("runner:replies:second")["status"] == "accepted"
    pending = lambda: empty_site.redis.xpending("runner:responses", "runner")["pending"]  # noqa: E731
    wait_until(lambda: pending() == 1, "the keeper has let the new one go")
    assert not empty_site.redis.exists("runner:replies:keeper")


def test_a_keeper_is_no_worker_and_stops_when_it_is_told_to(empty_site, keep):
    """With one alone doctor warns that nodes wait; SIGTERM ends it, and neither file nor entry is left."""
    keeper = keep().wait_ready()
    wait_until(lambda: empty_site.redis.hlen("runner:workers") == 1, "it is listed")
    checks = {
        check.name: check for check in examine(read_facts(Settings(redis_url=empty_site.url)))
    }
    failed = {name for name, check in checks.items() if check.result == FAIL}
    assert checks["workers"].result == WARN
    assert "1 keeper" in checks["workers"].detail
    assert failed <= {"disk", "eviction"}

    os.kill(keeper.pid, signal.SIGTERM)

    wait_until(lambda: not keeper.alive, "it has gone by itself", seconds=30)
    assert "Traceback" not in keeper.log.read_text()
    assert not keeper.alive_file.exists()
    assert empty_site.redis.hlen("runner:workers") == 0


def test_over_rabbitmq_it_rings_and_publishes_notices(empty_site, keep, rabbit, channel):
    """Where the broker is RabbitMQ, it takes messages there, publishes doorbells, and tells what happened."""
    keep(RUNNER_BROKER_URL=rabbit.url).wait_ready()
    notices = listen(channel)
    start = json.dumps({"v": 1, "graph": "question", "task": "go"}).encode()
    channel.basic_publish(
        amqp.Message(start, message_id="s1"), exchange="", routing_key="runner.starts"
    )

    def rings() -> int:
        declared = channel.queue_declare(
            "runner/question",
            durable=True,
            auto_delete=False,
            arguments={"x-queue-type": "quorum"},
        )
        return declared.message_count

    wait_until(lambda: list(empty_site.client.runs()), "the run is started")
    (run,) = empty_site.client.runs()
    wait_until(rings, "the doorbell is on the queue")
    empty_site.ready(1, RUNNER_BROKER_URL=rabbit.url)
    wait_until(lambda: empty_site.client.run(run.run_id).interrupts(), "the question is asked")
    wait_until(lambda: channel.basic_get(notices, no_ack=True), "a notice is published")


def test_a_keeper_without_its_app_says_so():
    """One line names the app and the reason; it shows no traceback."""
    with pytest.raises(SystemExit, match=r"did not start: .*'runner\.celery:no_app'"):
        main("runner.celery:no_app", "info")
    command = [sys.executable, "-m", "runner.cli", "keeper", "--app", "no_such_module:app"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("The keeper did not start: ")
    assert "no_such_module:app" in line
