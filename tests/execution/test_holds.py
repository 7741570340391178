"""Holds of operators: a node doesn't run until it is released, or ends with an output instead."""

from __future__ import annotations

import pydantic
import pytest

from runner import GraphBuilder, Limit, RetryPolicy, Status
from runner.approvals.rules import Rule
from runner.client import Client, Run
from runner.definition.registry import Registry
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.execution.engine import Engine
from runner.hooks import BeforeGraphEvent
from runner.operations.recovery import write_retry
from runner.operations.views import read_run
from tests.graphs import Bench, single, wired
from tests.waiting import wait_until


class Sum(pydantic.BaseModel):
    amount: int


def give(ctx) -> str:
    return "given"


def charge(name: str) -> Sum:
    return Sum(amount=len(name))


def late(ctx):
    return list(ctx.inputs.values())


def run_of(bench: Bench) -> Run:
    return Run(bench.run_id, bench.engine)


def shown(bench: Bench) -> dict[str, str]:
    return {node.id: str(node.status) for node in read_run(bench.store, bench.run_id).nodes}


def test_a_run_that_waits_for_a_held_node_says_who_holds_it():
    """The other branch ends, the run is held and not failed, and its reason names operator and cause."""
    bench = Bench(wired({"a": give, "b": give, "c": give}, "a b", "a c").build()).start()
    run_of(bench).hold("b", by="ana", reason="wait for the audit")

    bench.finish()

    view = read_run(bench.store, bench.run_id)
    assert shown(bench) == {"a": "completed", "b": "held", "c": "completed"}
    assert view.status == "held"
    assert view.reason.startswith("b is held by ana since ")
    assert view.reason.endswith(": wait for the audit")
    assert run_of(bench).release("b", by="bo")
    assert not run_of(bench).release("b", by="bo")
    assert bench.finish().status is Status.COMPLETED


def test_a_skipped_node_ends_with_an_output_of_its_type_and_does_not_run():
    """The conditions after it get the function's type, the next node the output; the view says who."""
    ran = []

    def counted(name: str) -> Sum:
        ran.append(name)
        return Sum(amount=1)

    builder = wired(
        {"a": give, "b": counted, "many": late, "few": late},
        "a b",
        ("b many", lambda run: run.results["b"].result.amount > 5),
        ("b few", lambda run: run.results["b"].result.amount <= 5),
    )
    bench = Bench(builder.build()).start()
    run_of(bench).skip("b", {"amount": 9}, by="ana")

    result = bench.finish()

    assert (ran, result.results["b"].result) == ([], Sum(amount=9))
    assert result.execution_order == ["a", "b", "many"]
    assert result.results["many"].result == [{"amount": 9}]
    skipped = {node.id: node.skipped for node in read_run(bench.store, bench.run_id).nodes}
    assert {name for name, by in skipped.items() if by} == {"b"}
    assert skipped["b"] == "human:|ana"


def test_an_output_that_does_not_fit_holds_the_node_again():
    """The node neither runs nor fails; skipped with another output, it ends."""
    bench = Bench(wired({"a": give, "b": charge}, "a b").build()).start()
    run_of(bench).skip("b", {"amount": "many"}, by="ana")
    bench.finish()

    reason = read_run(bench.store, bench.run_id).reason
    assert "ana skipped it with an output that does not fit its type: " in reason
    assert reason.endswith("Skip it again with another output.")
    run_of(bench).skip("b", {"amount": 3}, by="ana")
    assert bench.finish().results["b"].result == Sum(amount=3)


def test_a_node_between_two_attempts_is_held():
    """Its next attempt begins after the release, and not when its delay is over."""
    attempts = []

    def flaky(ctx):
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise ValueError("not yet")

    bench = Bench(single(flaky, retry=RetryPolicy(max_attempts=3, backoff=1))).start()
    bench.deliver()
    run_of(bench).hold("a", by="ana")
    bench.later(600)
    bench.finish_all()
    assert attempts == [1]
    run_of(bench).release("a", by="ana")
    assert bench.finish().status is Status.COMPLETED
    assert attempts == [1, 2]


