"""Workers of the old and of the new code at once: each run goes on with its own graph, and no other."""

from __future__ import annotations

import pytest

from runner import Client, Status
from runner.definition.registry import Registry
from runner.store.redis.store import RedisStore
from tests.celery.workers import LEASE
from tests.chaos import versioned_graphs
from tests.waiting import wait_until

SLOW = 150


def versioned(version: str) -> dict[str, str]:
    return {"RUNNER_GRAPHS": "tests.chaos.versioned_graphs", "TEST_VERSION": version}


def stop_all(site):
    """End the workers of one version."""
    for worker in site.workers:
        worker.end()
    site.workers.clear()


def waiting(site, count):
    """Start runs that wait for a person."""
    runs = [site.client.start("versioned", number) for number in range(count)]
    for run in runs:
        assert run.wait(SLOW).status is Status.INTERRUPTED
    return runs


def answer(site, run):
    """Answer the one open question of a run."""
    (question,) = run.interrupts()
    assert site.client.respond(question.id, "yes").status == "accepted"


def stands(run, status):
    """Wait until a run stands so."""
    wait_until(lambda: run.status is status, f"run {run.id} is {status}", seconds=SLOW)


def test_runs_of_two_versions_never_run_on_the_other_ones_code(site):
    """Both kinds of worker serve one queue: new runs end; old ones end on old code or are moved."""
    site.add(slots=4, **versioned("old")).wait_ready()
    old = waiting(site, 2)
    site.add(slots=4, **versioned("new")).wait_ready()
    new = waiting(site, 2)

    for run in (*old, *new):
        answer(site, run)
    for run in new:
        stands(run, Status.COMPLETED)
    for run in old:
        # An old worker may have taken it first: then it has ended there, on its own code.
        wait_until(
            lambda run=run: run.status in {Status.COMPLETED, Status.NEEDS_MIGRATION},
            "it ended or is held",
            seconds=SLOW,
        )
        if run.status is Status.NEEDS_MIGRATION:
            run.migrate({"ask": "approval"})
        stands(run, Status.COMPLETED)

    for run in new:
        assert run.result().results["last"].output == ["new", ["new", "new", "yes"]]
    for run in old:
        results = run.result().results
        moved = "approval" in results
        asked, done = results["approval" if moved else "ask"].output, results["last"].output
        # The effect happened once, in the version that asked; what a run has not got, it ran nowhere.
        assert (results["first"].output, asked[1:]) == ("old first", ["old", "yes"])
        assert done == ["new" if moved else "old", asked]


def test_without_the_check_a_run_goes_on_with_code_that_is_not_its_own(site):
    """Control: a worker that does not compare the node with what it was runs it on other code."""
    site.add(slots=4, **versioned("old")).wait_ready()
    (run,) = waiting(site, 1)
    stop_all(site)
    site.add(slots=4, app="tests.chaos.no_version_check:app", **versioned("other")).wait_ready()

    answer(site, run)

    stands(run, Status.COMPLETED)
    assert run.result().results["ask"].output == ["other", "old", "yes"]


@pytest.mark.sample
def test_a_program_with_older_code_starts_the_graph_that_the_workers_have(site):
    """Its runs begin on the graph that is current; control: a worker of that code makes its graph current."""
    site.add(slots=4, **versioned("new")).wait_ready()
    older = Registry()
    older.add("versioned", versioned_graphs.versioned)
    program = Client(store=RedisStore(site.url, lease=LEASE), registry=older)
    try:
        run = program.start("versioned", 1)
        assert run.wait(SLOW).status is Status.INTERRUPTED
        answer(site, run)
        stands(run, Status.COMPLETED)
        assert "approval" in run.result().results

        current = site.client.engine.store.graphs()
        program.engine.publish(["versioned"])
        assert site.client.engine.store.graphs() != current
    finally:
        program.engine.store.close()
