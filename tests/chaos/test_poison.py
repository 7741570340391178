"""A node that kills every process that runs it ends in the dead letters, and takes nobody with it."""

from __future__ import annotations

import pytest

from runner import Status
from tests.chaos.poison import POISONS
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.poison"}
LIVES = 5
LONG = 150


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Give a worker of children, one of threads, and one that counts no lost leases."""
    sites = {name: next(databases) for name in ("prefork", "threads", "no_budget")}
    app = "tests.chaos.fork_app:app"
    fork_server.add(sites["prefork"], "prefork", app=app, pool="prefork", slots=5, **GRAPHS)
    fork_server.add(sites["threads"], "threads", app=app, slots=20, **GRAPHS)
    app = "tests.chaos.no_crash_budget:app"
    fork_server.add(sites["no_budget"], "no_budget", app=app, pool="prefork", slots=2, **GRAPHS)
    with fork_server.running(*sites.values()):
        yield sites


@pytest.fixture(scope="module")
def story(sites, chosen):
    """Begin everything at once: poison and innocents on both pools, and the control."""
    kinds = chosen("kind", POISONS)
    story = {
        "prefork": {
            kind: sites["prefork"].client.start(f"poison_{kind}", "go") for kind in kinds
        },
        "threads": [sites["threads"].client.start("poison_abort", "go")],
        "no_budget": [sites["no_budget"].client.start("poison_abort", "go")],
        "innocent": [sites["prefork"].client.start("poison_innocent", "go")],
        "beside": [sites["threads"].client.start("poison_innocent", "go") for _ in range(3)],
    }
    for run in story["innocent"]:
        wait_until(
            lambda run=run: sites["prefork"].starts(run), "the innocent runs", seconds=LONG
        )
    return story


def check_dead(site, run) -> None:
    """The node has failed after all its lives, each start had the same key, and there is a letter."""
    result = run.wait(LONG)
    assert result.status is Status.FAILED
    assert "died five times in a row" in str(result.results["a"].result)
    starts = site.starts(run)
    assert [start[1] for start in starts] == [str(life) for life in range(1, LIVES + 1)]
    assert len({start[2] for start in starts}) == 1
    letters = [fields for _, fields in site.redis.xrange("runner:{p00}:dead")]
    assert [letter[b"node"] for letter in letters if letter[b"run_id"].decode() == run.id] == [
        b"a"
    ]


@pytest.mark.parametrize(
    "kind", [pytest.param("abort", marks=pytest.mark.sample), "segfault", "greedy"]
)
def test_poison_in_a_child_ends_in_the_dead_letters(sites, story, kind):
    """Whatever kills the child, the node fails after five lost leases, counted when it was claimed."""
    check_dead(sites["prefork"], story["prefork"][kind])


def test_the_others_of_a_prefork_worker_notice_nothing(sites, story):
    """A child takes one node with it: others run on, and others begin."""
    site, (run,) = sites["prefork"], story["innocent"]

    assert site.client.start("chain", "go").wait(LONG).status is Status.COMPLETED
    site.open_gate(run)
    assert run.wait(LONG).results["a"].attempts == 1
    assert len(site.workers[0].pids) == 1


def open_gates(site, story) -> None:
    """Let the innocents end once they are on their last life: one of them may come before the poison."""
    (run,) = story["threads"]
    wait_until(lambda: len(site.starts(run)) >= LIVES - 1, "one life is left", seconds=LONG)
    for beside in story["beside"]:
        site.open_gate(beside)


def test_poison_in_a_thread_ends_in_the_dead_letters(sites, story):
    """With threads the worker itself dies, another one is started, and it is the same."""
    site, (run,) = sites["threads"], story["threads"]
    open_gates(site, story)

    check_dead(site, run)
    assert len(sites["threads"].workers[0].pids) == 1 + LIVES


def test_the_others_of_a_worker_of_threads_survive(sites, story):
    """Nodes that died with the poison each time are not taken for poison: they end as they should."""
    site = sites["threads"]
    open_gates(site, story)

    results = [run.wait(LONG) for run in story["beside"]]

    assert {result.status for result in results} == {Status.COMPLETED}
    assert max(result.results["a"].attempts for result in results) >= LIVES - 1
    assert site.client.start("chain", "go").wait(LONG).status is Status.COMPLETED


@pytest.mark.sample
def test_without_the_count_poison_kills_for_ever(sites, story):
    """Control: where lost leases are not counted the node is run again and again."""
    site, (run,) = sites["no_budget"], story["no_budget"]

    wait_until(lambda: len(site.starts(run)) > LIVES, "it is started once more", seconds=LONG)

    assert run.status is Status.EXECUTING
