"""What a step costs the server in a run of many: as much at the end as at the beginning."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.definition.model import MapSpec
from runner.store.requests import EmitEvent, ExpandMap, SaveCheckpoint
from tests.contract.store.manual_worker import ManualWorker, saved, shape

STEPS, COUNTED = 60, 10

QUESTION = 450
"""Bytes of a question that was answered, in the claims and checks of one that follows."""


def loop_turns(worker: ManualWorker) -> Callable[[int], object]:
    """Two nodes that call each other."""
    run_id = worker.start("a>b b>a b>c")

    def step(number):
        worker.visit(run_id, "a", number)
        worker.visit(run_id, "b", number, edges="10")

    return step


def questions(worker: ManualWorker) -> Callable[[int], object]:
    """A visit that asks, is answered and asks again."""
    run_id = worker.start("a")
    return lambda number: worker.answer(*worker.park(run_id, "a", f"q{number}"))


def agent_turns(worker: ManualWorker) -> Callable[[int], object]:
    """An agent that adds a message to its conversation."""
    _, token = worker.begin("a")
    return lambda number: worker.store.do(
        SaveCheckpoint(token, saved(number, "message", keep=number - 1))
    )


def items(worker: ManualWorker) -> Callable[[int], object]:
    """A map of many items."""
    run_id, token = worker.begin(shape("m>z", maps={"m": MapSpec("function")}), node="m")
    worker.store.do(ExpandMap(token, ["item"] * 3 * STEPS))
    return lambda number: worker.run(run_id, f"m[{100 + number}]")


def events(worker: ManualWorker) -> Callable[[int], object]:
    """A node that reports how far it is."""
    run_id = worker.start("a")
    return lambda _: worker.store.do(EmitEvent(run_id, "progress", "a", 1, {"fraction": 0.5}))


def readers(worker: ManualWorker) -> Callable[[int], object]:
    """A node that reads all events of its run."""
    run_id = worker.start("a")

    def step(_):
        worker.store.do(EmitEvent(run_id, "progress", "a", 1, {"fraction": 0.5}))
        worker.store.events(run_id)

    return step


def costs(client, step) -> tuple[tuple[int, int], tuple[int, int]]:
    """Do many steps; return the calls and the bytes of some early ones, and of the last ones."""
    counted = []
    for number in range(1, STEPS + 1):
        if number in {COUNTED + 1, STEPS - COUNTED + 1}:
            client.config_resetstat()
        step(number)
        if number in {2 * COUNTED, STEPS}:
            stats, commands = client.info("stats"), client.info("commandstats").values()
            network = stats["total_net_input_bytes"] + stats["total_net_output_bytes"]
            counted.append((sum(command["calls"] for command in commands), network))
    first, last = counted
    return first, last


@pytest.mark.parametrize("kind", [loop_turns, agent_turns, items, events])
def test_a_step_costs_the_same_in_a_long_run(store, client, clock, kind):
    """The last turns, items or events of a run take as many calls and bytes as the first ones."""
    first, last = costs(client, kind(ManualWorker(store, clock)))

    assert last[0] <= first[0] * 1.02
    assert last[1] <= first[1] * 1.05


def test_a_visit_reads_what_it_has_asked_before(store, client, clock):
    """Its code runs from the top: a question takes as many calls, and some bytes for each before it."""
    first, last = costs(client, questions(ManualWorker(store, clock)))

    assert last[0] <= first[0] * 1.02
    assert last[1] - first[1] <= COUNTED * (STEPS - 2 * COUNTED) * QUESTION


def test_a_step_that_reads_its_run_would_be_seen(store, client, clock):
    """Control: in a run that is read in each step, the last ones cost more."""
    first, last = costs(client, readers(ManualWorker(store, clock)))

    assert last[1] > first[1] * 1.5
