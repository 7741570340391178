from __future__ import annotations

import pytest

from examples.refunds.graph import refunds
from runner import Status
from runner.errors import ResponseError
from tests.processes import run_module


def test_a_small_refund_asks_nobody(run_graph):
    """Up to the limit the clerk pays at once."""
    run = run_graph(refunds, "refund A-17")

    assert run.status is Status.COMPLETED
    assert run.result.execution_order == ["clerk", "letter"]
    assert run.result.results["letter"].output.endswith("was paid 35.00.")


def test_a_large_refund_asks_two_desks_at_once(run_graph):
    """Both questions are open side by side, from two tools, each assigned to its own desk."""
    run = run_graph(refunds, "refund B-42")

    assert {interrupt.name: interrupt.assignees for interrupt in run.interrupts} == {
        "support": ["support"],
        "finance": ["finance"],
    }


def test_one_answer_of_two_pays_nothing(run_graph):
    """The run goes on waiting for the other desk; with both, it is paid."""
    run = run_graph(refunds, "refund B-42")
    assert (
        run.answer({"agree": True}, "finance", responder="finance").status is Status.INTERRUPTED
    )
    assert [interrupt.name for interrupt in run.interrupts] == ["support"]

    done = run.answer({"agree": True}, "support", responder="support")
    assert done.execution_order == ["clerk", "letter"]


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


def test_an_answer_must_be_a_verdict(run_graph):
    """A word that is no verdict is refused, and the question stays open."""
    run = run_graph(refunds, "refund B-42")

    with pytest.raises(ResponseError, match="rejected"):
        run.answer("fine with me", "support", responder="support")
    assert len(run.interrupts) == 2


def test_one_desk_can_not_answer_for_the_other(run_graph):
    """Two agreements are of two people: a question takes the answer of its own desk alone."""
    run = run_graph(refunds, "refund B-42")

    with pytest.raises(ResponseError, match="forbidden"):
        run.answer({"agree": True}, "finance", responder="support")
    assert len(run.interrupts) == 2


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
