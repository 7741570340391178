"""Limits by a value of the input: what a node's run says where the value can't be used."""

from __future__ import annotations

import pydantic
import pytest

from runner import GraphBuilder, Limit, Status
from runner.errors import DefinitionError


def limited(limit: Limit):
    """Build a graph of one limited node; return what it ran on, too."""
    ran: list[object] = []
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ran.append(ctx.task), "work", limits=[limit])
    return builder.build(), ran


PER_CUSTOMER = Limit("customers", concurrency=1, by="input:customer.id")


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ("text", "'customer' is missing"),
        ({"customer": {"name": "x"}}, "'customer.id' is missing"),
        ({"customer": {"id": True}}, "the value is neither text nor a number"),
        ({"customer": {"id": {"x": 1}}}, "the value is neither text nor a number"),
        ({"customer": {"id": "ä" * 101}}, "the value has 202 bytes, over 200"),
    ],
)
def test_a_value_that_can_not_be_used_fails_the_node(task, problem):
    """The node does not run, is not tried again, and its error names the limit and the path."""
    graph, ran = limited(PER_CUSTOMER)
    result = graph(task)

    assert (result.status, result.results["work"].attempts, ran) == (Status.FAILED, 1, [])
    assert "'customers' counts by 'customer.id' of the input" in str(
        result.results["work"].result
    )
    assert problem in str(result.results["work"].result)


class Customer(pydantic.BaseModel):
    """A part of a task."""

    id: int


@pytest.mark.parametrize("number", ["x" * 200, 7, 7.5, ""])
def test_a_value_that_can_be_used_lets_the_node_run(number):
    """A text of at most 200 bytes or a number is a key."""
    graph, ran = limited(PER_CUSTOMER)

    assert graph({"customer": {"id": number}}).status is Status.COMPLETED
    assert ran == [{"customer": {"id": number}}]


def test_a_field_of_a_model_is_a_value():
    """A path leads through the fields of a pydantic model as through those of a mapping."""
    graph, ran = limited(PER_CUSTOMER)

    assert graph({"customer": Customer(id=7)}).status is Status.COMPLETED
    assert ran == [{"customer": Customer(id=7)}]


@pytest.mark.parametrize("by", ["input:", "input:a..b", "input:.a", "input", 5])
def test_a_limit_by_no_path_is_refused(by):
    """A path is names with dots between them."""
    with pytest.raises(DefinitionError, match="input:<path>"):
        Limit("x", concurrency=1, by=by)
