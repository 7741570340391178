"""Huge, deep and foreign things sent to the streams: refused with the reason, at a bounded cost."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from runner import Status
from runner.store.redis.streams import HAND
from tests.waiting import wait_until

LONG = 150
MEGA = 1 << 20
HUGE = 8
"""Megabytes of one message."""
FEW, MANY = HAND, 30
"""How many a worker may take at once, and how many are sent."""
SLACK = 100
"""Megabytes that may come and go meanwhile."""


def malformed() -> list[bytes]:
    """Messages that nobody can use, small and huge."""
    noise = random.Random(1).randbytes(MEGA)  # noqa: S311 - noise is no secret
    return [
        noise * HUGE,
        b"[" * (HUGE * MEGA),
        b'{"a":' * MEGA,
        json.dumps({"v": 1, "interrupt_id": "x" * (HUGE * MEGA), "response": 1}).encode(),
        b"[" + b"1," * (HUGE * MEGA // 2) + b"1]",
        noise[:1000],
        b"",
        b"null",
        b'{"v":1,"interrupt_id":"0nobody.n.1.a","response":' + b"9" * 5000 + b"}",
        "{\u201c}".encode("utf-16"),
    ]


def memory(pid: int, which: str = "VmRSS") -> int:
    """Read what a process has of memory, or had at most, in megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) // 1024


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Give a worker as it should be, and one that takes as many large messages as there are."""
    sites = {"worker": next(databases), "unlimited": next(databases)}
    fork_server.add(sites["worker"], "worker")
    fork_server.add(sites["unlimited"], "unlimited", app="tests.chaos.no_message_limit:app")
    with fork_server.running(*sites.values()):
        yield sites


@pytest.fixture
def site(sites):
    """The site whose worker is as it should be."""
    return sites["worker"]


def dead(site) -> int:
    return site.redis.xlen("runner:dead")


@pytest.mark.sample
@pytest.mark.parametrize("stream", ["runner:responses", "runner:starts"])
def test_malformed_messages_become_dead_letters(site, stream):
    """Whatever comes by a stream is a dead letter with its reason; the worker lives and works on."""
    site.redis.delete("runner:dead")
    for body in malformed():
        site.send(body, stream)
    site.send(b"no body", stream, field="other")
    count = len(malformed()) + 1

    wait_until(lambda: dead(site) == count, "all are dead letters", seconds=LONG)

    reasons = [fields[b"reason"] for _, fields in site.redis.xrange("runner:dead")]
    assert all(reasons)
    assert len(site.workers[0].pids) == 1
    assert site.client.start("chain", "go").wait(LONG).status is Status.COMPLETED
    site.redis.delete("runner:dead")


def written(site) -> int:
    """Return how many dead letters were ever written; the oldest go when all take over 100 MB."""
    return (
        site.redis.xinfo_stream("runner:dead")["entries-added"]
        if site.redis.exists("runner:dead")
        else 0
    )


def needed_for_all(site) -> int:
    """Send many huge malformed messages to a frozen worker; return how many megabytes it needed."""
    (worker,) = site.workers
    earlier = written(site)
    Path(f"/proc/{worker.pid}/clear_refs").write_text(
        "5", encoding="ascii"
    )  # its peak begins anew
    before = memory(worker.pid)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        for _ in range(MANY):
            site.send(b"x" * (HUGE * MEGA))
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: written(site) == earlier + MANY, "all are dead letters", seconds=LONG)
    assert len(worker.pids) == 1
    site.redis.delete("runner:dead")
    return memory(worker.pid, "VmHWM") - before


def test_huge_malformed_messages_are_taken_by_the_few(sites):
    """However much of it lies there, a reader has a few huge messages at a time, and its memory is flat."""
    (worker,) = sites["worker"].workers

    assert needed_for_all(sites["worker"]) < FEW * HUGE + SLACK
    once = memory(worker.pid)
    assert needed_for_all(sites["worker"]) < FEW * HUGE + SLACK
    assert memory(worker.pid) < once + SLACK


def test_without_that_care_a_worker_takes_it_all(sites):
    """Control: a reader that always takes a hundred has all of it in memory."""
    assert needed_for_all(sites["unlimited"]) > MANY * HUGE