def test_a_skip_is_no_approval():
    """A node with a rule that is skipped asks nobody and doesn't run; its question is withdrawn."""
    ran = []
    rule = Rule(eligible=["user:bo"], need=1)
    bench = Bench(single(lambda ctx: ran.append(1), approval=rule)).start()
    bench.deliver()
    (question,) = bench.result().interrupts
    run_of(bench).skip("a", "paid", by="ana")

    result = bench.finish()

    assert (ran, result.results["a"].result, result.status) == ([], "paid", Status.COMPLETED)
    (closed,) = bench.store.interrupts([question.id])
    assert closed.status == "withdrawn"
    kinds = [event.kind for event in bench.store.events(bench.run_id)]
    assert "node.overridden" in kinds
    assert "interrupt.used" not in kinds


def test_a_map_is_held_and_skipped_as_a_whole():
    """Its output is the list that the next node gets; one item can't be named."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: [1, 2], "list")
    builder.add_map(lambda ctx: ctx.task * 2, "all", over="list")
    builder.add_node(late, "sum")
    builder.add_edge("list", "all")
    builder.add_edge("all", "sum")
    bench = Bench(builder.build()).start()
    with pytest.raises(NotFoundError, match=r"node 'all\[0\]' .* is an item of a map"):
        run_of(bench).hold("all[0]", by="ana")
    run_of(bench).hold("all", by="ana")
    bench.finish_all()
    run_of(bench).skip("all", [7, 8], by="ana")
    assert bench.finish().results["sum"].result == [[7, 8]]


def test_a_node_in_a_child_run_is_held_there():
    """The parent is held, too; the node of the child run is released in the child run."""
    bench = Bench(wired({"in": wired({"x": give, "y": give}, "x y").build()}).build()).start()
    bench.deliver()
    child = bench.store.read(bench.run_id).nodes["in"].child
    with pytest.raises(ConflictError, match="by a child run"):
        run_of(bench).hold("in", by="ana")
    Run(child, bench.engine).hold("y", by="ana")
    bench.finish_all()
    view = read_run(bench.store, bench.run_id)
    assert (str(view.status), view.reason.partition(" since")[0]) == (
        "held",
        "in is held: y is held by ana",
    )
    Run(child, bench.engine).release("y", by="ana")
    assert bench.finish().status is Status.COMPLETED


def test_a_hold_in_a_loop_is_for_one_visit():
    """The next round's visit of the node begins unless it is held again."""
    again = ("b a", lambda run: run.results["b"].result == "first")
    builder = wired({"a": give, "b": late}, "a b", again).set_entry_point("a")
    bench = Bench(builder.build()).start()
    run_of(bench).skip("b", "first", by="ana")
    assert bench.finish().execution_order == ["a", "b", "a", "b"]
    outputs = bench.store.read(bench.run_id).outputs
    assert (outputs["b", 1], outputs["b", 2]) == ("first", ["given"])


def deployed(bench: Bench, *edges, options=None, **nodes) -> None:
    """Let the workers have another version of the graph."""
    registry, graph = Registry(), wired(nodes, *edges, **options or {}).build()
    registry.add("bench", lambda: graph)
    bench.engine = Engine(bench.store, bench, registry)
    bench.engine.publish(["bench"])


