"""Faults with RabbitMQ as the broker: dying workers with notices in hand, malformed messages at the doors."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager

import amqp
import pytest

from runner import Status
from tests.chaos.fork_server import ForkServer
from tests.chaos.kill_switch import arm, died_at
from tests.chaos.test_huge_messages import SLACK, malformed, memory
from tests.rabbitmq import listen
from tests.waiting import wait_until

LONG = 150
COUNT = 5
KINDS = ("interrupt.asked", "interrupt.answered", "run.ended")
TAKEN_OVER = 2.0
"""Seconds after which these workers take over what another one has in hand."""


@contextmanager
def workers(databases, rabbit, folder, app):
    """Two workers on RabbitMQ for one test: their queues have the same names in each."""
    site = next(databases)
    with ForkServer(folder) as fork_server:
        for number in "ab":
            fork_server.add(site, f"worker-{number}", app=app, RUNNER_BROKER_URL=rabbit.url)
        with fork_server.running(site):
            yield site


def hear(channel, queue, notices) -> None:
    """Add what a queue holds now."""
    while (message := channel.basic_get(queue, no_ack=True)) is not None:
        notices.append(json.loads(message.body))


def tell_everything(site, channel, point):
    """Let runs ask, be answered and end, and a relay die at a point; return the notices that came out."""
    queue, notices, runs = listen(channel), [], []

    def kinds():
        hear(channel, queue, notices)
        return {(notice["run_id"], notice["kind"]) for notice in notices}

    def missing():
        return {(run.id, kind) for run in runs for kind in KINDS} - kinds()

    arm(site, point, "any")
    runs += [site.client.start("question", "go") for _ in range(COUNT)]
    for run in runs:
        wait_until(
            lambda run=run: run.status is Status.INTERRUPTED,
            "the question is asked",
            seconds=LONG,
        )
        (question,) = run.interrupts()
        site.client.respond(question.id, "yes")
    for run in runs:
        wait_until(lambda run=run: run.status is Status.COMPLETED, "the run ends", seconds=LONG)
    wait_until(lambda: died_at(site, point, "any"), "a worker died", seconds=LONG)
    return notices, missing


@pytest.mark.parametrize(
    "point", [pytest.param("relay.before", marks=pytest.mark.sample), "relay.after"]
)
def test_a_relay_killed_with_notices_in_hand_loses_none(
    databases, rabbit, channel, tmp_path, point
):
    """Each notice comes to the exchange at least once, and one that comes twice has one id."""
    with workers(databases, rabbit, tmp_path, "tests.chaos.kill_points:app") as site:
        notices, missing = tell_everything(site, channel, point)

        wait_until(lambda: not missing(), "every notice has come", seconds=LONG)

        assert len({notice["id"] for notice in notices}) == COUNT * len(KINDS)
        if point == "relay.after":
            wait_until(
                lambda: not missing() and twice(notices),
                "what was told is told again",
                seconds=LONG,
            )


def twice(notices) -> bool:
    return len(notices) > len({notice["id"] for notice in notices})


def test_a_relay_that_lets_go_too_early_loses_them(databases, rabbit, channel, tmp_path):
    """Control: where notices are let go of before they are told, those in hand are gone."""
    with workers(databases, rabbit, tmp_path, "tests.chaos.acks_before_publishing:app") as site:
        _, missing = tell_everything(site, channel, "relay.before")
        ends = time.monotonic() + 2 * TAKEN_OVER

        wait_until(lambda: time.monotonic() > ends, "they would have come")

        assert missing()


def test_malformed_messages_at_the_doors_become_dead_letters(
    databases, rabbit, channel, tmp_path
):
    """Huge, deep and binary messages come to the dead-letter exchange with the reason; workers live on."""
    with workers(databases, rabbit, tmp_path, "tests.chaos.kill_points:app") as site:
        before = [memory(worker.pid) for worker in site.workers]
        channel.queue_purge("runner.dead")
        for door in ("runner.responses", "runner.starts"):
            for body in malformed():
                message = amqp.Message(body, content_type="application/json", delivery_mode=2)
                channel.basic_publish(message, exchange="", routing_key=door)
        reasons = []

        def all_dead():
            while (letter := channel.basic_get("runner.dead", no_ack=True)) is not None:
                reasons.append(letter.headers["x-reason"])
            return len(reasons) == 2 * len(malformed())

        wait_until(all_dead, "all are dead letters", seconds=LONG)

        assert all(reasons)
        assert site.client.start("chain", "go").wait(LONG).status is Status.COMPLETED
        assert [len(worker.pids) for worker in site.workers] == [1, 1]
        for worker, was in zip(site.workers, before, strict=True):
            assert memory(worker.pid) < was + 3 * SLACK
