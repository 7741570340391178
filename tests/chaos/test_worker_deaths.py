"""Whole workers die at named steps of nodes, answers, starts and sweeps, and others take their place."""

from __future__ import annotations

import functools
import json

import pytest

from runner import Status
from runner.execution import ids
from runner.settings import as_broker
from tests.chaos import journey
from tests.chaos.steps import WITHIN, Step, gap, repeated
from tests.waiting import wait_until

APP = "tests.chaos.kill_points:app"
GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.journey"}
EXPIRED = {"ask": "nobody came", "end": ["end", "ask"]}

errand = functools.partial(Step, graph="errand")
STEPS = {
    "nodes": [
        errand("effect.before"),
        errand("claim.before", "begin"),
        errand("save.after"),
        errand("park.after", "ask"),
    ],
    "results": [
        errand("effect.after"),
        errand("claim.after", "begin"),
        errand("settle.before"),
        errand("settle.after"),
    ],
    "answers": [
        errand("answer.before", "ask"),
        errand("answer.after", "ask"),
        errand("done.before", "ask"),
    ],
    "doors": [
        Step("sweep.before", "ask", graph="deadline"),
        Step("sweep.after", "ask", graph="deadline"),
        errand("start.before", "begin"),
        errand("start.after", "begin"),
    ],
    "elsewhere": [
        errand("publish.before"),
        errand("publish.after"),
        errand("answer.after", "ask"),
    ],
    "group": [errand("effect.after", how="group"), errand("ack.before"), errand("ack.after")],
}
"""By site: what happens there one after the other. At `elsewhere` the queue is in another database than the
store, so that doorbells are published; `group` has prefork workers, the others threads.
"""
SAMPLE = errand("effect.after")
CASES = [
    pytest.param(
        site, step, id=f"{site}: {step}", marks=[pytest.mark.sample] * (step == SAMPLE)
    )
    for site, steps in STEPS.items()
    for step in steps
]


class Place:
    """A site where one run after the other loses the worker that is at its step."""

    def __init__(self, site, steps) -> None:
        self.site, self.steps, self.left, self.runs = site, steps, list(steps), {}
        self.people, self.late = journey.People(site), None

    def advance(self) -> bool:
        """Answer what is asked, begin the next run when the last one has ended, and tell if that was all."""
        self.people.answer()
        last = list(self.runs.items())[-1:]
        if any(run.status is not Status.COMPLETED for _, run in last):
            self.arm_late(*last[0])
            return False
        if self.left:
            self.begin(self.left.pop(0))
            return False
        return True

    def begin(self, step: Step) -> None:
        if step.point.startswith("start."):
            self.runs[step] = self.by_message(step)
            return
        run_id, self.late = ids.run_id(), None
        if step.point.startswith("sweep."):
            self.late = step
        else:
            step.arm(self.site, run_id)
        self.site.client.engine.start(step.graph, "go", run_id=run_id)
        self.runs[step] = self.site.client.run(run_id)

    def arm_late(self, step: Step, run) -> None:
        """A sweep has no name: its step is armed when nothing but the right thing will be due."""
        if self.late is step and run.status is Status.INTERRUPTED:
            self.late = None
            step.arm(self.site, run.id)

    def by_message(self, step: Step):
        """Begin a run by a message; the worker that reads it dies."""
        step.arm(self.site, step.key)
        replies = f"runner:replies:{step.key}"
        body = {
            "v": 1,
            "graph": "errand",
            "task": "go",
            "idempotency_key": step.key,
            "reply_to": replies,
        }
        self.site.send(json.dumps(body), "runner:starts")
        return self.site.client.run(self.site.receipt(replies)["run_id"])


@pytest.fixture(scope="module")
def places(databases, fork_server, chosen):
    """All sites when all of their runs have ended; a site where nobody is to die is not there."""
    queue, sites = next(databases), {}
    steps = {name: chosen("step", steps_there) for name, steps_there in STEPS.items()}
    steps = {name: step for name, step in steps.items() if step} or STEPS
    for name in steps:
        sites[name] = site = next(databases)
        pool, slots = ("prefork", 2) if name == "group" else ("threads", 4)
        settings = {"RUNNER_BROKER_URL": as_broker(queue.url)} if name == "elsewhere" else {}
        for number in "ab":
            fork_server.add(
                site, name + number, app=APP, pool=pool, slots=slots, **GRAPHS, **settings
            )
    with fork_server.running(queue, *sites.values()):
        places = {name: Place(site, steps[name]) for name, site in sites.items()}
        somewhere = next(iter(places.values()))
        somewhere.plain = somewhere.site.client.start("errand", "go")

        def all_have_ended():
            ended = [place.advance() for place in places.values()]
            return all(ended) and somewhere.plain.status is Status.COMPLETED

        wait_until(all_have_ended, "all runs end", seconds=150)
        yield places


@pytest.mark.parametrize(("name", "step"), CASES)
def test_a_killed_worker_costs_time_only(places, name, step):
    """The run ends as any other: each visit committed once, its code started twice at most, with one key."""
    place, somewhere = places[name], next(iter(places.values()))
    run = place.runs[step]

    if step.graph == "errand":
        repeated(place.site, run, step, somewhere.plain, somewhere.site)
    else:
        assert step.died(place.site, run)
        assert journey.outputs(run) == EXPIRED
        assert set(journey.commits(run).values()) == {1}
    assert gap(place.site, run, step) < WITHIN


def test_a_start_by_message_begins_one_run(places):
    """The message whose reader died on it begins no second run."""
    begun = places["doors"].site.client.runs(graph="errand").items

    assert len(begun) == sum(step.point.startswith("start.") for step in places["doors"].steps)


def test_workers_that_died_were_born_again(places):
    """Each death was one of a whole worker, and another one has taken its place."""
    for name, place in places.items():
        pids = [len(worker.pids) for worker in place.site.workers]
        assert sum(pids) == 2 + len(place.steps), name