@pytest.mark.full
def test_neither_a_deploy_nor_a_migration_starts_a_held_node(in_redis):
    """A worker that publishes a graph releases no hold of a person, and a migrated run keeps it."""
    nodes = {"a": give, "b": give, "c": give}
    bench = Bench(wired(nodes, "a b", "b c").build(), in_redis).start()
    run_of(bench).hold("b", by="ana")
    run_of(bench).hold("c", by="ana")
    bench.finish_all()
    bench.engine.publish(["bench"])
    with pytest.raises(ConflictError, match="none of its nodes is held for a change"):
        run_of(bench).migrate()
    deployed(bench, "a b", "b c", "c d", **nodes, d=give)

    run_of(bench).migrate()

    assert bench.bells == []
    assert read_run(bench.store, bench.run_id).status == "held"
    run_of(bench).release("b", by="ana")
    assert bench.finish().execution_order == ["a", "b"]
    run_of(bench).release("c", by="ana")
    assert bench.finish().execution_order == ["a", "b", "c", "d"]


class Broken:
    """A function that fails once."""

    def __init__(self):
        self.calls = 0

    def __call__(self, ctx):
        self.calls += 1
        if self.calls == 1:
            raise ValueError("broken")


@pytest.mark.full
@pytest.mark.parametrize("action", ["hold", "skip"])
@pytest.mark.parametrize("end", ["fails before", "fails beside", "cancel", "timeout"])
def test_a_retry_keeps_the_hold_or_skip_of_a_node_that_has_not_run(in_redis, action, end):
    """The node may be pending or ready when its run stops; in the retried run it doesn't run."""
    ran = []

    def run(ctx):
        ran.append(1)

    nodes, edges = {"s": give, "a": Broken(), "b": run}, ["s a", "s b"]
    if end == "fails before":
        edges = ["s a", "a b"]
    elif end != "fails beside":
        nodes["a"] = give
    builder = wired(nodes, *edges)
    builder.set_execution_timeout(60)
    bench = Bench(builder.build(), in_redis).start()
    if action == "hold":
        run_of(bench).hold("b", by="ana")
    else:
        run_of(bench).skip("b", "fake", by="ana")
    if end == "cancel":
        run_of(bench).cancel("stop")
    elif end == "timeout":
        bench.deliver("s")
        bench.later(100)
    else:
        bench.deliver("s")
        bench.deliver("a")
        bench.finish_all()
    assert str(read_run(bench.store, bench.run_id).status) in {"failed", "cancelled"}
    if end in {"fails beside", "timeout"}:
        assert shown(bench)["b"] == "cancelled"

    run_of(bench).retry()
    bench.finish_all()

    view = read_run(bench.store, bench.run_id)
    assert ran == []
    if action == "skip":
        assert bench.result().results["b"].result == "fake"
        return
    assert view.reason.startswith("b is held by ana since ")
    run_of(bench).release("b", by="ana")
    assert bench.finish().status is Status.COMPLETED
    assert ran == [1]


def test_the_skip_of_a_failed_node_continues_its_run(in_redis):
    """A payment that may have been made isn't tried again; what comes after it gets the output."""
    paid = []

    def pay(ctx):
        ctx.once("pay", lambda: paid.append(1) or 1 / 0, on_unknown="raise")

    inner = wired({"pay": pay, "b": late}, "pay b").build()
    bench = Bench(wired({"m": inner, "c": late}, "m c").build(), in_redis).start()
    bench.finish_all()
    assert bench.store.peek(bench.run_id).status is Status.FAILED
    with pytest.raises(ConflictError, match="has ended"):
        run_of(bench).skip("m", "no", by="ana")
    with pytest.raises(ConflictError, match="has ended"):
        run_of(bench).skip("c", "no", by="ana")
    child = Run(bench.store.read(bench.run_id).nodes["m"].child, bench.engine)

    assert child.skip("pay", "paid", by="ana", reason="seen in the ledger")
    bench.finish_all()

    assert bench.store.peek(bench.run_id).status is Status.COMPLETED
    assert paid == [1]
    assert bench.result().results["m"].result.results["b"].output == ["paid"]
    kinds = [event.kind for event in bench.store.events(child.id)]
    assert kinds.count("node.overridden") == 1


