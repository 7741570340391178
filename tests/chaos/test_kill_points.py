"""A child of a worker dies at every named step of a node, and the run ends as if it had not."""

from __future__ import annotations

import time

import pytest

from runner import Status
from runner.execution import ids
from tests.celery.workers import RECOVERY
from tests.chaos import journey
from tests.chaos.steps import WITHIN, Step, gap, repeated
from tests.waiting import wait_until

APP = "tests.chaos.kill_points:app"
SLOTS = 4
TOGETHER = 3
GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.journey"}

IN_HAND = [
    Step("claim.before"),
    Step("claim.after"),
    Step("load.before"),
    Step("effect.before"),
    Step("effect.after"),
    Step("save.before"),
    Step("save.after"),
    Step("settle.before"),
    Step("settle.before", "map[1]"),
    Step("expand.before", "map"),
    Step("delegate.before", "inner"),
    Step("retry.before", "flaky"),
    Step("ask.before", "agent"),
    Step("ask.after", "agent"),
    Step("park.before", "ask"),
    Step("settle.before", "end"),
]
"""The node is lost: it runs again."""

IN_THE_STORE = [
    Step("settle.after"),
    Step("settle.after", "map[1]"),
    Step("expand.after", "map"),
    Step("delegate.after", "inner"),
    Step("retry.after", "flaky"),
    Step("park.after", "ask"),
    Step("settle.after", "end"),
]
"""What the process had to do is done: nothing is to be repeated."""

SAMPLE = Step("settle.before")


class Story:
    """Runs in which processes die, beside one that nothing happens to.

    A run has a death at one step of each of several nodes: they are on branches of their own.
    """

    def __init__(self, site, steps) -> None:
        self.site, self.steps, self.runs = site, steps, {}
        self.people = journey.People(site)

        self.waiting = list(grouped(steps))

    def begin(self) -> None:
        """Start the next run; what is armed there is armed before."""
        run_id = ids.run_id()
        group = self.waiting.pop(0)
        for step in group:
            step.arm(self.site, run_id)
        self.site.client.engine.start("journey", "go", run_id=run_id)
        self.runs.update(dict.fromkeys(group, self.site.client.run(run_id)))

    def died(self, step: Step) -> int:
        return step.died(self.site, self.runs[step])

    def have_ended(self) -> bool:
        """Keep a few runs going, for a queue longer than a lease is rung again; tell if all have ended."""
        self.people.answer()
        left = {run.id for run in self.runs.values() if run.status is not Status.COMPLETED}
        while self.waiting and len(left) < TOGETHER:
            self.begin()
            left.add("new")
        return not left


def grouped(steps):
    """Spread steps over as few runs as have a branch for each of them."""
    groups = []
    for step in steps:
        free = (
            group for group in groups if all(step.branch != other.branch for other in group)
        )
        group = next(free, None)
        if group is None:
            groups.append(group := [])
        group.append(step)
    return groups


def sampled(step):
    return pytest.param(step, marks=pytest.mark.sample) if step == SAMPLE else step


@pytest.fixture(scope="module")
def children(databases, fork_server, chosen):
    """A prefork worker whose children die at each step of a node, each in a run of its own."""
    steps = chosen("step", IN_HAND + IN_THE_STORE) or IN_HAND + IN_THE_STORE
    site, unswept = next(databases), next(databases)
    fork_server.add(site, "children", app=APP, pool="prefork", slots=SLOTS, **GRAPHS)
    fork_server.add(
        unswept,
        "unswept",
        app="tests.chaos.no_sweep_app:app",
        pool="prefork",
        slots=SLOTS,
        **GRAPHS,
    )
    lost = [step for step in steps if step in IN_HAND[:-1]] or IN_HAND[:-1]
    with fork_server.running(site, unswept):
        yield Story(site, steps), Story(unswept, lost)


@pytest.fixture(scope="module")
def killed(children):
    """Give the story when every run has ended."""
    story, _ = children
    story.plain = story.site.client.start("journey", "go")
    wait_until(
        lambda: story.have_ended() and story.plain.status is Status.COMPLETED,
        "every run ends",
        seconds=150,
    )
    return story


@pytest.mark.parametrize("step", [sampled(step) for step in IN_HAND], ids=str)
def test_a_child_killed_with_a_node_in_hand_costs_time_only(killed, step):
    """The run ends as any other: each visit committed once, its code started twice at most, with one key."""
    run = killed.runs[step]

    assert repeated(killed.site, run, step, killed.plain).keys() <= {
        other.node for other in killed.steps
    }
    assert gap(killed.site, run, step) < WITHIN


@pytest.mark.parametrize("step", IN_THE_STORE, ids=str)
def test_a_child_killed_behind_a_transition_costs_nothing(killed, step):
    """What the store has acknowledged is not done again."""
    assert step.node not in repeated(killed.site, killed.runs[step], step, killed.plain)


def test_the_worker_outlives_its_children(killed):
    """A child takes its node with it and nothing else."""
    (worker,) = killed.site.workers

    assert len(worker.pids) == 1
    assert worker.alive


@pytest.mark.sample
def test_without_the_sweep_each_of_them_stays_lost(children):
    """Control: the same deaths in a worker that never sweeps; no node comes back in that time."""
    _, story = children
    while story.waiting:
        story.begin()

    def all_died():
        story.people.answer()
        return all(story.died(step) for step in story.steps)

    wait_until(all_died, "a process died at every step", seconds=150)
    ends = time.monotonic() + RECOVERY + 1.5
    wait_until(lambda: time.monotonic() > ends, "the time is over in which it would come back")
    for step in story.steps:
        assert (step.node, 1) not in journey.commits(story.runs[step]), step
