"""A hook of any event asks a person, on every executor, and its run goes on after a crash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.records.run import FINAL, Status
from tests.celery.hook_graphs import EVENTS, build
from tests.graphs import answers
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.hook_graphs"}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hook-events.md"


def test_the_page_lists_each_event_that_may_ask():
    """The tables of the page have the events that are tested here."""
    assert re.findall(r"^\| `(\w+Event)`", PAGE.read_text(), re.MULTILINE) == list(EVENTS)


def in_process(name):
    """Run a graph here; return the number of its questions and what was called."""
    calls, asked = [], 0
    graph = build(name, calls.append)
    result = graph("go")
    while result.interrupts:
        asked += len(result.interrupts)
        result = graph(answers(*((question.id, True) for question in result.interrupts)))
    assert (result.status, result.results["a"].output) == (Status.COMPLETED, "end")
    return asked, calls


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "async"])
def test_an_event_asks_on_workers_and_over_a_crash(empty_site, pool):
    """The worker that asked is killed, another one goes on; control: without it no run does."""
    slots = 1 if pool == "prefork" else 4
    first = empty_site.add(pool, slots=slots, **GRAPHS)
    first.wait_ready()
    runs = {name: empty_site.client.start(name, "go") for name in EVENTS}
    asked = {name: set() for name in EVENTS}

    def answered(name, run):
        for question in run.interrupts():
            asked[name].add(question.id)
            empty_site.client.respond(question.id, True)
        return run.result().status in FINAL

    for name, run in runs.items():
        assert run.wait(60).status is Status.INTERRUPTED, name
    first.kill()
    wait_until(lambda: not first.alive, "the worker is dead")
    assert [name for name, run in runs.items() if answered(name, run)] == []

    empty_site.add(pool, slots=slots, **GRAPHS).wait_ready()
    wait_until(
        lambda: all([answered(name, run) for name, run in runs.items()]),  # noqa: C419 - answer all
        "all have ended",
    )
    for name, run in runs.items():
        result = run.result()
        assert (result.status, result.results["a"].output) == (Status.COMPLETED, "end"), name
        calls = [word.decode() for word in empty_site.redis.lrange(f"calls:{name}", 0, -1)]
        assert (len(asked[name]), calls) == in_process(name), name
