"""A graph is functions and the edges between them. Calling it runs it, here and now."""

from __future__ import annotations

from runner import GraphBuilder, Status


def look_up(ctx):
    return {"order": ctx.task["order"], "amount": 120}


def letter(ctx):
    return (
        f"Your order {ctx.inputs['look_up']['order']} costs {ctx.inputs['look_up']['amount']}."
    )


def build():
    builder = GraphBuilder()
    builder.add_node(look_up)
    builder.add_node(letter)
    builder.add_edge("look_up", "letter")
    return builder.build()


def test_what_a_node_returns_goes_to_the_nodes_behind_it():
    """A node is a function of its context: the task, and what the nodes before it returned."""
    result = build()({"order": 7})

    assert result.status is Status.COMPLETED
    assert result.results["letter"].output == "Your order 7 costs 120."


def test_a_result_tells_what_happened():
    """A result has each node's own result, and the order in which they completed."""
    result = build()({"order": 7})

    assert result.execution_order == ["look_up", "letter"]
    assert result.results["look_up"].result == {"order": 7, "amount": 120}
    assert result.results["look_up"].attempts == 1


def test_an_error_is_part_of_the_result():
    """A node that raises has failed. The call doesn't raise: the exception is the node's result."""
    result = build()({"no": "order"})

    assert result.status is Status.FAILED
    assert repr(result.results["look_up"].result) == "KeyError('order')"
