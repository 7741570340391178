"""A map runs one node for each item of a list that is known only when the run gets there."""

from __future__ import annotations

from runner import GraphBuilder, Status


def invoices(ctx):
    return [{"number": number, "amount": 40 * number} for number in range(1, ctx.task + 1)]


def check(ctx):
    """Runs once for each invoice: `.task` is the invoice."""
    if ctx.task["amount"] > 100:
        return ctx.interrupt("pay so much?", reason=ctx.task)
    return "paid"


def build(work=check, **options):
    builder = GraphBuilder()
    builder.add_node(invoices)
    builder.add_map(work, "check", **options)
    builder.add_node(lambda ctx: ctx.inputs["check"], "report")
    builder.add_edge("invoices", "check")
    builder.add_edge("check", "report")
    return builder.build()


def test_results_are_in_the_order_of_the_list():
    """However items overtake each other, the map's output is a list in the order of the items."""
    result = build(lambda ctx: ctx.task["number"])(5)

    assert result.results["report"].output == [1, 2, 3, 4, 5]
    assert result.execution_order == ["invoices", "check", "report"]


def test_one_item_waits_while_the_others_go_on():
    """An item that asks a person holds up neither the other items nor a worker."""
    graph = build(concurrency=2)
    result = graph(4)

    assert result.status is Status.INTERRUPTED
    assert result.results["check[0]"].output == "paid"
    assert [question.node_id for question in result.interrupts] == ["check[2]", "check[3]"]

    answers = [
        {"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}}
        for interrupt in result.interrupts
    ]
    assert graph(answers).results["report"].output == ["paid", "paid", "yes", "yes"]


def picky(ctx):
    if ctx.task["number"] == 2:
        raise ValueError("no such customer")
    return ctx.task["number"]


def test_a_failed_item_fails_the_map():
    """The error says which item it was; with on_error="continue" the others go on."""
    result = build(picky)(3)

    assert result.status is Status.FAILED
    assert "check[1]: ValueError: no such customer" in str(result.results["check"].error)

    result = build(picky, on_error="continue")(3)

    assert result.status is Status.COMPLETED
    assert result.results["check"].output == [1, None, 3]
    assert str(result.results["check[1]"].error) == "ValueError: no such customer"
