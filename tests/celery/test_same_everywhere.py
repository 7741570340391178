"""The same random graph ends alike in process, on a worker, and on two with disturbed messages."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

import pytest

from runner.records.run import FINAL
from tests.celery.same_graphs import COUNT, build, mapped, plan
from tests.graphs import answers
from tests.waiting import wait_until

pytestmark = pytest.mark.full

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.same_graphs"}
QUICK = 4


class Disturber:
    """Shuffles, doubles and withholds the messages of a site's queues."""

    def __init__(self, site, seed: int) -> None:
        self.redis, self.chance = site.redis, random.Random(seed)  # noqa: S311 - repeatable, no secret
        self.withheld: list[tuple[bytes, bytes]] = []
        self.met: set[bytes] = set()
        self.touched = 0

    def disturb(self) -> None:
        """Put back what was withheld, and mix up what is queued."""
        for key, message in self.withheld:
            self.redis.lpush(key, message)
        self.withheld = []
        for key in list(self.redis.scan_iter("runner*", _type="list")):
            if not key.startswith(b"runner:{"):
                self.mix(key)

    def mix(self, key: bytes) -> None:
        """Take all messages of a queue; of those met first one in three is doubled, one in three comes later.

        A message is met once: doubled at every look, they would grow faster than workers can take them.
        """
        messages = []
        while (message := self.redis.rpop(key)) is not None:
            messages.append(message)
        self.touched += len(messages)
        self.chance.shuffle(messages)
        for message in messages:
            copies = 1 if message in self.met else self.chance.randrange(3)
            self.met.add(message)
            if copies == 0:
                self.withheld.append((key, message))
            else:
                self.redis.lpush(key, *[message] * copies)


def outcome(result) -> tuple:
    """What of a result must not depend on how it came about."""
    nodes = {
        name: (node.status, node.visit, node.output, node.error and str(node.error))
        for name, node in result.results.items()
    }
    return result.status, Counter(result.execution_order), nodes


def answer_to(question) -> str:
    """The fixed rule by which questions are answered."""
    return f"{question.node_id} {question.visit} {question.name}"


def finish(site, runs, disturber=None) -> list:
    """Answer every question by the rule until all runs have ended, and return their outcomes."""

    def ended():
        if disturber is not None:
            disturber.disturb()
        for run in runs:
            for question in run.interrupts():
                site.client.respond(question.id, answer_to(question))
        return all(run.result().status in FINAL for run in runs)

    wait_until(ended, "all runs have ended")
    return [outcome(run.result()) for run in runs]


def in_process(graph, task: object = "task") -> tuple:
    """Run a graph here, answering by the rule, and return its outcome."""
    result = graph(task)
    while result.interrupts:
        result = graph(
            answers(*((question.id, answer_to(question)) for question in result.interrupts))
        )
    return outcome(result)


def expected(count: int) -> list:
    """The outcomes of the graphs in process."""
    return [in_process(build(plan(number))) for number in range(count)]


def start(site, count: int) -> list:
    """Begin one run of each graph."""
    return [site.client.start(f"same{number}", "task") for number in range(count)]


def test_one_worker_gives_the_results_of_one_process(empty_site):
    """A few seeded graphs, with questions and loops, end on a worker as they do in process."""
    empty_site.ready(1, **GRAPHS)

    assert finish(empty_site, start(empty_site, QUICK)) == expected(QUICK)


@pytest.mark.slow
def test_a_map_gives_the_same_everywhere(empty_site):
    """Maps, the empty one too, end on workers as in process, though their messages are disturbed."""
    empty_site.ready(1, **GRAPHS)
    sizes = [0, 1, 7]
    runs = [empty_site.client.start("same_map", size) for size in sizes]

    outcomes = finish(empty_site, runs, Disturber(empty_site, 2))

    assert outcomes == [in_process(mapped(), size) for size in sizes]


@pytest.mark.slow
def test_disturbed_messages_change_no_result(empty_site):
    """All seeded graphs end as in one process, though doorbells are doubled, held back and shuffled."""
    for _ in range(2):
        empty_site.add(
            slots=1, **GRAPHS
        )  # with more, hardly a message waits long enough to be disturbed
    empty_site.ready(2)
    disturber = Disturber(empty_site, 1)
    for worker in empty_site.workers:
        os.kill(worker.pid, signal.SIGSTOP)
    runs = start(empty_site, COUNT)
    disturber.disturb()
    for worker in empty_site.workers:
        os.kill(worker.pid, signal.SIGCONT)

    assert finish(empty_site, runs, disturber) == expected(COUNT)
    assert disturber.touched >= COUNT - len(empty_site.workers)
