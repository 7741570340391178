"""What a node's code sees of expiries and reminders; the stores' part is in the store contract."""

from __future__ import annotations

import pytest

from runner import Agent, GraphBuilder, RetryPolicy, Status, tool
from runner.errors import DefinitionError, InterruptExpired, UsageError
from runner.hooks import BeforeNodeCallEvent, HookProvider
from runner.operations import recovery
from runner.records.interrupts import Address
from runner.testing import ScriptedModel
from tests.graphs import Bench, single

AT = Address("00run", "a", 1, routes=("b", "c"))


def asked(**options):
    return AT.ask("ok?", scope="function", **options)


def escalating(approve, *, policy="fail_fast", hooks=(), **options):
    """Build a graph whose first node leads to `pay`, or to `lead` when nobody answers."""
    builder = GraphBuilder().set_failure_policy(policy).set_hook_providers(list(hooks))
    builder.add_node(approve, "approve", **options)
    builder.add_node(lambda ctx: ctx.inputs, "lead")
    builder.add_node(lambda ctx: "paid", "pay")
    builder.add_edge("approve", "pay")
    builder.add_edge("approve", "lead", on_expire=True)
    return builder.build()


def test_an_expiry_fails_a_node_without_running_its_code():
    """The code that asked ran once, no policy is asked, and the run's result says what happened."""
    ran = []

    def ask(ctx):
        ran.append(ctx.attempt)
        return ctx.interrupt("ok?", expires_in=60, on_expire="fail")

    bench = Bench(single(ask, retry=RetryPolicy(max_attempts=5, backoff=0))).start()
    bench.finish()
    bench.later(60)

    result = bench.finish()
    assert (result.status, ran, bench.bells) == (Status.FAILED, [1], [])
    assert result.reason == 'node "a" failed'
    assert isinstance(result.results["a"].result, InterruptExpired)
    assert "'ok?' was not answered within 60 s" in str(result.results["a"].error)


def test_a_retried_run_asks_anew(in_redis):
    """After an expiry that failed its node, whoever retries the run gives people another chance."""
    bench = Bench(
        single(lambda ctx: ctx.interrupt("ok?", expires_in=60, on_expire="fail")),
        in_redis,
    ).start()
    (first,) = bench.finish().interrupts
    bench.later(60)
    recovery.retry(bench.engine, bench.run_id)

    (second,) = bench.finish().interrupts
    assert second.id != first.id
    bench.answer("yes")
    assert bench.finish().results["a"].output == "yes"


def test_conditions_of_other_edges_are_asked_as_ever():
    """Beside a condition, the edge for expired questions stays untaken when the node completes."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: 1, "a")
    builder.add_node(lambda ctx: 2, "b")
    builder.add_node(lambda ctx: 3, "c")
    builder.add_edge("a", "b", lambda state: state.results["a"].output == 1)
    builder.add_edge("a", "c", on_expire=True)

    result = builder.build()("task")

    assert result.execution_order == ["a", "b"]


@pytest.mark.parametrize("ending", ["fail", {"route": "lead"}])
def test_a_tool_s_question_ends_its_agent_s_node(ending):
    """An agent whose tool asked and got no answer is not run again: the store ends its node."""
    ran = []

    @tool(context=True)
    def pay(tool_context):
        """Pay."""
        ran.append(1)
        return tool_context.interrupt("pay?", expires_in=60, on_expire=ending)

    model = ScriptedModel([{"toolUse": {"toolUseId": "1", "name": "pay", "input": {}}}, "done"])
    bench = Bench(escalating(Agent(name="clerk", model=model, tools=[pay]))).start("go")
    bench.finish()
    bench.later(60)

    result = bench.finish()
    failed = ending == "fail"
    assert result.status is (Status.FAILED if failed else Status.COMPLETED)
    assert result.execution_order == ([] if failed else ["approve", "lead"])
    assert ran == [1]


def test_a_hook_s_question_ends_the_node_too():
    """A question ahead of a node that nobody answers keeps it from running, and leads elsewhere."""
    ran = []

    class Gate(HookProvider):
        def register_hooks(self, registry, **kwargs):
            registry.add_callback(BeforeNodeCallEvent, self.ask)

        def ask(self, event):
            if event.node_id == "approve":
                event.interrupt("start?", expires_in=60, on_expire={"route": "lead"})

    bench = Bench(escalating(ran.append, hooks=[Gate()])).start()
    bench.finish()
    bench.later(60)

    assert (bench.finish().execution_order, ran) == (["approve", "lead"], [])


def test_a_route_must_have_its_edge():
    """A route that the graph does not have is refused where the question is asked, and names those it has."""
    with pytest.raises(UsageError, match=r"no edge added.*such edges lead to \['b', 'c'\]"):
        asked(on_expire={"route": "d"})
    with pytest.raises(UsageError, match="it has none"):
        Address("00run", "a", 1).ask("ok?", scope="function", on_expire={"route": "b"})

    def ask(ctx):
        return ctx.interrupt("ok?", expires_in=60, on_expire={"route": "pay"})

    result = Bench(escalating(ask)).start().finish()
    assert "on_expire=True" in str(result.results["approve"].error)


def test_an_edge_for_expired_questions_has_no_condition():
    """Nobody asks a condition when time ends a node: such an edge is refused when it is declared."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: 1, "a")
    builder.add_node(lambda ctx: 1, "b")
    with pytest.raises(DefinitionError, match="leave the condition out"):
        builder.add_edge("a", "b", lambda state: True, on_expire=True)


def test_such_an_edge_is_part_of_what_a_deploy_compares():
    """A waiting run notices that its way out is gone or new; graphs without such edges keep their names."""

    def build(**options):
        builder = GraphBuilder()
        builder.add_node(lambda ctx: 1, "a")
        builder.add_node(lambda ctx: 1, "b")
        builder.add_edge("a", "b", **options)
        bench = Bench(builder.build())
        return bench.engine.registry.get("bench").topology

    plain, routed = build(), build(on_expire=True)

    assert plain.fingerprint != routed.fingerprint
    assert plain.nodes["a"].signature != routed.nodes["a"].signature
    assert build(on_expire=False).fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"remind_every": 0}, "more than 0"),
        ({"remind_every": float("nan")}, "more than 0"),
        ({"remind_every": True}, "more than 0"),
        ({"remind_every": "hourly"}, "more than 0"),
        ({"remind_after": [5, 5]}, "must grow"),
        ({"remind_after": [-1]}, "more than 0"),
        ({"remind_after": range(1, 102)}, "101 times"),
        ({"remind_after": [1], "remind_every": 1}, "not both"),
    ],
)
def test_times_of_reminders_are_checked_when_asked(given, reason):
    """A mistake in them is found when the question is asked."""
    with pytest.raises(UsageError, match=reason):
        asked(**given)


@pytest.mark.full
def test_an_answer_in_time_goes_the_usual_way():
    """The edge for expired questions is no edge for anything else."""

    def ask(ctx):
        return ctx.interrupt("ok?", expires_in=60, on_expire={"route": "lead"})

    bench = Bench(escalating(ask)).start()
    bench.finish()
    bench.answer()
    bench.later(60)

    result = bench.finish()
    assert result.results["pay"].output == "paid"
    assert result.results["lead"].status is Status.SKIPPED
