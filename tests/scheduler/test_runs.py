from __future__ import annotations

import asyncio
import threading

import pytest

from runner import GraphBuilder, RetryPolicy, Status
from runner.errors import DefinitionError, NodeFailed, NotFoundError
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from tests.graphs import Bench, answer_all, answers, ident, single, wired


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


def test_a_node_waits_for_all_its_edges():
    """A node with several edges runs once, when every one has arrived, with all outputs."""
    result = wired({"a": ident, "b": ident, "c": inputs}, "a c", "b c").build()("task")

    assert result.results["c"].output == {"a": "a", "b": "b"}
    assert result.execution_order.count("c") == 1
    assert result.execution_order[-1] == "c"


def test_a_node_may_take_the_first_edge():
    """With `join="any"` a node runs once, at the first arrival, and later arrivals change nothing."""
    gate = threading.Event()

    def late(ctx):
        gate.wait(60)
        return "late"

    def quick(ctx):
        gate.set()
        return inputs(ctx)

    result = wired(
        {"a": ident, "b": late, "c": quick}, "a c", "b c", c={"join": "any"}
    ).build()("task")

    assert result.results["c"].output == {"a": "a"}
    # That "b" waited for "c" shows that "c" began first; which of them ends first is open.
    assert sorted(result.execution_order) == ["a", "b", "c"]


def test_an_edge_that_is_not_taken_kills_its_path():
    """A node all of whose edges are dead is skipped, and so are those that only it leads to."""
    nodes = dict.fromkeys("abcde", ident)
    result = wired(nodes, ("a b", never), "b c", "c e", "a d", "d e").build()("task")

    assert statuses(result) == {
        "a": "completed",
        "b": "skipped",
        "c": "skipped",
        "d": "completed",
        "e": "completed",
    }
    assert result.execution_order == ["a", "d", "e"]
    assert result.status is Status.COMPLETED


@pytest.mark.parametrize("join", ["all", "any"])
def test_one_live_edge_is_enough(join):
    """A join runs when at least one edge is live; dead ones only count as arrived."""
    result = wired(
        {"a": ident, "b": ident, "c": inputs}, ("a c", never), "b c", c={"join": join}
    ).build()("task")

    assert result.results["c"].output == {"b": "b"}


@pytest.mark.parametrize("join", ["all", "any"])
def test_a_join_of_dead_edges_is_skipped(join):
    """Where every edge is dead the node is skipped, whatever its join."""
    result = wired(
        {"a": ident, "b": ident, "c": ident}, ("a c", never), ("b c", never), c={"join": join}
    ).build()("x")

    assert (result.status, statuses(result)["c"]) == (Status.COMPLETED, "skipped")


def test_two_edges_between_two_nodes():
    """Several edges from one node to another are several arrivals and one input."""
    result = wired({"a": ident, "b": inputs}, "a b", ("a b", never)).build()("task")

    assert result.results["b"].output == {"a": "a"}


def test_an_entry_point_that_is_also_led_to():
    """A named entry point with incoming edges waits for these too: its start is one more arrival."""
    builder = wired({"a": ident, "b": inputs}, "a b").set_entry_point("a").set_entry_point("b")

    assert builder.build()("task").results["b"].output == {"a": "a"}


# -- branches that wait --------------------------------------------------------------------------------


def test_other_branches_go_on_to_their_ends():
    """While `b` waits, `d` and `e` run to their ends; the join runs once, after the answer."""
    nodes = {"a": ident, "b": ask, "d": ident, "e": ident, "f": inputs}
    graph = wired(nodes, "a b", "a d", "d e", "b f", "e f").build()
    first = graph("task")

    assert (first.status, first.execution_order) == (Status.INTERRUPTED, ["a", "d", "e"])

    last = graph(answer_all(first, "go"))

    assert last.execution_order == ["a", "d", "e", "b", "f"]
    assert last.results["f"].output == {"b": "go", "e": "e"}


