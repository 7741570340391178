"""A node asks a person and its branch waits. The rest goes on. The answer resumes it."""

from __future__ import annotations

from runner import GraphBuilder, Status


def amount(ctx):
    return 250


def approve(ctx):
    answer = ctx.interrupt("approve refund?", reason={"amount": ctx.inputs["amount"]})
    return "paid" if answer == "yes" else "refused"


def notify(ctx):
    return "the customer was told that we look into it"


def close(ctx):
    return ctx.inputs["approve"]


def refund():
    builder = GraphBuilder()
    for function in (amount, approve, notify, close):
        builder.add_node(function)
    for source, target in (
        ("amount", "approve"),
        ("amount", "notify"),
        ("approve", "close"),
        ("notify", "close"),
    ):
        builder.add_edge(source, target)
    return builder.build()


def reply(question, response):
    return [{"interruptResponse": {"interruptId": question.id, "response": response}}]


def test_a_question_interrupts_the_run():
    """When only people can go on, the call returns: the result lists what is asked, with the reason."""
    result = refund()("order 7")

    assert result.status is Status.INTERRUPTED
    assert [(question.name, question.reason) for question in result.interrupts] == [
        ("approve refund?", {"amount": 250})
    ]


def test_other_branches_go_on_to_their_ends():
    """Only the branch that asked waits."""
    result = refund()("order 7")

    assert result.execution_order == ["amount", "notify"]


def test_the_answer_resumes_the_node():
    """The node runs again from its top, and this time `interrupt` returns the answer."""
    graph = refund()
    question = graph("order 7").interrupts[0]
    result = graph(reply(question, "yes"))

    assert result.status is Status.COMPLETED
    assert result.results["close"].output == "paid"


def test_no_is_an_answer():
    """What an answer means is the node's business; any JSON value but null is one."""
    graph = refund()
    question = graph("order 7").interrupts[0]

    assert graph(reply(question, False)).results["close"].output == "refused"
