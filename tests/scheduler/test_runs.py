from __future__ import annotations

import pytest

from runner import GraphBuilder, RetryPolicy, Status
from runner.errors import DefinitionError, NodeFailed
from tests.graphs import Bench, answer_all, ident, single, wired


def ask(ctx):
    return ctx.interrupt("ok?")


def boom(ctx):
    raise ValueError("boom")


def inputs(ctx):
    return dict(ctx.inputs)


def never(state):
    return False


def statuses(result) -> dict[str, str]:
    return {node: str(node_result.status) for node, node_result in result.results.items()}


# -- joins and dead paths ----------------------------------------------------------------------------


# -- branches that wait --------------------------------------------------------------------------------


def test_an_answer_is_taken_while_others_run():
    """An answer that comes while other nodes run is applied at once, and the run never counts as waiting."""
    bench = Bench(wired({"a": ask, "b": ident}).build()).start()
    bench.deliver("a")
    assert bench.result().status is Status.EXECUTING
    bench.answer()
    bench.deliver("a")

    assert bench.finish().execution_order == ["a", "b"]


# -- loops ---------------------------------------------------------------------------------------------


def test_edges_from_outside_are_remembered_in_every_round():
    """A node fed from inside and outside a loop has the outside output in each of its visits."""
    nodes = {"given": lambda ctx: "outside", "head": lambda ctx: ctx.visit, "both": inputs}
    builder = wired(
        nodes, "given both", "head both", ("both head", lambda state: state.visit < 2)
    )
    result = builder.set_entry_point("head").set_entry_point("given").build()("task")

    assert result.results["both"].output == {"given": "outside", "head": 2}


# -- failures -----------------------------------------------------------------------------------------


def test_a_condition_that_raises_fails_its_source():
    """An error in a condition fails the node it follows, naming it, and its result is not used."""
    result = wired(
        {"a": ident, "b": ident}, ("a b", lambda state: state.results["nobody"])
    ).build()("task")

    assert statuses(result) == {"a": "failed"}
    assert isinstance(result.results["a"].result, KeyError)
    where = "raised by the condition of the edge from 'a' to 'b'"
    assert result.results["a"].result.__notes__ == [where]
    assert (
        str(result.results["a"].error)
        == f"KeyError: \"'nobody' is not a node of this graph\" ({where})"
    )


# -- retries -------------------------------------------------------------------------------------------


def test_a_node_that_is_tried_in_vain():
    """The last attempt's error is the node's result."""

    def flaky(ctx):
        raise ValueError(f"attempt {ctx.attempt}")

    result = single(flaky, retry=RetryPolicy(2, backoff=0.001))("task").results["a"]

    assert (result.status, str(result.result), result.attempts) == (
        Status.FAILED,
        "attempt 2",
        2,
    )


def test_who_died_with_a_poisonous_node_each_time_outlives_it():
    """On their last life such nodes run one by one in a process, so that only the one that kills is lost."""

    def poison(ctx):
        raise KeyboardInterrupt

    def beside(ctx):
        said = [bench.deliver("poison")]
        if ctx.attempt == 5:
            said += [bench.deliver("patient"), bench.engine.deliver("0nobody", "a", 1, 9).word]
        return said

    builder = GraphBuilder().set_failure_policy("continue")
    builder.add_node(poison, "poison")
    builder.add_node(beside, "beside")
    builder.add_node(boom, "patient", retry=RetryPolicy(max_attempts=9, backoff=1, jitter=0))
    bench = Bench(builder.build()).start()
    for _ in range(4):
        assert bench.deliver("patient") == "retrying"
        with pytest.raises(KeyboardInterrupt):
            bench.deliver("beside")
        bench.later(31)

    assert bench.deliver("beside") == "settled"
    bench.later(31)
    with pytest.raises(KeyboardInterrupt):
        bench.deliver("poison")
    bench.later(31)

    result = bench.result()
    assert result.results["beside"].output == ["crowded", "retrying", "unknown"]
    assert "died five times in a row" in str(result.results["poison"].error)


# -- nested graphs ------------------------------------------------------------------------------------


def nested(*inner_nodes, policy="fail_fast", outer_nodes=None, edges=("in after",), **options):
    inner = wired(dict(inner_nodes), **options).set_failure_policy(policy).build()
    return wired({"in": inner, "after": inputs, **(outer_nodes or {})}, *edges).build()


