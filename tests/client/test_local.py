from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import threading
import weakref

import pytest

from runner import GraphBuilder, Status, local
from runner.errors import NotFoundError, ResponseError, RunnerError, UnstorableError, UsageError
from runner.store.memory.store import MemoryStore
from runner.store.requests import SettleVisit
from runner.testing import ManualClock
from tests.graphs import answer_all, answers, ident, single, wired
from tests.waiting import wait_until


def ask(ctx):
    return ctx.interrupt("ok?")


def two_questions():
    return wired({"a": ask, "b": ask, "end": lambda ctx: ctx.inputs}, "a end", "b end").build()


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_runs_that_are_over_are_forgotten():
    """A graph that is called for ever holds the memory of its last run only."""
    graph = single(ident)
    graph("one")
    store = weakref.ref(graph._engine.store)
    graph("two")
    gc.collect()

    assert store() is None


def test_a_result_counts_and_times_its_nodes():
    """A result has counts, the order of completed nodes and times in milliseconds."""

    def boom(ctx):
        raise ValueError

    graph = (
        wired({"a": ident, "b": ask, "c": boom}, "a b").set_failure_policy("continue").build()
    )
    result = graph("task")

    assert (result.completed_nodes, result.failed_nodes, result.interrupted_nodes) == (1, 1, 1)
    assert result.execution_order == ["a"]
    assert result.results["a"].attempts == 1
    assert result.execution_time >= 0


def test_a_task_that_cannot_be_stored_is_refused():
    """A task or state that can't be stored is an error of the call, naming the place; nothing is begun."""
    graph = single(ident)
    with pytest.raises(UnstorableError, match=r"task\.when is a set"):
        graph({"when": {1}})
    with pytest.raises(UnstorableError, match=r"invocation_state\.x is an object"):
        graph("task", invocation_state={"x": object()})

    assert graph("task").status is Status.COMPLETED


@pytest.mark.full
def test_more_nodes_than_threads():
    """A fan-out wider than the threads of a process ends all the same."""
    names = [f"n{number}" for number in range(local.THREADS * 3)]
    nodes = {"start": ident, **dict.fromkeys(names, ident), "end": lambda ctx: len(ctx.inputs)}
    edges = [f"start {name}" for name in names] + [f"{name} end" for name in names]

    assert wired(nodes, *edges).build()("task").results["end"].output == len(names)


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", ["a new task", None, {"text": "hi"}, [{"text": "hi"}], b"x", 3]
)
def test_an_interrupted_graph_takes_answers_only(task):
    """While a run waits, a new task is refused; the run stays as it was and can be answered."""
    graph = single(ask)
    first = graph("task")

    with pytest.raises(ResponseError, match=r"nothing was applied|waits for answers"):
        graph(task)

    assert graph(answer_all(first)).status is Status.COMPLETED


# -- async -----------------------------------------------------------------------------------------


def test_a_graph_can_be_awaited():
    """`invoke_async` runs, answers and refuses like a call, and the loop goes on meanwhile."""
    graph = single(ask)

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        first = await graph.invoke_async("task", invocation_state={"n": 1})
        with pytest.raises(ResponseError):
            await graph.invoke_async("another")
        last = await graph.invoke_async(answer_all(first))
        ticking.cancel()
        return last, ticks

    last, ticks = asyncio.run(main())
    assert last.results["a"].output == "yes"
    assert ticks > 1


def test_a_graph_can_be_called_inside_a_running_loop():
    """A sync call works where a loop runs already, also for async nodes and inside another graph's node."""

    async def later(ctx):
        await asyncio.sleep(0)
        return "inner"

    inner = single(later)

    async def calls(ctx):
        return inner("task").results["a"].output

    async def main():
        return single(calls)("task").results["a"].output

    assert asyncio.run(main()) == "inner"


def test_a_stream_tells_what_happens():
    """`stream_async` yields the run's events in order and the result last."""
    graph = wired({"a": lambda ctx: ctx.progress(1, "half"), "b": ask}, "a b").build()

    async def collect(task):
        return [item async for item in graph.stream_async(task)]

    *first, end = asyncio.run(collect("task"))
    *second, last = asyncio.run(collect(answer_all(end["result"])))

    kinds = [(item["type"], item["node_id"]) for item in first]
    assert kinds[0] == ("run.started", "")
    assert (
        kinds.index(("node.started", "a"))
        < kinds.index(("progress", "a"))
        < kinds.index(("node.completed", "a"))
    )
    assert kinds[-1] == ("run.status", "")
    assert next(item for item in first if item["type"] == "progress")["data"] == {
        "fraction": 1.0,
        "note": "half",
    }
    assert end["result"].status is Status.INTERRUPTED
    assert second[0]["type"] == "interrupt.answered"
    assert last["result"].status is Status.COMPLETED


