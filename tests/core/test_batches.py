"""Graphs in batches: what the builder refuses, what conditions see, how time and failures count."""

from __future__ import annotations

import pytest

from runner import GraphBuilder, Status
from runner.errors import DefinitionError
from runner.graph import BATCH, topology
from runner.hooks import AfterGraphEvent, BeforeGraphEvent, BeforeNodeCallEvent
from tests.core.graphs import Bench, answer_all, answers, ident


def batched(edges: str, nodes=None, conditions=None, entries: str = "") -> GraphBuilder:
    """Build from edges "ab bc"; nodes tell their id unless they are given."""
    builder = GraphBuilder(compat="strands")
    for name in dict.fromkeys("".join(edges.split())):
        builder.add_node((nodes or {}).get(name, ident), name)
    for pair in edges.split():
        if len(pair) == 2:
            builder.add_edge(pair[0], pair[1], (conditions or {}).get(pair))
    for name in entries:
        builder.set_entry_point(name)
    return builder


def explode(ctx):
    raise ValueError("boom")


def test_only_strands_is_known():
    """Another word for `compat` is refused when the builder is made."""
    with pytest.raises(DefinitionError, match="compat is 'strands'"):
        GraphBuilder(compat="langgraph")


def test_what_a_batch_decides_can_t_be_declared():
    """Joins and back edges mean nothing there, and are refused instead of ignored."""
    builder = GraphBuilder(compat="strands")
    builder.add_node(ident, "a")
    with pytest.raises(DefinitionError, match="not a join"):
        builder.add_node(ident, "b", join="any")
    with pytest.raises(DefinitionError, match="no loops"):
        builder.add_edge("a", "a", back=True)


def test_a_node_that_nothing_reaches_never_runs():
    """As in Strands it may be there (G5)."""
    result = batched("ab c", entries="a").build()("go")

    assert (result.status, result.execution_order) == (Status.COMPLETED, ["a", "b"])


def test_the_shape_knows_batches_and_others_are_what_they_were():
    """A graph without `compat` has the fingerprint that it had; with it there is another one."""
    plain, same = GraphBuilder(), batched("ab")
    plain.add_node(ident, "a")
    plain.add_node(ident, "b")
    plain.add_edge("a", "b")
    shapes = [topology(builder.build().definition) for builder in (plain, same)]

    assert [shape.batches for shape in shapes] == [False, True]
    assert shapes[0].fingerprint != shapes[1].fingerprint
    assert BATCH not in shapes[0].nodes


def test_the_time_limit_counts_work_and_no_waiting():
    """What the slowest node of each batch took is added up; days of waiting for a person are not (G30)."""
    graph = batched("ab bc", {"b": lambda ctx: ctx.interrupt("ok?")}).set_execution_timeout(60).build()
    bench = Bench(graph).start()
    bench.finish_all()
    bench.later(7 * 86_400)
    bench.answer()

    result = bench.finish()

    assert (result.status, result.execution_order) == (Status.COMPLETED, ["a", "b", "c"])


def test_a_run_that_worked_too_long_opens_no_batch():
    """It fails with the reason, between two batches; what ran is kept (G30)."""

    def slow(ctx):
        return sum(range(3_000_000))

    result = batched("ab bc", {"a": slow}).set_execution_timeout(0.001).build()("go")

    assert result.status is Status.FAILED
    assert result.reason == "execution timeout of 0.001 s reached"
    assert result.execution_order == ["a"]


def test_what_is_done_in_the_end_is_not_late():
    """The time is looked at only where another batch would begin."""
    result = batched("a").set_execution_timeout(0.000001).build()("go")

    assert result.status is Status.COMPLETED


def test_an_error_of_a_condition_tells_its_edge():
    """The run fails, and the error says which edge's condition raised it (G3)."""
    result = batched("ab", conditions={"ab": lambda state: 1 / 0}).build()("go")

    assert (result.status, result.execution_order) == (Status.FAILED, ["a"])
    error = result.results[BATCH].error
    assert error is not None
    assert "division by zero" in str(error)
    assert "'a' to 'b'" in "".join(getattr(result.results[BATCH].result, "__notes__", []))


@pytest.mark.parametrize(("policy", "order"), [("fail_fast", ["b"]), ("continue", ["b", "d"])])
def test_a_failure_ends_the_run_or_its_branch(policy, order):
    """No batch follows a failure; under `continue` only its own branch ends (G13, G24)."""
    graph = batched("ac bd", {"a": explode}, entries="ab").set_failure_policy(policy).build()
    bench = Bench(graph).start()
    bench.deliver("b")

    result = bench.finish()

    assert (result.status, result.execution_order) == (Status.FAILED, order)


def test_a_graph_inside_may_run_in_batches():
    """Its output is that of the nodes that nothing followed, as of any graph inside (G17, G38)."""
    inner = batched("xy xz zw", {"y": lambda ctx: ctx.interrupt("ok?")}).build()
    graph = batched("ab", {"a": inner, "b": lambda ctx: ctx.inputs["a"]}).build()

    first = graph("go")
    result = graph(answer_all(first, "fine"))

    assert first.status is Status.INTERRUPTED
    assert result.results["b"].output == {"y": "fine", "w": "w"}


def test_a_question_keeps_the_reason_that_it_was_asked_with():
    """A callback that runs again may reckon another reason; people see the first (G50)."""
    count = iter("123456")

    class Listener:
        def register_hooks(self, registry, **kwargs):
            for name in ("one", "two"):
                registry.add_callback(
                    BeforeNodeCallEvent,
                    lambda event, name=name: event.interrupt(name, reason=f"reason {next(count)}"),
                )

    builder = GraphBuilder(compat="strands").set_hook_providers([Listener()])
    builder.add_node(ident, "a", resume="each")
    graph = builder.build()
    first = graph("go")
    again = graph(answers((first.interrupts[1].id, "yes")))

    assert [(each.name, each.reason) for each in first.interrupts] == [
        ("one", "reason 1"),
        ("two", "reason 2"),
    ]
    assert [(each.name, each.reason) for each in again.interrupts] == [("one", "reason 1")]
    assert next(count) == "5"


def test_the_graph_s_own_events_enclose_all_batches():
    """BeforeGraphEvent comes before the first batch, AfterGraphEvent after the last, once each."""
    said = []

    class Listener:
        def register_hooks(self, registry, **kwargs):
            registry.add_callback(BeforeGraphEvent, lambda event: said.append("before"))
            registry.add_callback(AfterGraphEvent, lambda event: said.append(event.result.status))

    graph = batched("ab ba", conditions={"ba": lambda state: state.visit < 2}, entries="a")
    result = graph.set_hook_providers([Listener()]).set_max_node_executions(4).build()("go")

    assert result.execution_order == ["a", "b", "a", "b"]
    assert said == ["before", Status.COMPLETED]


def test_conditions_see_the_end_of_the_whole_batch():
    """Whoever ends first, a condition has every result of its batch, and the order so far (G10)."""
    seen = []

    def look(state):
        seen.append((sorted(state.results), sorted(state.execution_order), state.failed_nodes))
        return state.interrupted_nodes == set()

    graph = batched("sa sb ad bd", conditions={"ad": look}).build()
    for first in "ab":
        bench = Bench(graph).start()
        bench.deliver("s")
        bench.deliver(BATCH)
        bench.deliver(first)
        assert bench.finish().execution_order[-1] == "d"

    assert seen == [(["a", "b", "s"], ["a", "b", "s"], set())] * 2
