"""Messages that come again or much too late, many sweepers at once or none, scripts that a server forgets."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter

import pytest
import redis

from runner import Client, Status
from runner.store.redis.store import RedisStore
from tests.celery.workers import LEASE, RECOVERY, Site
from tests.chaos.load import Load, consistent
from tests.waiting import wait_until

SLOW = 150
RUNS, NODES, COPIES = 34, 3, 10
"""A hundred visits of chains, each rung for ten times too often: a thousand doubles."""
NEVER = "3600"
SWEEPERS = 10


def ring(site: Site, *task_ids: str) -> None:
    """Put messages on the queue as the store would."""
    template, places = site.redis.hmget("runner:{p00}:doorbell:1", "template", "places")
    for task_id in task_ids:
        values = {
            "id": task_id,
            "shadow": "late",
            "queue": "runner",
            "priority": "5",
            "parent_id": "null",
        }
        fields = tuple(values.get(place, "copy") for place in places.decode().split())
        site.redis.lpush("runner", (template.decode() % fields).encode())


def queues(site: Site) -> list[bytes]:
    return [
        key
        for key in site.redis.scan_iter("runner*", _type="list")
        if not key.startswith(b"runner:")
    ]


def starts(run) -> Counter:
    return Counter(
        (event.node, event.visit) for event in run.events() if event.kind == "node.started"
    )


def calls(site: Site, name: str = "cmdstat_evalsha") -> int:
    return int(site.redis.info("commandstats").get(name, {}).get("calls", 0))


def test_a_thousand_doubles_start_nothing_and_cost_two_scripts_each(site):
    """Doubles of nodes that are ready, and of nodes that have ended: each node is started once."""
    site.ready(1, RUNNER_SWEEP_INTERVAL=NEVER)
    os.kill(site.workers[0].pid, signal.SIGSTOP)
    runs = [site.client.start("chain", "go") for _ in range(RUNS)]
    for key in queues(site):
        for message in site.redis.lrange(key, 0, -1):
            site.redis.lpush(key, *[message] * COPIES)
    os.kill(site.workers[0].pid, signal.SIGCONT)
    for run in runs:
        assert run.wait(SLOW).status is Status.COMPLETED
    wait_until(lambda: not queues(site), "all doubles were taken", seconds=SLOW)

    events = [len(list(run.events())) for run in runs]
    before = calls(site)
    ring(
        site, *(f"{run.id}.{node}.1.1" for run in runs for node in "abc" for _ in range(COPIES))
    )
    wait_until(lambda: not queues(site), "all doubles were taken", seconds=SLOW)
    assert site.client.start("chain", "go").wait(SLOW).status is Status.COMPLETED
    cost = calls(site) - before

    assert [len(list(run.events())) for run in runs] == events
    assert {count for run in runs for count in starts(run).values()} == {1}
    assert cost < 2 * RUNS * NODES * COPIES + 100, (
        "a claim for each double, a look at how its visit ended, and a little around"
    )


@pytest.mark.sample
def test_messages_from_long_ago_do_nothing(site):
    """Visits and attempts that are over, of runs that wait, have ended, were cancelled or are gone."""
    site.ready(1)
    loop, retried = site.client.start("loop", "go"), site.client.start("retry", "go")
    waiting, cancelled = (
        site.client.start("question", "go"),
        site.client.start("question", "go"),
    )
    for run in (loop, retried, waiting, cancelled):
        run.wait(SLOW)
    cancelled.cancel("enough")
    runs = (loop, retried, waiting, cancelled)
    before = [[event.kind for event in run.events()] for run in runs]

    nodes, numbers = (
        ("write", "flaky", "node.with.dots"),
        ("0.0", "0.1", "1.0", "1.1", "1.2", "2.1", "9.1"),
    )
    ring(
        site,
        *(f"{run.id}.{node}.{number}" for run in runs for node in nodes for number in numbers),
    )
    ring(site, "00gone0000.a.1.1", f"{loop.id}.nowhere.1.1", f"{loop.id}.@after.1.1")
    wait_until(lambda: not queues(site), "all of them were taken", seconds=SLOW)
    assert site.client.start("chain", "go").wait(SLOW).status is Status.COMPLETED

    assert [[event.kind for event in run.events()] for run in runs] == before
    assert waiting.status is Status.INTERRUPTED


def test_a_claim_that_believes_every_message_starts_nodes_again(site):
    """Control: without the look at status, visit and attempt, doubles and old messages start what is over."""
    site.ready(1, app="tests.chaos.no_claim_check:app")
    chain, loop = site.client.start("chain", "go"), site.client.start("loop", "go")
    assert {run.wait(SLOW).status for run in (chain, loop)} <= {
        Status.COMPLETED,
        Status.INTERRUPTED,
    }
    before = starts(chain).total(), starts(loop).total()

    ring(site, f"{chain.id}.a.1.1", f"{loop.id}.write.1.1")

    wait_until(
        lambda: starts(chain).total() > before[0],
        "a double starts its node again",
        seconds=SLOW,
    )
    wait_until(
        lambda: starts(loop).total() > before[1],
        "an old message starts a node again",
        seconds=SLOW,
    )


def sweep_together(url: str, done: threading.Event) -> None:
    """Sweep without a rest, as one of many programs."""
    client = Client(store=RedisStore(url, lease=LEASE))
    while not done.is_set():
        client.engine.sweep()
    client.engine.store.close()


def disturb(site: Site) -> tuple[list, list]:
    """Kill a worker that runs nodes, and lose the messages of other runs; nobody sweeps."""
    gated = [site.client.start("gated", "go") for _ in range(3)]
    for run in gated:
        wait_until(lambda run=run: site.starts(run), "the node runs", seconds=SLOW)
    victim = site.starter(gated[0])
    lost = [run for run in gated if int(site.starts(run)[0][0]) == victim.pid]
    victim.kill()
    (other,) = [worker for worker in site.workers if worker.alive]
    os.kill(other.pid, signal.SIGSTOP)
    silenced = [site.client.start("chain", "go") for _ in range(30)]
    for key in queues(site):
        site.redis.delete(key)
    os.kill(other.pid, signal.SIGCONT)
    for run in gated:
        site.open_gate(run)
    return lost, silenced


def test_without_a_sweeper_nothing_comes_and_ten_at_once_do_it_once(site):
    """Lost messages and leases wait for a sweeper; ten of them ring for each, and count one loss."""
    site.ready(2, RUNNER_SWEEP_INTERVAL=NEVER)
    lost, silenced = disturb(site)

    ends = time.monotonic() + RECOVERY + 1
    wait_until(
        lambda: time.monotonic() > ends, "a lease and a sweep would be over", seconds=SLOW
    )
    going = [run for run in silenced if run.status is Status.EXECUTING]
    # The frozen worker had asked the server for messages, and so may have one of each queue.
    assert len(going) >= len(silenced) - 8, "control: nobody sweeps"
    assert {run.status for run in lost} == {Status.EXECUTING}, "control: nobody sweeps"

    done = threading.Event()
    sweepers = [
        threading.Thread(target=sweep_together, args=(site.url, done)) for _ in range(SWEEPERS)
    ]
    for thread in sweepers:
        thread.start()
    try:
        assert {run.wait(SLOW).status for run in [*lost, *silenced]} == {Status.COMPLETED}
    finally:
        done.set()
    for run in silenced:
        assert set(starts(run).values()) == {1}
        consistent(site.client.engine.store, run.id)
    for run in lost:
        assert [event.kind for event in run.events()].count("node.lost") == 1
        assert run.result().results["a"].attempts == 2
    for thread in sweepers:
        thread.join(SLOW)


def test_scripts_that_the_server_forgets_all_the_time_are_told_again(site):
    """SCRIPT FLUSH every few milliseconds under load: nobody notices."""
    site.ready(2)
    rng, flushed = random.Random(1), 0  # noqa: S311 - no secret
    pause = threading.Event()
    with Load(site.url) as load:
        while len(load.started) < 40:
            site.redis.script_flush()
            flushed += 1
            pause.wait(rng.uniform(0.001, 0.02))
    load.finish(SLOW)

    load.check()
    assert flushed > 100


def test_a_client_that_only_names_scripts_is_refused_after_a_flush(site):
    """Control: what a server has forgotten it does not run."""
    name = site.redis.script_load("return 1")
    assert site.redis.evalsha(name, 0) == 1
    site.redis.script_flush()

    with pytest.raises(redis.exceptions.NoScriptError):
        site.redis.evalsha(name, 0)