def test_an_answer_is_taken_while_others_run():
    """An answer that comes while other nodes run is applied at once, and the run never counts as waiting."""
    bench = Bench(wired({"a": ask, "b": ident}).build()).start()
    bench.deliver("a")
    assert bench.result().status is Status.EXECUTING
    bench.answer()
    bench.deliver("a")

    assert bench.finish().execution_order == ["a", "b"]


def test_an_answer_to_a_node_that_is_still_running_is_kept():
    """A question published before its node stops can be answered at once, and the node is never stuck."""

    class Early:
        """Asks, gets the answer while it runs, and parks all the same."""

        kind = "early"

        def execute(self, visit):
            """Ask early."""
            from runner.records.checkpoints import Saved
            from runner.records.outcomes import Interrupted, Succeeded

            if visit.answers:
                return Succeeded("done", "done")
            question = visit.address.ask("ok?", scope="early")
            visit.ask([question], Saved({"v": 1}))
            apply_decisions(bench.engine, [Decision(question.id, "yes")])
            return Interrupted([question], Saved({"v": 1}))

    bench = Bench(wired({"a": Early()}).build()).start()

    assert bench.deliver() == "ready"
    assert bench.finish().results["a"].output == "done"


# -- loops ---------------------------------------------------------------------------------------------


def test_a_node_may_repeat_itself():
    """A self-loop gives its node new visits while its condition holds, with its own output as input."""

    def count(ctx):
        return ctx.inputs.get("a", 0) + 1

    result = wired({"a": count}, ("a a", lambda state: state.results["a"].output < 4)).build()(
        "task"
    )

    assert (result.results["a"].output, result.results["a"].visit) == (4, 4)
    assert result.execution_order == ["a"] * 4


def review_loop(limit=3, **options):
    nodes = {
        "write": lambda ctx: ctx.visit,
        "review": lambda ctx: ctx.inputs["write"],
        "publish": inputs,
    }
    return wired(
        nodes,
        "write review",
        ("review write", lambda state: state.results["review"].output < limit),
        ("review publish", lambda state: state.results["review"].output >= limit),
        **options,
    ).set_entry_point("write")


def test_a_loop_repeats_until_its_exit():
    """A loop gives its nodes new visits until the exit is taken, which then arrives once."""
    result = review_loop().build()("task")

    assert result.execution_order == ["write", "review"] * 3 + ["publish"]
    assert result.results["publish"].output == {"review": 3}


def test_an_entry_point_inside_a_loop():
    """A run may begin in the middle of a loop; the nodes before it are visited when it comes round."""

    def count(ctx):
        return ctx.visit

    builder = wired(
        {"a": count, "b": count, "c": count},
        "a b",
        "b c",
        ("c a", lambda state: state.visit < 2),
    ).set_entry_point("b")

    assert builder.build()("task").execution_order == ["b", "c", "a", "b", "c"]


def test_edges_from_outside_are_remembered_in_every_round():
    """A node fed from inside and outside a loop has the outside output in each of its visits."""
    nodes = {"given": lambda ctx: "outside", "head": lambda ctx: ctx.visit, "both": inputs}
    builder = wired(
        nodes, "given both", "head both", ("both head", lambda state: state.visit < 2)
    )
    result = builder.set_entry_point("head").set_entry_point("given").build()("task")

    assert result.results["both"].output == {"given": "outside", "head": 2}


def test_a_loop_that_asks_in_every_round():
    """Each visit asks its own question; an answer of an earlier visit is no answer to a later one."""
    graph = wired(
        {"a": lambda ctx: ctx.interrupt("again?")},
        ("a a", lambda state: state.results["a"].output),
    ).build()
    first = graph("task")
    second = graph(answer_all(first, True))
    last = graph(answer_all(second, False))

    assert first.interrupts[0].id != second.interrupts[0].id
    assert [first.interrupts[0].visit, second.interrupts[0].visit] == [1, 2]
    assert (last.status, last.execution_order) == (Status.COMPLETED, ["a", "a"])