def test_a_skip_that_dies_after_its_retry_is_repeated(in_redis):
    """The node is held by the operator until the same skip comes again; twice is once, another is refused."""
    bench = Bench(wired({"a": Broken(), "b": late}, "a b").build(), in_redis).start()
    bench.finish_all()
    held = (bench.run_id, "a")
    _, retried = write_retry(bench.store, bench.run_id, by="human:|ana", held=held)
    bench.engine.ring(retried)
    bench.later(400)
    bench.finish_all()
    assert read_run(bench.store, bench.run_id).reason == "a is held by ana"

    assert run_of(bench).skip("a", "paid", by="ana")
    assert not run_of(bench).skip("a", "paid", by="ana")
    with pytest.raises(ConflictError, match="is being skipped already, with another output"):
        run_of(bench).skip("a", "other", by="bo")
    bench.finish_all()

    assert bench.result().results["b"].output == ["paid"]


def test_a_skip_of_a_failed_map_replaces_all_its_items(in_redis):
    """None of them runs again, and a failed node beside it does."""
    ran = []

    def item(ctx):
        ran.append(ctx.task)
        raise ValueError("broken")

    def numbers(ctx) -> list[int]:
        return [1, 2]

    builder = GraphBuilder()
    builder.add_node(numbers, "s")
    builder.add_map(item, "m", over="s")
    builder.add_node(late, "c")
    builder.add_edge("s", "m")
    builder.add_edge("m", "c")
    bench = Bench(builder.build(), in_redis).start()
    bench.finish_all()
    assert bench.store.peek(bench.run_id).status is Status.FAILED
    before = len(ran)

    assert run_of(bench).skip("m", ["one", "two"], by="ana")
    bench.finish_all()

    assert bench.store.peek(bench.run_id).status is Status.COMPLETED
    assert len(ran) == before


def test_a_migration_keeps_the_skip_of_a_node_that_has_not_begun(in_redis):
    """The function doesn't run in the new graph."""
    ran = []

    def run(ctx):
        ran.append(1)

    def ask(ctx):
        return ctx.interrupt("q")

    nodes = {"a": ask, "b": run}
    bench = Bench(wired(nodes, "a b").build(), in_redis).start()
    bench.finish_all()
    run_of(bench).skip("b", "fake", by="ana")
    deployed(bench, "a b", "b c", **nodes, c=late)
    run_of(bench).migrate()
    bench.answer()
    assert bench.finish().results["c"].result == ["fake"]
    assert ran == []


def test_a_skipped_node_that_fails_is_skipped_again(in_redis):
    """A condition is slower than the node's timeout: no later attempt runs the function."""
    ran = []

    def slow(run):
        wait_until(lambda: bench.store.read(bench.run_id).nodes["a"].attempt > 1, "a retry")
        return True

    policy = RetryPolicy(max_attempts=3, backoff=1)
    nodes, options = (
        {"a": lambda ctx: ran.append(1), "b": late},
        {"timeout": 0.1, "retry": policy},
    )
    bench = Bench(wired(nodes, ("a b", slow), a=options).build(), in_redis).start()
    run_of(bench).skip("a", "fake", by="ana")
    bench.finish_all()
    bench.later(600)
    assert bench.finish().results["b"].result == ["fake"]
    assert ran == []


def test_a_skip_replaces_no_other_skip_unless_the_node_is_held(in_redis):
    """A command either does something, repeats one, or is refused with a message."""
    bench = Bench(wired({"a": give, "b": give}, "a b").build(), in_redis).start()
    assert run_of(bench).skip("b", 1, by="ana")
    assert not run_of(bench).skip("b", 1, by="ana")
    with pytest.raises(ConflictError, match="is being skipped already, with another output"):
        run_of(bench).skip("b", 2, by="bo")
    assert run_of(bench).hold("b", by="bo")
    assert run_of(bench).skip("b", 2, by="ana")
    assert bench.finish().results["b"].result == 2


