"""What is lost on the way between programs, queue and store, while everything else goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from runner import Status
from tests.celery.workers import RECOVERY
from tests.chaos.steps import WITHIN
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.journey"}
LONG = 150
BACKLOG = 30
"""So many messages last for three seconds, whatever else this machine has to do meanwhile."""
QUEUE = "runner/slow\x06\x163"
"""The list of the usual priority."""


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Give a worker of one slot, and one that never sweeps."""
    sites = {"swept": next(databases), "unswept": next(databases)}
    for name, app in {
        "swept": "runner.celery:app",
        "unswept": "tests.chaos.no_sweep_app:app",
    }.items():
        fork_server.add(sites[name], name, app=app, slots=1, **GRAPHS)
    with fork_server.running(*sites.values()):
        yield sites


class Stream:
    """Other work of which the queue is never empty."""

    def __init__(self, site) -> None:
        self.site, self.least = site, BACKLOG

    def flow(self) -> None:
        """Top the queue up."""
        length = self.site.redis.llen(QUEUE)
        self.least = min(self.least, length)
        for _ in range(BACKLOG - length):
            self.site.client.start("slow", "go")

    def lose(self):
        """Start one run more, and delete its message from the queue."""
        for _ in range(BACKLOG):
            self.site.client.start("slow", "go")
        run = self.site.client.start("slow", "go")
        (message,) = [
            queued
            for queued in self.site.redis.lrange(QUEUE, 0, -1)
            if run.id.encode() in queued
        ]
        assert self.site.redis.lrem(QUEUE, 1, message) == 1
        return run

    def is_there(self, run) -> bool:
        """Tell whether the queue has a message for a run, or had one meanwhile."""
        self.flow()
        rung = any(
            run.id.encode() in message for message in self.site.redis.lrange(QUEUE, 0, -1)
        )
        return rung or run.status is Status.COMPLETED

    def has_ended(self, run) -> bool:
        self.flow()
        return run.status is Status.COMPLETED


@pytest.mark.sample
def test_a_lost_doorbell_is_rung_while_the_queue_never_empties(sites):
    """A message that vanishes from a busy queue is sent again within lease and sweep, not when it is idle."""
    stream = Stream(sites["swept"])
    run = stream.lose()

    wait_until(lambda: stream.is_there(run), "the node is rung for again", seconds=WITHIN)
    wait_until(lambda: stream.has_ended(run), "its turn comes", seconds=LONG)

    assert stream.least > 0


def test_without_the_sweep_it_stays_lost(sites):
    """Control: with a worker that never sweeps the other work goes on, and that one node does not."""
    stream = Stream(sites["unswept"])
    run = stream.lose()
    ends = time.monotonic() + RECOVERY + 1.5

    wait_until(lambda: stream.is_there(run) or time.monotonic() > ends, "the time is over")

    assert not stream.is_there(run)
    assert stream.least > 0


def respond(site, question: str, key: str, moment: str = "never") -> str:
    """Answer from a program of its own; return what it was told, or nothing where it died."""
    command = [sys.executable, "-m", "tests.chaos.answering", question, "yes", key, moment]
    environment = {**os.environ, "RUNNER_REDIS_URL": site.url}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LONG
    )
    assert done.returncode == (0 if moment == "never" else -signal.SIGKILL), done.stderr
    return done.stdout.strip()


def asked(site):
    run = site.client.start("question", "go")
    (question,) = run.wait(LONG).interrupts
    return run, question.id


def test_an_answer_outlives_the_program_that_gave_it(sites):
    """Once the store has taken an answer its node goes on, though the program died before it was told so."""
    site = sites["swept"]
    run, question = asked(site)

    assert respond(site, question, "mine", "after") == ""

    wait_until(lambda: run.status is Status.COMPLETED, "the run goes on", seconds=LONG)
    again = respond(site, question, "mine")
    assert again.split()[:2] == ["accepted", run.id]
    assert respond(site, question, "mine") == again
    assert respond(site, question, "another").split()[0] == "duplicate"


def test_an_answer_that_never_left_is_not_there(sites):
    """Control: where the program dies before the store has the answer, the question is still open."""
    site = sites["swept"]
    run, question = asked(site)

    respond(site, question, "mine", "before")

    assert run.status is Status.INTERRUPTED
    assert respond(site, question, "mine").split()[0] == "accepted"
    assert run.wait(LONG).status is Status.COMPLETED
