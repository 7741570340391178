"""Maps in process: a node that runs its executor once for each item of a list."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from runner import Agent, GraphBuilder, RetryPolicy, Status
from runner.errors import DefinitionError
from runner.execution import context
from runner.hooks import AfterNodeCallEvent
from runner.records import codec
from runner.store.requests import CancelRun
from runner.testing import ScriptedModel
from tests.graphs import Bench


def mapped(work, items=None, **said):
    """Build a graph of one map; its list is the task unless `items` gives it."""
    builder = GraphBuilder()
    over = None if items is None else lambda _: items
    builder.add_map(work, "m", over=over, **said)
    return builder.build()


def double(ctx):
    return ctx.task * 2


def odd_fails(ctx):
    if ctx.task % 2:
        raise ValueError(f"{ctx.task} is odd")
    return ctx.task


def answers(result, response="yes"):
    return [
        {"interruptResponse": {"interruptId": interrupt.id, "response": response}}
        for interrupt in result.interrupts
    ]


@pytest.mark.parametrize("over", [None, "split"])
def test_a_map_goes_over_what_a_node_before_it_gives(over):
    """The list may be the output of an upstream node, named or the only one."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.task.split(), "split")
    builder.add_map(lambda ctx: ctx.task.upper(), "m", over=over)
    builder.add_node(lambda ctx: "".join(ctx.inputs["m"]), "join")
    builder.add_edge("split", "m")
    builder.add_edge("m", "join")

    result = builder.build()("a b c")

    assert result.results["join"].output == "ABC"
    assert result.execution_order == ["split", "m", "join"]
    assert (result.completed_nodes, result.failed_nodes) == (3, 0)


def test_a_function_may_give_the_list():
    """`over` may be a function of the map's own context."""
    result = mapped(lambda ctx: [ctx.item_index, ctx.task, ctx.inputs], ["x", "y"])("unused")

    assert result.results["m"].output == [[0, "x", {}], [1, "y", {}]]


@pytest.mark.parametrize("cancels", [True, False])
def test_a_long_list_is_not_read_to_its_end_once_its_run_is_cancelled(monkeypatch, cancels):
    """Another process cancels, which no lease of this one knows yet; control: it reads all if none does."""
    monkeypatch.setattr(context, "FRESH", 0)
    read = []

    class Rows(list):
        def __iter__(self):
            for row in super().__iter__():
                if cancels and not read:
                    bench.store.do(CancelRun(bench.run_id, "enough"))
                read.append(row)
                yield row

    bench = Bench(mapped(double, Rows(range(30_000)), concurrency=1)).start()
    word = bench.deliver("m")

    assert (word, len(read)) == (
        ("cancelled", codec.CHECKED) if cancels else ("expanded", 30_000)
    )


@pytest.mark.parametrize("items", ["abc", {"a": 1}, 7])
def test_what_is_no_list_fails_the_map(items):
    """A map that is given no list says what it got."""
    result = mapped(double, items)("x")

    assert result.status is Status.FAILED
    assert f"needs a list to go over, but got {codec.kind_of(items)}" in str(
        result.results["m"].error
    )


def late(item):
    raise TimeoutError("it came too late.")


def test_a_sentence_has_one_full_stop():
    """The error of an item may end with one of its own."""
    error = str(mapped(late)([1]).results["m"].error)

    assert "it came too late. The map stopped: 1 of 1 items failed" in error


def test_items_are_tried_again_by_the_policy():
    """An item has its own attempts; the map is not tried again for an item that used them up."""
    seen = []

    def work(ctx):
        seen.append((ctx.task, ctx.attempt))
        if ctx.task == "b" and ctx.attempt < 3:
            raise ValueError("not yet")
        return ctx.attempt

    result = mapped(work, retry=RetryPolicy(max_attempts=3, backoff=0.001, jitter=0))(
        ["a", "b"]
    )

    assert result.results["m"].output == [1, 3]
    assert sorted(seen) == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]


def test_a_map_is_not_tried_again_for_a_failed_item():
    """When an item has used up its attempts, the map fails at its own first one."""
    result = mapped(odd_fails, retry=RetryPolicy(max_attempts=2, backoff=0.001, jitter=0))([1])

    assert (result.results["m"].attempts, result.results["m[0]"].attempts) == (1, 2)


def test_a_map_of_graphs_runs_one_for_each_item():
    """The executor may be a graph, which may hold a map: each item has a child run of its own."""
    inner = GraphBuilder()
    inner.add_map(lambda ctx: ctx.task + 1, "each")
    result = mapped(inner.build())([[1, 2], [], [3]])

    assert result.status is Status.COMPLETED, result
    assert result.results["m"].output == [[2, 3], [], [4]]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"concurrency": 0}, "concurrency is a whole number above 0"),
        ({"concurrency": True}, "concurrency is a whole number above 0"),
        ({"on_error": "ignore"}, "on_error is 'fail' or 'continue'"),
        ({"over": 7}, "`over` must be the id of a node before it"),
    ],
)
def test_wrong_options_are_refused(said, message):
    """A map with an option that can't be is refused when it is added."""
    with pytest.raises(DefinitionError, match=message):
        GraphBuilder().add_map(double, "m", **said)


def test_the_node_to_go_over_must_lead_to_the_map():
    """A map over a node that has no edge to it is refused when the graph is built."""
    builder = GraphBuilder()
    builder.add_node(double, "a")
    builder.add_map(double, "m", over="a")

    with pytest.raises(DefinitionError, match="no edge leads from there"):
        builder.build()


@pytest.mark.parametrize("name", ["a[0]", "a[", "[]"])
def test_brackets_are_for_items(name):
    """A node's id has no brackets, for those name the items of maps."""
    with pytest.raises(DefinitionError, match="brackets"):
        GraphBuilder().add_node(double, name)


def test_agents_work_on_items():
    """An agent is given its item as the prompt, and each item has a conversation of its own."""
    agent = Agent(name="greeter", model=ScriptedModel(["hello"]))
    result = mapped(agent)(["Ana", "Ben"])

    assert result.results["m"].output == ["hello", "hello"]
    said = [result.results[f"m[{index}]"].result.message["content"] for index in range(2)]
    assert said == [[{"text": "hello"}]] * 2


class Invoice(BaseModel):
    number: int


def test_functions_with_types_work_on_items():
    """A function that declares its input gets its item as that type; models in the list stay models."""

    def number(invoice: Invoice) -> int:
        return invoice.number

    result = mapped(number, [Invoice(number=7), Invoice(number=8)])("x")

    assert result.results["m"].output == [7, 8]


def test_hooks_see_items_and_the_map():
    """The events around nodes fire for each item, by its id, and for the map."""
    seen = []

    class Watch:
        def register_hooks(self, registry, **_):
            registry.add_callback(
                AfterNodeCallEvent, lambda event: seen.append((event.node_id, event.result))
            )

    builder = GraphBuilder()
    builder.add_map(double, "m")
    builder.set_hook_providers([Watch()]).build()([1, 2])

    assert sorted(seen, key=str) == [("m", [2, 4]), ("m[0]", 2), ("m[1]", 4)]


def test_a_question_of_the_function_that_gives_the_list():
    """A person may be asked what to go over."""
    builder = GraphBuilder()
    builder.add_map(double, "m", over=lambda ctx: [ctx.interrupt("how much?")])
    graph = builder.build()

    assert graph(answers(graph("x"), 21)).results["m"].output == [42]
