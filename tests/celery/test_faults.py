"""What is lost with a worker or a message comes back by itself; each promise with its control."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from runner import Status
from tests.celery.workers import MARGIN, RECOVERY
from tests.waiting import wait_until

pytestmark = pytest.mark.full

WITHIN = RECOVERY + MARGIN
NEVER = {"RUNNER_SWEEP_INTERVAL": "3600"}
"""Sabotage: workers that never look at what is due."""


@pytest.fixture(scope="module")
def pair(databases):
    """Two workers that tests may kill; the next test gets new ones."""
    site = next(databases)
    yield site
    site.end()


@pytest.fixture(scope="module")
def unswept(databases):
    """Two workers without a sweeper: the control of every promise that rests on the sweep."""
    site = next(databases)
    yield site
    site.end()


def doorbells(site) -> list[bytes]:
    keys = [
        key
        for key in site.redis.scan_iter("runner*", _type="list")
        if not key.startswith(b"runner:{")
    ]
    return [message for key in keys for message in site.redis.lrange(key, 0, -1)]


def silence(site) -> int:
    """Delete every doorbell from the queues, and tell how many there were."""
    count = len(doorbells(site))
    for key in list(site.redis.scan_iter("runner*", _type="list")):
        if not key.startswith(b"runner:{"):
            site.redis.delete(key)
    return count


def kill_and_silence(site, **settings: str):
    """Kill a worker that runs a node, and delete the doorbell of a run while the other one is busy."""
    site.ready(2, **settings)
    killed = site.client.start("gated", "go")
    site.starter(killed).kill()
    site.open_gate(killed)
    crowd = site.client.start("crowd", "go")
    wait_until(lambda: len(site.starts(crowd)) >= 4, "every slot is busy")
    silenced = site.client.start("chain", "go")
    # The killed worker's node may be rung again by now.
    assert silence(site) >= 1
    site.open_gate(crowd)
    return killed, silenced


@pytest.fixture(scope="module")
def faulty(pair):
    """Give the two runs whose worker or message was lost, on workers as they should be."""
    return kill_and_silence(pair)


def test_a_killed_worker_s_node_runs_again_elsewhere(pair, faulty):
    """After kill -9 of a worker its node is run by another within lease + sweep, with the same key."""
    run, _ = faulty

    result = run.wait(WITHIN)

    assert result.status is Status.COMPLETED
    assert result.execution_order == ["a", "b"]
    first, second = pair.starts(run)
    assert first[0] != second[0]
    assert (first[1], second[1]) == ("1", "2")
    assert first[2] == second[2]


def test_lost_doorbells_are_rung_again(faulty):
    """Messages that vanish from the queue cost time only: the sweep rings again."""
    _, run = faulty

    assert run.wait(WITHIN).status is Status.COMPLETED
    assert run.result().execution_order == ["a", "b", "c"]


@pytest.mark.slow
def test_without_the_sweep_both_stay_lost(unswept):
    """Control: the same two faults with workers that never sweep, and nothing comes back in that time."""
    runs = kill_and_silence(unswept, **NEVER)
    ends = time.monotonic() + RECOVERY + 1.5
    for run in runs:
        with pytest.raises(TimeoutError):
            run.wait(max(0.1, ends - time.monotonic()))


def test_a_reader_killed_with_an_answer_in_hand_loses_nothing(pair):
    """An answer that a worker had taken from the stream and not applied is taken over by another."""
    pair.ready(1)
    run = pair.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    pair.redis.xgroup_createconsumer("runner:responses", "runner", "dead-worker")
    body = json.dumps({"v": 1, "interrupt_id": question.id, "response": "yes"})
    with pair.redis.pipeline(transaction=True) as both:
        both.xadd("runner:responses", {"body": body})
        both.xreadgroup("runner", "dead-worker", {"runner:responses": ">"})
        both.execute()

    wait_until(lambda: run.status is Status.COMPLETED, "the run has its answer")


def test_a_frozen_worker_s_late_result_is_refused(pair):
    """A worker that freezes beyond its lease and comes back finds its node run by another, once."""
    pair.ready(2)
    run = pair.client.start("gated", "go")
    frozen = pair.starter(run)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: len(pair.starts(run)) == 2, "another worker runs the node")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    pair.open_gate(run)

    result = run.wait(60)
    assert result.status is Status.COMPLETED
    assert result.results["a"].output == 2
    assert result.execution_order == ["a", "b"]


def test_a_doorbell_rung_many_times_runs_its_node_once(pair):
    """Copies of a message change nothing: the first one to claim the node wins."""
    pair.ready(2)
    run = pair.client.start("gated", "go")
    pair.starter(run)
    copies = [bell_of(pair, run, "a") for _ in range(20)]
    pair.redis.lpush("runner", *copies)
    wait_until(lambda: not doorbells(pair), "all copies were taken")
    pair.open_gate(run)

    assert run.wait(60).status is Status.COMPLETED
    assert len(pair.starts(run)) == 1


def bell_of(site, run, node: str) -> bytes:
    """Write the message that the store would ring a node with."""
    template, places = site.redis.hmget("runner:{p00}:doorbell:1", "template", "places")
    values = {
        "id": f"{run.id}.{node}.1.1",
        "shadow": f"gated/{node}",
        "queue": "runner",
        "priority": "5",
    }
    values["parent_id"] = "null"
    fields = tuple(values.get(place, "copy") for place in places.decode().split())
    return (template.decode() % fields).encode()
