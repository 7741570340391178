"""Workers that are told to stop: what ends in time is done once, what doesn't goes on elsewhere at once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import pytest

from runner import Run, Status
from runner.store.redis.workers import WorkerRegistry
from tests.celery.workers import Site, Worker
from tests.chaos.stopping_graphs import CASES
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
GRAPHS = "tests.celery.graphs,tests.chaos.stopping_graphs"
LONG, SHORT, SOFT = "600", "1", "6"
"""Seconds that nodes have to end: more than they need, less than they need, and so many in a soft stop."""

GRACE = {"ends": LONG, "soft": SOFT}
SIGNAL = {"soft": signal.SIGQUIT, "cold": signal.SIGQUIT, "kept": signal.SIGQUIT}
SLOW = 150
"""Seconds that a loaded machine may need."""


@dataclass
class Stopped:
    """A worker that was told to stop while it ran a node of a run."""

    run: Run
    worker: Worker
    site: Site

    def kinds(self) -> list[str]:
        return [event.kind for event in self.run.events()]


def begin(site: Site, *cases: str, **settings: str) -> dict[str, Stopped]:
    """Let workers run a node each, start one that can take over, and tell the others to stop."""
    workers = {}
    for case in cases:
        how, pool = case.split("_")
        options = {
            "RUNNER_GRAPHS": GRAPHS,
            "RUNNER_SHUTDOWN_GRACE": GRACE.get(how, SHORT),
            **settings,
        }
        if how == "kept":
            options["RUNNER_GRAPHS"] += ",tests.chaos.no_give_up"
        workers[case] = site.add(pool, 1, queues=case, **options)
    stopped = {}
    for case, worker in workers.items():
        worker.wait_ready()
        stopped[case] = Stopped(site.client.start(case, "go"), worker, site)
    for case, place in stopped.items():
        wait_until(
            lambda place=place: site.starts(place.run), f"the node of {case} runs", seconds=SLOW
        )
    site.add(slots=100, RUNNER_GRAPHS=GRAPHS, **settings).wait_ready()
    for case, place in stopped.items():
        os.kill(place.worker.pid, SIGNAL.get(case.split("_")[0], signal.SIGTERM))
    for case in [case for case in stopped if case.split("_")[0] in GRACE]:
        place = stopped[case]
        wait_until(
            lambda place=place: "shutdown" in place.worker.output().lower(),
            f"{case} is told",
            seconds=SLOW,
        )
        site.open_gate(place.run)
    return stopped


@pytest.mark.sample
def test_a_worker_that_stops_gives_up_what_does_not_end(databases):
    """One worker of threads past its grace: its node is begun elsewhere at once, and done once."""
    site = next(databases)
    ((_, late),) = begin(site, "late_threads").items()
    wait_until(
        lambda: len(site.starts(late.run)) == 2, "another worker runs the node", seconds=SLOW
    )
    site.open_gate(late.run)

    assert late.run.wait(SLOW).status is Status.COMPLETED
    assert "node.left" in late.kinds()
    site.end()


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def stopped(request, databases) -> dict[str, Stopped]:
    """Tell many workers to stop, in every way, on every pool and broker, each while it runs a node."""
    site, settings = next(databases), {}
    if request.param == "rabbitmq":
        settings["RUNNER_BROKER_URL"] = request.getfixturevalue("rabbit").url
    yield begin(site, *CASES, **settings)
    site.end()


def named(how: str) -> list[str]:
    return [case for case in CASES if case.startswith(how)]


@pytest.mark.parametrize("case", [*named("ends"), *named("soft")])
def test_a_node_that_ends_in_time_is_done_once(stopped, case):
    """Warm and soft: a node may end, nobody else starts it, and the worker ends by itself."""
    place = stopped[case]

    assert place.run.wait(SLOW).status is Status.COMPLETED
    assert len(place.site.starts(place.run)) == 1
    wait_until(lambda: not place.worker.alive, "the worker has gone by itself", seconds=SLOW)


@pytest.mark.parametrize("case", [*named("late"), *named("cold")])
def test_a_node_that_does_not_end_in_time_goes_on_elsewhere_at_once(stopped, case):
    """Beyond the grace, and in a cold stop: no lease is lost, and the key is the same."""
    place = stopped[case]
    wait_until(
        lambda: len(place.site.starts(place.run)) == 2,
        "another worker runs the node",
        seconds=SLOW,
    )
    place.site.open_gate(place.run)

    assert place.run.wait(SLOW).status is Status.COMPLETED
    first, second = place.site.starts(place.run)
    assert first[0] != second[0]
    assert first[1:] == second[1:]
    assert "node.left" in place.kinds()
    assert "node.lost" not in place.kinds()
    wait_until(lambda: not place.worker.alive, "the worker has gone by itself", seconds=SLOW)


@pytest.mark.parametrize("case", named("kept"))
def test_where_nothing_is_given_up_others_wait_for_the_lease(stopped, case):
    """Control: a worker that gives nothing up lets others wait, until its lease runs out or its node ends."""
    place = stopped[case]
    if case == "kept_threads":
        wait_until(lambda: "worker.returns" not in place.worker.output(), "it gives nothing up")
        assert len(place.site.starts(place.run)) == 1
        place.site.open_gate(place.run)
    else:
        wait_until(
            lambda: len(place.site.starts(place.run)) == 2,
            "the lease has run out",
            seconds=SLOW,
        )
        place.site.open_gate(place.run)

    assert place.run.wait(SLOW).status is Status.COMPLETED
    assert ("node.lost" in place.kinds()) == (case == "kept_prefork")
    assert "node.left" not in place.kinds()


@pytest.mark.parametrize("case", named("hangs"))
def test_a_worker_that_hangs_is_noticed_and_its_node_goes_on(stopped, case):
    """A node that ignores everything ends elsewhere; its worker is named as one that hangs, or ends it."""
    place = stopped[case]

    assert place.run.wait(SLOW).status is Status.COMPLETED
    if case == "hangs_prefork":
        wait_until(lambda: not place.worker.alive, "the worker has gone", seconds=SLOW)
        assert "worker.killed: " in place.worker.output()
        return
    wait_until(
        lambda: "worker.hangs: " in place.worker.output(), "the log says so", seconds=SLOW
    )
    assert f"{place.run.id}.a.1.1" in place.worker.output().rpartition("worker.hangs")[2]
    wait_until(
        lambda: states_of(place.site)[place.worker.pid] == "hangs",
        "the list says so",
        seconds=SLOW,
    )
    place.site.redis.set(f"free:{place.run.id}", 1)
    wait_until(
        lambda: not place.worker.alive, "the worker has gone when the node ended", seconds=SLOW
    )
    assert place.worker.pid not in states_of(place.site)


SOON = 200
"""Milliseconds in which a signal arrives; a node of `row` takes twice as long."""


@pytest.mark.parametrize("pool", ["threads", "prefork", "async"])
def test_at_a_quit_no_node_begins_and_the_wait_ends_with_the_last(empty_site, pool):
    """The rows go on elsewhere, and no lease is lost; Celery alone would wait for 30 seconds."""
    settings = {"RUNNER_GRAPHS": GRAPHS, "RUNNER_SHUTDOWN_GRACE": LONG}
    worker = empty_site.add(pool, 2, **settings)
    worker.wait_ready()
    runs = [empty_site.client.start("row", "go") for _ in range(2)]

    def started(run):
        return [event.at for event in run.events() if event.kind == "node.started"]

    wait_until(lambda: all(len(started(run)) > 1 for run in runs), "the rows run")
    os.kill(worker.pid, signal.SIGQUIT)
    seconds, micros = empty_site.redis.time()
    wait_until(lambda: not worker.alive, "the worker has gone by itself", seconds=25)

    soon = seconds * 1000 + micros // 1000 + SOON
    assert [at for run in runs for at in started(run) if at > soon] == []
    empty_site.add(**settings).wait_ready()
    assert [run.wait(SLOW).status for run in runs] == [Status.COMPLETED] * 2
    assert "node.lost" not in {event.kind for run in runs for event in run.events()}


def states_of(site: Site) -> dict[int, str]:
    """What `runner workers list` shows, by process."""
    roster = WorkerRegistry(site.url)
    try:
        now = roster.now()
        return {worker.pid: worker.state_at(now) for worker in roster.all()}
    finally:
        roster.close()