def test_an_error_ends_a_stream():
    """What a call would raise, a stream raises."""

    async def collect():
        return [item async for item in single(ask).stream_async(answers(("00run.a.1.x", 1)))]

    with pytest.raises(ResponseError):
        asyncio.run(collect())


# -- leaving early ---------------------------------------------------------------------------------


class Slow:
    """A node that runs until it is let go or its run is stopped."""

    def __init__(self):
        self.started, self.go = threading.Event(), threading.Event()
        self.ended = ""

    def __call__(self, ctx):
        """Run, and note how it ended."""
        self.started.set()
        try:
            while not self.go.wait(0.01):
                ctx.check()
        except RunnerError as error:
            self.ended = type(error).__name__
            raise


def test_invocation_state_may_be_positional():
    """As in Strands, the state is the second argument of a call."""
    graph = single(lambda ctx: ctx.invocation_state)

    assert graph("task", {"n": 1}).results["a"].output == {"n": 1}
    assert asyncio.run(graph.invoke_async("task", {"n": 2})).results["a"].output == {"n": 2}


@pytest.mark.full
def test_a_loop_that_nothing_ends_fails_in_process():
    """After 1,000 executions of nodes, unless it has a limit; other loops have no such bound."""

    def around(condition=None):
        builder = GraphBuilder()
        builder.add_node(lambda ctx: ctx.visit, "a")
        builder.add_edge("a", "a", condition)
        return builder.set_entry_point("a")

    result = around().build()("task")
    assert (result.status, len(result.execution_order)) == (Status.FAILED, 1_000)
    assert "max_node_executions (1000) reached" in result.reason
    limited = around().set_max_node_executions(7).build()("task")
    assert len(limited.execution_order) == 7
    longer = around(lambda state: state.visit < 1_200).build()("task")
    assert (longer.status, longer.results["a"].output) == (Status.COMPLETED, 1_200)


def test_an_answer_in_process_names_its_responder():
    """A question with assignees takes the answer of one of them, and says what an answer without lacks."""
    graph = single(lambda ctx: ctx.interrupt("ok?", assignees=["ana"]))
    (question,) = graph("task").interrupts

    def answer(**who):
        """Build an answer in the Strands form, with a responder."""
        return [{"interruptResponse": {"interruptId": question.id, "response": "yes", **who}}]

    with pytest.raises(ResponseError, match="the answer names no responder"):
        graph(answer())
    with pytest.raises(ResponseError, match="assigned to other people"):
        graph(answer(responder="eve"))
    with pytest.raises(ResponseError, match="is an int, not a text"):
        graph(answer(responder=7))
    assert graph(answer(responder="ana")).results["a"].output == "yes"


def test_leaving_a_stream_cancels_the_run():
    """Whoever stops listening stops the run: its nodes are told, and the graph is free for another."""
    slow = Slow()
    graph = wired({"a": slow, "b": ident}, "a b").build()

    async def leave():
        async for item in graph.stream_async("task"):
            if item["type"] == "node.started":
                break

    asyncio.run(leave())
    wait_until(lambda: slow.ended == "RunStopped", "the node is told")
    slow.go.set()
    assert graph("again").execution_order == ["a", "b"]


