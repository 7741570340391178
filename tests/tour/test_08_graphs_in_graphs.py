"""A graph may be a node of another. Its questions are those of the whole."""

from __future__ import annotations

from runner import GraphBuilder


def approval():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.interrupt("the clerk?"), "clerk")
    builder.add_node(lambda ctx: ctx.interrupt("the boss?"), "boss")
    builder.add_edge("clerk", "boss")
    return builder.build()


def build():
    builder = GraphBuilder()
    builder.add_node(approval(), "approval")
    builder.add_node(lambda ctx: ctx.inputs["approval"], "pay")
    builder.add_edge("approval", "pay")
    return builder.build()


def test_questions_inside_are_asked_outside():
    """Whoever watches the outer run sees what the inner one asks, one question after the other."""
    graph, asked = build(), []
    result = graph("order 7")
    while result.interrupts:
        asked.append(result.interrupts[0].name)
        question = result.interrupts[0]
        result = graph(
            [{"interruptResponse": {"interruptId": question.id, "response": "fine"}}]
        )

    assert asked == ["the clerk?", "the boss?"]
    assert result.results["pay"].output == "fine"


def test_the_inner_result_is_the_nodes_result():
    """The output of the last inner node is the node's output; the whole inner result is its result."""
    inner = GraphBuilder()
    inner.add_node(lambda ctx: "one", "first")
    inner.add_node(lambda ctx: "two", "second")
    inner.add_edge("first", "second")
    outer = GraphBuilder()
    outer.add_node(inner.build(), "inside")
    node = outer.build()("task").results["inside"]

    assert node.output == "two"
    assert node.result.execution_order == ["first", "second"]
