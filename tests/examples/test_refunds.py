from __future__ import annotations

import pytest

from examples.refunds.graph import refunds
from runner import Status
from tests.processes import run_module


def test_a_large_refund_asks_two_desks_at_once(run_graph):
    """Both questions are open side by side, from two tools, each assigned to its own desk."""
    run = run_graph(refunds, "refund B-42")

    assert {interrupt.name: interrupt.assignees for interrupt in run.interrupts} == {
        "support": ["support"],
        "finance": ["finance"],
    }


@pytest.mark.full
@pytest.mark.parametrize("refusing", ["support", "finance"])
def test_one_refusal_is_enough(run_graph, refusing):
    """Whoever refuses, no money goes and the other branch writes the letter."""
    run = run_graph(refunds, "refund B-42")
    for desk in ("support", "finance"):
        run.answer({"agree": desk != refusing}, desk, responder=desk)

    assert run.status is Status.COMPLETED
    assert run.result.execution_order == ["clerk", "apology"]
    assert run.result.results["letter"].status is Status.SKIPPED
    assert run.result.results["clerk"].result.state.get("transfer") is None
    assert run.result.results["apology"].output.endswith(f"was refused by {refusing}.")


@pytest.mark.slow
def test_the_refunds_example_runs_on_a_real_worker():
    """The program shows a small, an agreed and a refused refund, and ends."""
    done = run_module("examples.refunds")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("its answer is accepted") == 4
    assert [line.split()[-1] for line in done.stdout.splitlines() if "Dear" in line] == [
        "35.00.",
        "480.00.",
        "finance.",
    ]