def test_a_limit_on_executions():
    """A loop without an end is stopped by the limit on executions, with the reason."""
    builder = wired({"a": ident}, ("a a", lambda state: True)).set_max_node_executions(5)
    result = builder.build()("task")

    assert (result.status, len(result.execution_order)) == (Status.FAILED, 5)
    assert result.reason == 'max_node_executions (5) reached before "a"'


# -- failures -----------------------------------------------------------------------------------------


def test_an_answer_after_a_failure_is_superseded():
    """A question that was withdrawn takes no answer, and says so."""
    bench = Bench(wired({"a": ask, "bad": boom}).build()).start()
    bench.deliver("a")
    question = bench.result().interrupts[0]
    bench.deliver("bad")

    receipt = apply_decisions(bench.engine, [Decision(question.id, "yes")])[0]

    assert (receipt.status, receipt.detail) == ("superseded", "the question was withdrawn")


def test_a_running_node_is_recorded_after_a_failure():
    """A node that runs when another fails is not thrown away: it ends, is recorded, and then the run ends."""
    bench = Bench(
        wired(
            {"a": ident, "bad": boom, "slow": lambda ctx: bench.deliver("bad") and "done"}
        ).build()
    ).start()
    bench.deliver("slow")
    result = bench.finish()

    assert (result.status, result.results["slow"].output) == (Status.FAILED, "done")
    assert statuses(result) == {"a": "cancelled", "bad": "failed", "slow": "completed"}


def test_a_question_raised_while_the_run_stops_is_withdrawn():
    """A node that asks after another failed is cancelled; its question never stays open."""

    def late(ctx):
        bench.deliver("bad")
        return ctx.interrupt("ok?")

    bench = Bench(wired({"bad": boom, "late": late}).build()).start()
    bench.deliver("late")
    result = bench.finish()

    assert (result.status, result.interrupts) == (Status.FAILED, [])
    assert statuses(result)["late"] == "cancelled"
    assert [interrupt.status for interrupt in bench.store.read(bench.run_id).interrupts] == [
        "withdrawn"
    ]


def test_with_continue_only_the_branch_dies():
    """Under `continue` the failed node's branch is dead; the others end, and questions can be answered."""
    nodes = {"bad": boom, "after": ident, "a": ask, "b": ident, "join": inputs}
    graph = (
        wired(nodes, "bad after", "a b", "b join", "bad join")
        .set_failure_policy("continue")
        .build()
    )
    first = graph("task")

    assert (first.status, [interrupt.name for interrupt in first.interrupts]) == (
        Status.INTERRUPTED,
        ["ok?"],
    )

    last = graph(answer_all(first))

    assert last.status is Status.FAILED
    assert statuses(last) == {
        "bad": "failed",
        "after": "skipped",
        "a": "completed",
        "b": "completed",
        "join": "completed",
    }
    assert last.results["join"].output == {"b": "b"}


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


def test_a_node_is_tried_again():
    """A failing node runs again after its policy's delay until it succeeds; the errors are not the result."""

    def flaky(ctx):
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return ctx.attempt

    bench = Bench(
        single(flaky, retry=RetryPolicy(max_attempts=3, backoff=10, jitter=0))
    ).start()
    bench.deliver()
    assert (bench.result().status, statuses(bench.result())) == (
        Status.EXECUTING,
        {"a": "retrying"},
    )
    bench.later(9.9)
    assert bench.bells == []
    bench.later(0.1)
    bench.deliver()
    bench.later(19.9)
    assert bench.bells == []
    bench.later(0.1)
    result = bench.finish().results["a"]

    assert (result.status, result.output, result.attempts, result.error) == (
        Status.COMPLETED,
        3,
        3,
        None,
    )


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


def test_answers_survive_a_retry():
    """A question that was answered is not asked again by a retry of the same visit."""

    def flaky(ctx):
        response = ctx.interrupt("ok?")
        if ctx.attempt == 1:
            raise ValueError("again")
        return response

    bench = Bench(single(flaky, retry=RetryPolicy(2, backoff=0))).start()
    bench.deliver()
    bench.answer("once")
    bench.deliver()
    bench.later(0)

    assert bench.finish().results["a"].output == "once"


