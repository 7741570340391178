"""A question may say what an answer looks like. A bad one is refused at the door, and the question stays."""

from __future__ import annotations

import pydantic
import pytest

from runner import GraphBuilder
from runner.errors import ResponseError


class Decision(pydantic.BaseModel):
    approve: bool
    note: str = ""


def review(ctx):
    decision = ctx.interrupt("publish?", response_schema=Decision)
    return decision.note if decision.approve else "kept back"


def build():
    builder = GraphBuilder()
    builder.add_node(review)
    return builder.build()


def reply(question, response):
    return [{"interruptResponse": {"interruptId": question.id, "response": response}}]


def test_an_answer_has_the_type_that_was_asked_for():
    """The node gets an instance of the model, not a dictionary."""
    graph = build()
    question = graph("text").interrupts[0]

    assert (
        graph(reply(question, {"approve": True, "note": "well done"})).results["review"].output
        == "well done"
    )


def test_a_bad_answer_wakes_nobody():
    """An answer that does not fit is refused with the place, and a better one is still taken."""
    graph = build()
    question = graph("text").interrupts[0]

    with pytest.raises(ResponseError, match="approve"):
        graph(reply(question, {"approve": "perhaps"}))

    assert graph(reply(question, {"approve": False})).results["review"].output == "kept back"


def test_a_question_is_answered_once():
    """The first answer holds. A second one is told so."""
    builder = GraphBuilder()
    builder.add_node(review)
    builder.add_node(review, "second")
    graph = builder.build()
    first, _ = graph("text").interrupts
    graph(reply(first, {"approve": True}))

    with pytest.raises(ResponseError, match="duplicate"):
        graph(reply(first, {"approve": False}))
