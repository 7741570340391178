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
        told = {"RUNNER_GRAPHS": GRAPHS, "RUNNER_SHUTDOWN_GRACE": GRACE.get(how, SHORT), **settings}
        if how == "kept":
            told["RUNNER_GRAPHS"] += ",tests.chaos.no_give_up"
        workers[case] = site.add(pool, 1, queues=case, **told)
    found = {}
    for case, worker in workers.items():
        worker.wait_ready()
        found[case] = Stopped(site.client.start(case, "go"), worker, site)
    for case, each in found.items():
        wait_until(lambda each=each: site.starts(each.run), f"the node of {case} runs", seconds=SLOW)
    site.add(slots=100, RUNNER_GRAPHS=GRAPHS, **settings).wait_ready()
    for case, each in found.items():
        os.kill(each.worker.pid, SIGNAL.get(case.split("_")[0], signal.SIGTERM))
    for case in [case for case in found if case.split("_")[0] in GRACE]:
        each = found[case]
        wait_until(
            lambda each=each: "shutdown" in each.worker.said().lower(), f"{case} is told", seconds=SLOW
        )
        site.open_gate(each.run)
    return found


@pytest.mark.sample
def test_a_worker_that_stops_gives_up_what_does_not_end(databases):
    """One worker of threads past its grace: its node is begun elsewhere at once, and done once."""
    site = next(databases)
    ((_, at),) = begin(site, "late_threads").items()
    wait_until(lambda: len(site.starts(at.run)) == 2, "another worker runs the node", seconds=SLOW)
    site.open_gate(at.run)

    assert at.run.wait(SLOW).status is Status.COMPLETED
    assert "node.left" in at.kinds()
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
    at = stopped[case]

    assert at.run.wait(SLOW).status is Status.COMPLETED
    assert len(at.site.starts(at.run)) == 1
    wait_until(lambda: not at.worker.alive, "the worker has gone by itself", seconds=SLOW)


@pytest.mark.parametrize("case", [*named("late"), *named("cold")])
def test_a_node_that_does_not_end_in_time_goes_on_elsewhere_at_once(stopped, case):
    """Beyond the grace, and in a cold stop: no lease is lost, and the key is the same."""
    at = stopped[case]
    wait_until(lambda: len(at.site.starts(at.run)) == 2, "another worker runs the node", seconds=SLOW)
    at.site.open_gate(at.run)

    assert at.run.wait(SLOW).status is Status.COMPLETED
    first, second = at.site.starts(at.run)
    assert first[0] != second[0]
    assert first[1:] == second[1:]
    assert "node.left" in at.kinds()
    assert "node.lost" not in at.kinds()
    wait_until(lambda: not at.worker.alive, "the worker has gone by itself", seconds=SLOW)


@pytest.mark.parametrize("case", named("kept"))
def test_where_nothing_is_given_up_others_wait_for_the_lease(stopped, case):
    """Control: a worker that gives nothing up lets others wait, until its lease runs out or its node ends."""
    at = stopped[case]
    if case == "kept_threads":
        wait_until(lambda: "worker.returns" not in at.worker.said(), "it gives nothing up")
        assert len(at.site.starts(at.run)) == 1
        at.site.open_gate(at.run)
    else:
        wait_until(lambda: len(at.site.starts(at.run)) == 2, "the lease has run out", seconds=SLOW)
        at.site.open_gate(at.run)

    assert at.run.wait(SLOW).status is Status.COMPLETED
    assert ("node.lost" in at.kinds()) == (case == "kept_prefork")
    assert "node.left" not in at.kinds()


@pytest.mark.parametrize("case", named("hangs"))
def test_a_worker_that_hangs_is_noticed_and_its_node_goes_on(stopped, case):
    """A node that ignores everything ends elsewhere; its worker is named as one that hangs, or ends it."""
    at = stopped[case]

    assert at.run.wait(SLOW).status is Status.COMPLETED
    if case == "hangs_prefork":
        wait_until(lambda: not at.worker.alive, "the child was killed and the worker has gone", seconds=SLOW)
        assert "worker.killed: " in at.worker.said()
        return
    wait_until(lambda: "worker.hangs: " in at.worker.said(), "the log says so", seconds=SLOW)
    assert f"{at.run.id}.a.1.1" in at.worker.said().rpartition("worker.hangs")[2]
    wait_until(lambda: states_of(at.site)[at.worker.pid] == "hangs", "workers list says so", seconds=SLOW)
    at.site.redis.set(f"free:{at.run.id}", 1)
    wait_until(lambda: not at.worker.alive, "the worker has gone when the node ended", seconds=SLOW)
    assert at.worker.pid not in states_of(at.site)


def states_of(site: Site) -> dict[int, str]:
    """What `runner workers list` shows, by process."""
    roster = WorkerRegistry(site.url)
    try:
        now = roster.now()
        return {worker.pid: worker.state_at(now) for worker in roster.all()}
    finally:
        roster.close()
