"""Graphs on real workers: the same promises on every pool."""

from __future__ import annotations

import json
import time

from runner import Status
from tests.celery.workers import RECOVERY
from tests.waiting import wait_until


def test_answers_are_applied_while_every_slot_is_busy(site):
    """A worker whose slots are all taken still applies an answer at once."""
    question = site.client.start("question", "go")
    (interrupt,) = question.wait(60).interrupts
    crowd = site.client.start("crowd", "go")
    busy = 1 if site.workers[0].log.stem.startswith("solo") else 2
    wait_until(lambda: len(site.starts(crowd)) == busy, "every slot is busy")

    body = {
        "v": 1,
        "interrupt_id": interrupt.id,
        "response": 1,
        "reply_to": "runner:replies:busy",
    }
    site.send(json.dumps(body))

    assert site.receipt("runner:replies:busy")["status"] == "accepted"
    assert len(site.starts(crowd)) == busy
    site.open_gate(crowd)
    assert question.wait(60).status is Status.COMPLETED
    assert crowd.wait(60).status is Status.COMPLETED


def test_every_queue_that_a_graph_names_is_served(site):
    """A worker without -Q serves the queues of all its graphs, at every priority."""
    result = site.client.start("elsewhere", "go").wait(60)

    assert result.execution_order == ["here", "there", "later"]


def test_a_node_may_run_longer_than_its_lease(sites):
    """On every pool the process that runs a node renews its lease, so nobody else starts it meanwhile."""
    runs = {}
    for pool, site in sites.items():
        site.workers[0].wait_ready()
        runs[pool] = site.client.start("gated", "go")
    for pool, site in sites.items():
        wait_until(
            lambda site=site, pool=pool: site.starts(runs[pool]), f"the node runs on {pool}"
        )
    ends = time.monotonic() + RECOVERY + 0.5

    wait_until(lambda: time.monotonic() > ends, "a lease and a sweep are over")

    for pool, site in sites.items():
        site.open_gate(runs[pool])
        assert runs[pool].wait(60).results["a"].attempts == 1
        assert len(site.starts(runs[pool])) == 1


def test_a_node_that_makes_many_objects_seldom_waits_for_the_garbage_collector(site):
    """Python looks for garbage once in 10,000 new objects, and never among what was imported."""
    run = site.client.start("garbage", None)
    collections, exempt = run.wait(60).results["a"].output

    # Threads of the worker make objects, too. With Python's own threshold there are 15 to 43.
    assert collections <= 6
    assert exempt > 50_000