def test_a_lost_worker_is_another_attempt():
    """A node whose worker died runs again when its lease is over, under the same visit."""

    def dies(ctx):
        if ctx.attempt == 1:
            raise KeyboardInterrupt
        return [ctx.visit, ctx.attempt]

    bench = Bench(single(dies)).start()
    with pytest.raises(KeyboardInterrupt):
        bench.deliver()
    bench.later(29.9)
    assert bench.bells == []
    bench.later(0.2)

    assert bench.finish().results["a"].output == [1, 2]


def test_lost_workers_use_up_no_policy():
    """A retry policy counts what the node's own code did; workers that died have a budget of their own."""

    def unlucky(ctx):
        if ctx.attempt <= 2:
            raise KeyboardInterrupt
        if ctx.attempt == 3:
            raise ValueError("its own fault, once")
        return ctx.attempt

    bench = Bench(
        single(unlucky, retry=RetryPolicy(max_attempts=2, backoff=1, jitter=0))
    ).start()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            bench.deliver()
        bench.later(31)
    bench.deliver()
    bench.later(1)

    assert bench.finish().results["a"].output == 4


def test_a_node_that_kills_every_worker_ends_in_the_dead_letters():
    """After five lost workers in a row the node fails with what happened, and the run ends."""

    def dies(ctx):
        raise KeyboardInterrupt

    bench = Bench(single(dies)).start()
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            bench.deliver()
        bench.later(31)
    result = bench.finish()

    assert result.status is Status.FAILED
    assert "died five times in a row" in str(result.results["a"].error)
    assert len(bench.store.dead) == 1


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


def test_a_lost_doorbell_rings_again():
    """A wake-up that got lost is repeated after a lease; a doubled one changes nothing."""
    bench = Bench(single(ident)).start()
    lost = bench.bells.pop()
    bench.later(31)
    assert [bell.node for bell in bench.bells] == ["a"]
    bench.bells += [lost, lost]
    bench.deliver()

    assert [bench.deliver(), bench.deliver()] == ["stale", "stale"]
    assert bench.result().execution_order == ["a"]


# -- nested graphs ------------------------------------------------------------------------------------


def nested(*inner_nodes, policy="fail_fast", outer_nodes=None, edges=("in after",), **options):
    inner = wired(dict(inner_nodes), **options).set_failure_policy(policy).build()
    return wired({"in": inner, "after": inputs, **(outer_nodes or {})}, *edges).build()


def test_a_graph_is_a_node():
    """A graph inside another gets its task, and the output of its last node is its output."""
    inner = wired(
        {"x": lambda ctx: ctx.task, "y": lambda ctx: ctx.inputs["x"].upper()}, "x y"
    ).build()
    result = wired({"in": inner, "after": inputs}, "in after").build()("task")

    assert result.results["after"].output == {"in": "TASK"}
    assert result.results["in"].result.execution_order == ["x", "y"]
    assert result.execution_order == ["in", "after"]


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


def test_questions_inside_are_listed_outside():
    """A question two graphs down is open on the outer run, and its answer finds its way."""
    middle = wired({"deep": wired({"x": ask, "y": ident}).build(), "beside": ident}).build()
    graph = wired({"in": middle, "after": inputs}, "in after").build()
    first = graph("task")

    assert (first.status, [interrupt.node_id for interrupt in first.interrupts]) == (
        Status.INTERRUPTED,
        ["x"],
    )
    assert first.interrupted_nodes == 1
    assert statuses(first) == {"in": "waiting"}
    assert first.results["in"].result.results["deep"].result.results["y"].output == "y"

    last = graph(answer_all(first, "deep"))

    assert last.results["after"].output == {
        "in": {"deep": {"x": "deep", "y": "y"}, "beside": "beside"}
    }


