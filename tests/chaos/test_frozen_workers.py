"""A frozen worker, with messages in its hands: what ours loses, and what plain Celery loses."""

from __future__ import annotations

import os
import signal
import time

import pytest
from celery import Celery

from runner import Status
from runner.settings import as_broker
from tests.celery.workers import RECOVERY
from tests.waiting import wait_until

COUNT = 50
TRIES = 10
PLAIN = {"early": {}, "late": {"PLAIN_ACKS_LATE": "1"}}


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Yield sites by their kind of worker; the second of each starts when the first has died."""
    sites = {name: next(databases) for name in ("ours", *PLAIN)}
    fork_server.add(sites["ours"], "ours", pool="solo", slots=1)
    for name, settings in PLAIN.items():
        fork_server.add(
            sites[name],
            name,
            app="tests.chaos.plain_celery:app",
            pool="solo",
            slots=1,
            **settings,
        )
    fork_server.start()
    yield sites
    for site in sites.values():
        site.end()


def is_asking(site) -> bool:
    """Tell whether a worker waits for a message with a command that Redis answers, frozen or not."""
    clients = [
        client for client in site.redis.client_list() if client["db"] == str(site.number)
    ]
    return any(client["cmd"] == "brpop" and "b" in client["flags"] for client in clients)


def in_queues(site) -> int:
    keys = [
        key for key in site.redis.scan_iter(_type="list") if not key.startswith(b"runner:{")
    ]
    return sum(site.redis.llen(key) for key in keys)


def freeze_and_kill(site, publish) -> None:
    """Freeze a worker that waits for a message, publish, and kill it when Redis has handed one over."""
    (worker,) = site.workers
    # Before that it waits for words of other workers, with the same command.
    wait_until(lambda: " ready." in worker.output(), "the worker has started", seconds=150)
    for _ in range(TRIES):
        wait_until(lambda: is_asking(site), "the worker waits for messages", seconds=150)
        os.kill(worker.pid, signal.SIGSTOP)
        publish(site)
        if in_queues(site) == COUNT - 1:
            break
        # Its command had just ended: nothing was handed over, so it is tried once more.
        site.redis.delete(*site.redis.scan_iter(_type="list"))
        os.kill(worker.pid, signal.SIGCONT)
    assert in_queues(site) == COUNT - 1
    worker.kill()


def start_runs(site):
    site.runs = [site.client.start("chain", number) for number in range(COUNT)]


def publish_tasks(site):
    app = Celery("publisher", broker=as_broker(site.url), set_as_current=False)
    for number in range(COUNT):
        app.send_task("plain.note", args=[number], queue="plain")
    app.close()


@pytest.mark.sample
def test_a_frozen_and_killed_worker_loses_no_run(sites):
    """Redis hands a message to a worker that is frozen and then killed: its run is rung for again."""
    site = sites["ours"]
    site.workers[0].wait_ready()

    freeze_and_kill(site, start_runs)

    for run in site.runs:
        assert run.wait(60).status is Status.COMPLETED


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_celery_loses_that_message(sites, kind):
    """Control: with tasks of one's own the message is gone for ever, also when it is acknowledged late."""
    site = sites[kind]

    freeze_and_kill(site, publish_tasks)
    wait_until(
        lambda: site.redis.scard("executed") >= COUNT - 1,
        "the next worker executes the rest",
        seconds=60,
    )
    ends = time.monotonic() + RECOVERY + 1.5
    wait_until(lambda: time.monotonic() > ends, "as much time is over as ours needs")

    assert site.redis.scard("executed") == COUNT - 1
    assert in_queues(site) == 0
    assert site.redis.hlen("unacked") == 0