def test_a_node_that_a_deploy_holds_is_neither_released_nor_skipped(in_redis):
    """An operator is told how it continues."""
    bench = Bench(wired({"a": give}, a={"version": "1"}).build(), in_redis).start()
    deployed(bench, a=give, options={"a": {"version": "2"}})
    bench.finish_all()
    for change in (run_of(bench).release, lambda node, by: run_of(bench).skip(node, 1, by=by)):
        with pytest.raises(ConflictError, match="runner runs migrate"):
            change("a", by="ana")
    with pytest.raises(UsageError):
        run_of(bench).hold("a", by=None)
    run_of(bench).migrate()
    assert bench.finish().status is Status.COMPLETED


def test_a_hook_of_the_graph_is_not_held(in_redis):
    """Its node isn't one of the graph's, for operators."""

    class Hook:
        def register_hooks(self, registry, **options):
            registry.add_callback(BeforeGraphEvent, lambda event: None)

    builder = wired({"a": give})
    builder.set_hook_providers([Hook()])
    bench = Bench(builder.build(), in_redis).start()
    with pytest.raises(NotFoundError, match="is not in its graph"):
        run_of(bench).hold("@before", by="ana")
    assert bench.finish().status is Status.COMPLETED


def test_a_hold_and_a_release_keep_to_a_rate(in_redis):
    """Nodes that wait for their start times get others: one starts a minute."""
    started = []
    limits = [Limit("shop", rate=1, per=60)]
    bench = Bench(single(lambda ctx: started.append(1), limits=limits), in_redis)
    runs = [bench.start().run_id for _ in range(3)]
    bench.finish_all()
    for run in runs[1:]:
        Run(run, bench.engine).hold("a", by="ana")
        Run(run, bench.engine).release("a", by="ana")
    bench.finish_all()
    assert started == [1]
    bench.later(300)
    bench.finish_all()
    assert started == [1, 1, 1]


def test_an_effect_of_an_attempt_before_a_skip_did_not_end_with_it(in_redis):
    """The function failed after it began; nobody knows what became of it, and a cancel revokes nothing."""

    def fail(ctx):
        raise ValueError("boom")

    rule, policy = Rule(eligible=["user:bo"], need=1), RetryPolicy(max_attempts=3, backoff=1)
    bench = Bench(single(fail, approval=rule, retry=policy), in_redis).start()
    bench.finish_all()
    (question,) = bench.result().interrupts
    client = Client(store=bench.store, dispatcher=bench, registry=bench.engine.registry)
    client.vote(question.id, "approve", by="bo")
    bench.deliver()
    run_of(bench).skip("a", "paid by hand", by="ana")
    assert bench.finish().status is Status.COMPLETED
    kinds = [event.kind for event in bench.store.events(bench.run_id)]
    assert kinds.count("interrupt.used") == 1
    assert "interrupt.effect_ended" not in kinds


def test_a_run_inside_says_who_holds_it_now():
    """An earlier hold of the node around it has ended."""
    inner = wired({"x": give, "y": give}, "x y").build()
    bench = Bench(wired({"in": inner}).build()).start()
    run_of(bench).hold("in", by="ana", reason="old")
    run_of(bench).release("in", by="ana")
    bench.deliver("in")
    child = bench.store.read(bench.run_id).nodes["in"].child
    Run(child, bench.engine).hold("y", by="bo")
    bench.finish_all()
    reason = read_run(bench.store, bench.run_id).reason
    assert reason.startswith("in is held: y is held by bo since ")


def test_a_skipped_node_that_is_cancelled_revokes_no_task():
    """No external task is out, and its doorbell has nothing to do."""
    bench = Bench(wired({"a": give}).build()).start()
    bench.bells.clear()
    run_of(bench).skip("a", 1, by="ana")
    run_of(bench).cancel("stop")
    assert bench.deliver() == "stale"
