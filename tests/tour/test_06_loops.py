"""An edge that leads back repeats what lies between. Each time round is a new visit."""

from __future__ import annotations

from runner import GraphBuilder


def write(ctx):
    return f"draft {ctx.visit}"


def review(ctx):
    return "good" if ctx.inputs["write"] == "draft 3" else "again"


def says(word):
    return lambda state: state.results["review"].output == word


def build():
    builder = GraphBuilder()
    builder.add_node(write)
    builder.add_node(review)
    builder.add_node(lambda ctx: "published", "publish")
    builder.add_edge("write", "review")
    builder.add_edge("review", "write", says("again"))
    builder.add_edge("review", "publish", says("good"))
    return builder.set_entry_point("write")


def test_a_loop_runs_until_a_condition_ends_it():
    """A draft is written again until the review says that it is good."""
    result = build().build()("task")

    assert result.execution_order == ["write", "review"] * 3 + ["publish"]
    assert result.results["write"].visit == 3


def test_a_loop_has_a_brake():
    """A limit on executions fails a run that would go round for ever, and says so."""
    result = build().set_max_node_executions(4).build()("task")

    assert result.status == "failed"
    assert result.reason == 'max_node_executions (4) reached before "write"'


def test_every_visit_asks_its_own_question():
    """An answer holds for the visit that asked; the next one asks anew."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.interrupt("another round?"), "ask")
    builder.add_edge("ask", "ask", lambda state: state.results["ask"].output == "yes")
    graph = builder.build()

    result = graph("task")
    for response in ("yes", "yes", "no"):
        question = result.interrupts[0]
        result = graph(
            [{"interruptResponse": {"interruptId": question.id, "response": response}}]
        )

    assert result.execution_order == ["ask"] * 3
