from __future__ import annotations

import pytest

from examples.orders.graph import FILE, orders
from runner import Status
from tests.processes import run_module


def test_one_row_waits_while_the_others_end(run_graph):
    """The strange row asks a person; every other row of the file has its result."""
    run = run_graph(orders, str(FILE))

    assert run.status is Status.INTERRUPTED
    assert [interrupt.node_id for interrupt in run.interrupts] == ["check[2]"]
    assert run.interrupts[0].reason["quantity"] == "900"
    ended = [
        name for name, node in run.result.results.items() if node.status is Status.COMPLETED
    ]
    assert sorted(ended) == ["check[0]", "check[1]", "check[3]", "check[4]", "check[5]", "read"]


def test_the_bill_is_in_the_order_of_the_file(run_graph):
    """The row that came last by days is billed in its place."""
    bill = run_graph(orders, str(FILE)).answer({"quantity": 9}).results["bill"].output

    assert list(bill["customers"]) == [
        "Ada",
        "Grace",
        "Linus",
        "Barbara",
        "Edsger",
        "Katherine",
    ]
    assert bill["total"] == 105.3


def test_a_row_can_be_dropped(run_graph):
    """Quantity 0 leaves the order out; more than the most is no answer."""
    bill = run_graph(orders, str(FILE)).answer({"quantity": 0}).results["bill"].output

    assert "Linus" not in bill["customers"]


@pytest.mark.slow
def test_the_orders_example_runs_on_a_real_worker():
    """The program shows the rows that ended, the question of one, and the bill."""
    done = run_module("examples.orders")

    assert done.returncode == 0, done.stderr
    assert "checked: check[0], check[1], check[3], check[4], check[5]" in done.stdout
    assert "'total': 105.3" in done.stdout
