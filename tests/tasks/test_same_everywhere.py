"""The same random graph ends alike in process, on one worker, on four, and with disturbed messages."""

from __future__ import annotations

import random

import pytest

from runner.run import FINAL
from tests.core.graphs import answers
from tests.properties.test_graph_machine import Process, told
from tests.tasks.same_graphs import COUNT, mapped, plan
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.tasks.same_graphs"}
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
        found = []
        while (message := self.redis.rpop(key)) is not None:
            found.append(message)
        self.touched += len(found)
        self.chance.shuffle(found)
        for message in found:
            fate = 1 if message in self.met else self.chance.randrange(3)
            self.met.add(message)
            if fate == 0:
                self.withheld.append((key, message))
            else:
                self.redis.lpush(key, *[message] * fate)


def finish(site, runs, disturber=None) -> list:
    """Answer every question by the fixed rule until all runs have ended, and give their results."""

    def ended():
        if disturber is not None:
            disturber.disturb()
        for run in runs:
            for asked in run.interrupts():
                site.client.respond(asked.id, f"{asked.node_id} {asked.visit} {asked.name}")
        return all(run.result().status in FINAL for run in runs)

    wait_until(ended, "all runs have ended")
    return [run.result() for run in runs]


def expected(count: int) -> list:
    """What the graphs give in process."""
    return [told(Process(plan(number)).finish()) for number in range(count)]


def start(site, count: int) -> list:
    """Begin one run of each graph."""
    return [site.client.start(f"same{number}", "task") for number in range(count)]


def test_one_worker_gives_the_results_of_one_process(empty_site):
    """A few seeded graphs, with questions and loops, end on a worker as they do in process."""
    empty_site.ready(1, **GRAPHS)

    assert [told(found) for found in finish(empty_site, start(empty_site, QUICK))] == expected(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_workers_give_the_results_of_one_process(empty_site, workers):
    """All seeded graphs end alike, however many workers share their nodes."""
    empty_site.ready(workers, **GRAPHS)

    assert [told(found) for found in finish(empty_site, start(empty_site, COUNT))] == expected(COUNT)


def test_a_map_gives_the_same_everywhere(empty_site):
    """Maps, the empty one too, end on workers as in process, though their messages are disturbed."""
    empty_site.ready(1, **GRAPHS)
    sizes = [0, 1, 7]
    runs = [empty_site.client.start("same_map", size) for size in sizes]

    found = finish(empty_site, runs, Disturber(empty_site, 2))

    assert [told(each) for each in found] == [in_process(size) for size in sizes]


def in_process(size: int) -> tuple:
    """Run the map here, answering by the fixed rule."""
    made = mapped()
    result = made(size)
    while result.interrupts:
        given = [(each.id, f"{each.node_id} {each.visit} {each.name}") for each in result.interrupts]
        result = made(answers(*given))
    return told(result)


@pytest.mark.slow
def test_disturbed_messages_change_no_result(empty_site):
    """Doorbells that are doubled, held back and shuffled change nothing but time."""
    for _ in range(2):
        empty_site.add(slots=1, **GRAPHS)  # with more, hardly a message waits long enough to be disturbed
    empty_site.ready(2)
    disturber = Disturber(empty_site, 1)
    ended = finish(empty_site, start(empty_site, COUNT), disturber)

    assert [told(found) for found in ended] == expected(COUNT)
    assert disturber.touched