def test_a_failure_inside_fails_the_node_outside():
    """An inner run that fails is its node's failure, with what happened inside."""
    result = nested(("x", boom), ("y", ask))("task")
    error = result.results["in"].result

    assert (result.status, statuses(result)) == (Status.FAILED, {"in": "failed"})
    assert isinstance(error, NodeFailed)
    assert "the graph inside ended as failed" in str(error)
    assert "x: ValueError: boom" in str(error)
    assert result.interrupts == []


def test_a_cancel_goes_down():
    """Cancelling a run stops the runs inside it, at every depth; their questions are withdrawn."""
    bench = Bench(nested(("deep", wired({"x": ask}).build()))).start()
    bench.finish()
    question = bench.result().interrupts[0]

    assert bench.engine.cancel(bench.run_id, "enough") == "cancelled"
    assert bench.engine.cancel(bench.run_id, "again") == "already"
    for _ in range(5):
        bench.later(1)
        bench.finish()
    result = bench.result()

    assert (result.status, result.reason, result.interrupts) == (Status.CANCELLED, "enough", [])
    assert apply_decisions(bench.engine, [Decision(question.id, 1)])[0].status == "superseded"
    assert {run.status for run in bench.store.runs()} == {"cancelled"}


def test_an_unknown_run_cannot_be_cancelled():
    """Cancelling a run that doesn't exist is an error."""
    with pytest.raises(NotFoundError, match="no run 'nobody'"):
        Bench(single(ident)).engine.cancel("nobody", "x")


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


def test_the_same_key_is_the_same_run():
    """Starting twice with one idempotency key begins one run and returns it both times."""
    bench = Bench(single(ident))
    first = bench.engine.start("bench", "one", idempotency_key="order 7")

    assert bench.engine.start("bench", "two", idempotency_key="order 7") == first
    assert bench.engine.start("bench", "two", idempotency_key="order 8") != first
    assert len(bench.store.runs()) == 2


def test_an_unknown_graph_cannot_be_started():
    """Starting a graph that nobody knows is an error that names those that are known."""
    bench = Bench(single(ident)).start()

    with pytest.raises(
        NotFoundError, match="no graph 'refund' is known to this store; known: bench"
    ):
        bench.engine.start("refund", "task")
    with pytest.raises(NotFoundError, match=r"Did you mean 'bench'\?$"):
        bench.engine.start("bensh", "task")


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


def test_answers_to_two_runs_are_one_set():
    """A set of answers may span runs; it is applied whole or not at all."""
    bench = Bench(single(ask))
    runs = [bench.engine.start("bench", "task") for _ in range(2)]
    while bench.bells:
        bench.deliver()
    questions = [bench.store.read(run_id).interrupts[0] for run_id in runs]
    responses = [Decision(question.id, "yes") for question in questions]

    refused = apply_decisions(bench.engine, [*responses, Decision("00gone.a.1.x", 1)])
    accepted = apply_decisions(bench.engine, responses)

    assert [receipt.status for receipt in refused] == ["rejected", "rejected", "unknown"]
    assert [receipt.status for receipt in accepted] == ["accepted", "accepted"]
    assert {receipt.run_id for receipt in accepted} == set(runs)


def test_async_and_sync_nodes_in_one_graph():
    """Sync and async functions may stand in one graph, and questions work in both."""

    async def later(ctx):
        await asyncio.sleep(0)
        return ctx.interrupt("async?")

    graph = wired({"a": later, "b": ask, "c": inputs}, "a c", "b c").build()
    first = graph("task")

    assert sorted(interrupt.name for interrupt in first.interrupts) == ["async?", "ok?"]
    assert graph(
        answers(*((question.id, question.name) for question in first.interrupts))
    ).results["c"].output == {
        "a": "async?",
        "b": "ok?",
    }


def test_a_cancel_reaches_a_run_in_process():
    """A node may cancel its own run: the call returns a cancelled result."""
    graph = wired(
        {"a": lambda ctx: graph._engine.cancel(ctx.run_id, "by a node"), "b": ident}, "a b"
    ).build()
    result = graph("task")

    assert (result.status, result.reason) == (Status.CANCELLED, "by a node")
    assert statuses(result) == {"a": "completed"}