def test_cancelling_the_wait_cancels_the_run():
    """A call given up by its caller, as after a timeout, does not go on unseen."""
    slow = Slow()
    graph = single(slow)

    async def give_up():
        call = asyncio.create_task(graph.invoke_async("task"))
        await asyncio.to_thread(slow.started.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(give_up())
    wait_until(lambda: slow.ended == "RunStopped", "the node is told")


def test_an_interrupt_from_the_keyboard_stops_the_run():
    """Ctrl-C in a call ends it at once, also while nodes run, and leaves nothing open."""
    slow = Slow()
    graph = wired({"a": slow, "b": ident}, "a b").build()

    def press():
        slow.started.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        graph("task")
    pressing.join()
    wait_until(lambda: slow.ended == "RunStopped", "the node is told")
    slow.go.set()

    assert graph("again").status is Status.COMPLETED


class Unwritable(MemoryStore):
    """A store with a fault that no engine expects."""

    def do(self, request):
        """Fail to record one node."""
        if isinstance(request, SettleVisit) and request.token.node == "a":
            raise ZeroDivisionError
        return super().do(request)


def test_a_node_that_cannot_be_recorded_ends_the_call():
    """A surprise inside the engine is raised to the caller with its cause, while other nodes still run."""
    slow = Slow()
    builder = wired(
        {"a": lambda ctx: slow.started.wait(60), "b": slow, "c": ident}, "b c"
    ).set_store(Unwritable())

    with pytest.raises(RunnerError, match="could not be run or committed") as raised:
        builder.build()("task")

    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    slow.go.set()


def test_two_threads_take_turns():
    """Calls from several threads run one after the other, each with its own result."""
    graph = single(lambda ctx: ctx.task)
    found = {}

    def call(task):
        found[task] = graph(task).results["a"].output

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {number: number for number in range(8)}


# -- context, store, time --------------------------------------------------------------------------


tenant = contextvars.ContextVar("tenant", default="nobody")


def test_nodes_see_the_callers_context():
    """Context variables of the caller hold in every node, sync and async; what a node sets stays its own."""

    def reads(ctx):
        seen = tenant.get()
        tenant.set("changed by a node")
        return seen

    async def reads_later(ctx):
        return reads(ctx)

    graph = wired(
        {"a": reads, "b": reads_later, "c": reads, "ask": ask}, "a b", "b c", "c ask"
    ).build()
    tenant.set("ours")
    try:
        first = graph("task")
        assert [first.results[node].output for node in "abc"] == ["ours"] * 3
        tenant.set("later")
        assert wired({"a": reads}).build()("task").results["a"].output == "later"
    finally:
        tenant.set("nobody")


def test_a_store_of_ones_own():
    """`set_store` keeps the runs of a graph where its owner can look at them."""
    store = MemoryStore(lease=30)
    graph = wired({"a": ident}).set_graph_id("mine").set_store(store).build()
    result = graph("task")

    assert [(each.run_id, each.graph_id, each.status) for each in store.runs()] == [
        (result.run_id, "mine", "completed")
    ]
    assert graph._engine.leases._lease == 30


@pytest.mark.full
def test_a_new_object_takes_the_answers_of_an_open_run(fake_store):
    """`resume` and `run_id` continue a run of the same store, as in a process that starts later."""

    def build():
        return wired({"a": ask}).set_store(fake_store.open()).build()

    asked = build()("task")
    graph = build().resume(asked.run_id)
    resumed = local.Graph(graph.definition, fake_store.open(), run_id=asked.run_id)
    assert resumed._open == asked.run_id
    with pytest.raises(ResponseError):
        graph("task")
    result = graph(answer_all(asked))

    assert (result.status, result.run_id) == (Status.COMPLETED, asked.run_id)
    assert result.results["a"].output == "yes"
    with pytest.raises(UsageError, match="completed: only an interrupted run"):
        build().resume(asked.run_id)
    with pytest.raises(UsageError, match="only an interrupted run of graph 'other'"):
        wired({"a": ask}).set_graph_id("other").set_store(fake_store.open()).build().resume(
            asked.run_id
        )
    with pytest.raises(NotFoundError):
        single(ask).resume(asked.run_id)


def test_an_execution_has_a_limit_of_time():
    """A run that isn't done in time fails with the reason; what runs is recorded, what waits is cancelled."""
    store = MemoryStore()

    def outlasts(ctx):
        wait_until(lambda: store.peek(ctx.run_id).stopping, "the time is over")

    nodes = {"a": outlasts, "b": lambda ctx: ctx.interrupt("ok?")}
    result = wired(nodes).set_execution_timeout(0.5).set_store(store).build()("task")

    assert (result.status, result.reason) == (
        Status.FAILED,
        "execution timeout of 0.5 s reached",
    )
    assert result.results["a"].status is Status.COMPLETED
    assert result.results["b"].status is Status.CANCELLED
    assert result.interrupts == []


def test_a_call_without_answers_does_what_time_has_brought():
    """In process nobody sweeps between two calls: an expiry shows at the next without answers."""
    clock = ManualClock()
    builder = GraphBuilder().set_store(MemoryStore(clock=clock))
    builder.add_node(
        lambda ctx: ctx.interrupt("ok?", expires_in=60, on_expire={"response": "no"}), "a"
    )
    graph = builder.build()
    asked = graph("task")
    assert graph([]).status is Status.INTERRUPTED

    clock.advance(60)
    with pytest.raises(ResponseError, match="expired"):
        graph(answer_all(asked))

    assert graph([]).results["a"].output == "no"