def test_a_graph_with_several_ends_has_all_their_outputs():
    """The output of an inner graph with several last nodes is theirs, by node id."""
    assert nested(("x", ident), ("y", ident))("task").results["after"].output == {
        "in": {"x": "x", "y": "y"}
    }


def test_an_inner_graph_gets_data():
    """The task of an inner run is the output before it, several by node id, or what `task` returns."""

    def double(order: int) -> int:
        return order * 2

    def seen():
        return wired({"x": lambda ctx: ctx.task}).build()

    builder = wired(
        {"a": lambda ctx: 7, "b": lambda ctx: {"n": 1}, "c": wired({"x": double}).build()},
        "a c",
    )
    builder.add_node(seen(), "one")
    builder.add_node(seen(), "both")
    builder.add_node(seen(), "other", task=lambda ctx: [ctx.task, ctx.inputs["a"]])
    for source, target in (("b", "one"), ("a", "both"), ("b", "both"), ("a", "other")):
        builder.add_edge(source, target)
    results = builder.build()("go").results

    assert results["c"].output == 14
    assert results["one"].output == {"n": 1}
    assert results["both"].output == {"a": 7, "b": {"n": 1}}
    assert results["other"].output == ["go", 7]


def test_the_task_of_an_inner_graph_may_fail_or_be_refused():
    """An error of the function fails the node; only graphs take such a function."""
    builder = wired({"a": ident})
    builder.add_node(wired({"x": ident}).build(), "in", task=boom)

    assert builder.build()("go").results["in"].status is Status.FAILED
    with pytest.raises(DefinitionError, match="`task` is for nested graphs"):
        builder.add_node(lambda ctx: 1, "b", task=ident)


def test_inner_graphs_share_the_invocation_state():
    """The invocation state given at the start is there at every depth."""
    graph = nested(("x", lambda ctx: ctx.invocation_state))

    assert graph("task", invocation_state={"n": 1}).results["after"].output == {"in": {"n": 1}}


def test_a_failure_inside_fails_the_node_outside():
    """An inner run that fails is its node's failure, with what happened inside."""
    result = nested(("x", boom), ("y", ask))("task")
    error = result.results["in"].result

    assert (result.status, statuses(result)) == (Status.FAILED, {"in": "failed"})
    assert isinstance(error, NodeFailed)
    assert "the graph inside ended as failed" in str(error)
    assert "x: ValueError: boom" in str(error)
    assert result.interrupts == []


def test_a_failed_inner_graph_is_tried_again_as_a_whole():
    """A retry of a graph's node is a new inner run; what the first one did is its own."""
    tries = []

    def flaky(ctx):
        tries.append(ctx.run_id)
        if len(tries) == 1:
            raise ValueError("first")
        return "second"

    inner = wired({"x": flaky}).build()
    graph = wired({"in": inner}, **{"in": {"retry": RetryPolicy(2, backoff=0.001)}}).build()

    assert graph("task").results["in"].output == "second"
    assert len(set(tries)) == 2


def test_an_inner_graph_in_a_loop():
    """Each visit of a graph's node is a run of its own, with questions of its own."""
    inner = wired({"x": ask}).build()
    graph = wired(
        {"in": inner}, ("in in", lambda state: state.results["in"].output == "again")
    ).build()
    first = graph("task")
    second = graph(answer_all(first, "again"))

    assert second.interrupts[0].run_id != first.interrupts[0].run_id
    assert graph(answer_all(second, "done")).results["in"].output == "done"


# -- starting ------------------------------------------------------------------------------------------


def test_a_store_that_was_emptied_learns_the_graph_again():
    """A process that outlives the store's memory of its graphs starts runs as before, those inside too."""
    bench = Bench(
        wired({"in": wired({"x": ident}).build(), "b": ident}, "b in").build()
    ).start()
    bench.finish()
    bench.store._database.shapes.clear()
    bench.start()
    bench.deliver()
    for fingerprint in [
        f for f, shape in bench.store._database.shapes.items() if shape.graph_id != "bench"
    ]:
        del bench.store._database.shapes[fingerprint]

    assert bench.finish().execution_order == ["b", "in"]
