from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pydantic
import pytest

from runner import RetryPolicy, Status
from runner.errors import (
    InterruptExpired,
    LeaseLost,
    RunnerError,
    RunStopped,
    StoreError,
    UsageError,
)
from runner.execution.functions import function_node
from runner.store.memory.store import MemoryStore
from runner.store.requests import EmitEvent, SaveCheckpoint
from tests.graphs import Bench, answer_all, ident, single, wired
from tests.waiting import wait_until


class Decision(pydantic.BaseModel):
    approve: bool


class Order(pydantic.BaseModel):
    amount: int


# -- what a function knows ---------------------------------------------------------------------------


def test_a_function_knows_its_run():
    """Task, state, run, graph, node, visit, attempt and a stable key are on the context."""
    seen = {}

    def look(ctx):
        seen.update(vars(ctx), task=ctx.task)
        seen["key"] = ctx.idempotency_key

    result = single(look)({"order": 7}, invocation_state={"tenant": "t1"})

    assert (seen["task"], seen["invocation_state"]) == ({"order": 7}, {"tenant": "t1"})
    assert (seen["run_id"], seen["node_id"], seen["visit"], seen["attempt"]) == (
        result.run_id,
        "a",
        1,
        1,
    )
    assert seen["key"] == f"{result.run_id}.a.1"
    assert seen["graph_id"] == "default_graph"


def test_an_input_without_an_edge_is_named_with_what_there_is():
    """Reading the output of a node that has no edge to this one fails with the edge that is missing."""
    nodes = {"a": ident, "b": ident, "c": lambda ctx: ctx.inputs["a"]}
    result = wired(nodes, "a b", "b c").build()("go")

    assert isinstance(result.results["c"].result, KeyError)
    assert "an edge from 'a'" in str(result.results["c"].result)
    assert "ctx.inputs has b" in str(result.results["c"].result)


def test_inputs_are_in_the_order_of_the_edges():
    """Outputs of the nodes before come by id and as text, in the order of the edges."""
    seen = {}

    def join(ctx):
        seen["inputs"], seen["text"] = list(ctx.inputs.items()), ctx.input_text

    nodes = {"a": lambda ctx: "A", "b": lambda ctx: {"n": 1}, "join": join}
    wired(nodes, "b join", "a join").build()("the task")

    assert seen["inputs"] == [("b", {"n": 1}), ("a", "A")]
    assert seen["text"].splitlines() == [
        "Original Task: the task",
        "",
        "Inputs from previous nodes:",
        "",
        "From b:",
        '  - Agent: {"n":1}',
        "",
        "From a:",
        "  - Agent: A",
    ]


def test_the_first_node_reads_the_task_alone():
    """Without nodes before it the text is the task; content blocks give their text."""
    texts = []

    def read(ctx):
        texts.append(ctx.input_text)

    for task in ("plain", {"a": 1}, [{"text": "one"}, {"text": "two"}]):
        single(read)(task)

    assert texts == ["plain", '{"a":1}', "one\ntwo"]


def test_values_are_the_functions_own():
    """What a function changes in its task, inputs or state changes nothing for the nodes after it."""

    def spoil(ctx):
        ctx.task.append("spoiled")
        ctx.invocation_state["spoiled"] = True
        return ctx.task

    seen = {}

    def look(ctx):
        seen.update(task=ctx.task, state=ctx.invocation_state, inputs=ctx.inputs)

    wired({"a": spoil, "b": look}, "a b").build()([1], invocation_state={"n": 1})

    assert seen == {"task": [1], "state": {"n": 1}, "inputs": {"a": [1, "spoiled"]}}


# -- what a function returns -------------------------------------------------------------------------


def test_a_model_comes_back_as_a_model():
    """A pydantic model is the result, its data is the output that other nodes read."""
    seen = {}

    def read(ctx):
        seen.update(ctx.inputs)

    result = wired({"a": lambda ctx: Order(amount=5), "b": read}, "a b").build()("task")

    assert result.results["a"].result == Order(amount=5)
    assert result.results["a"].output == {"amount": 5}
    assert seen == {"a": {"amount": 5}}


def test_what_cannot_be_stored_fails_the_node_naming_the_place():
    """A result that can't be stored is an error of the node, which names the field."""
    result = single(lambda ctx: {"when": {1, 2}})("task").results["a"]

    assert result.status is Status.FAILED
    assert "result.when is a set, which can't be stored" in str(result.error)
    assert "annotate what the function returns: `-> set`" in str(result.error)


# -- how a function fails ----------------------------------------------------------------------------


async def cancelled(ctx):
    raise asyncio.CancelledError


async def leaves(ctx):
    sys.exit(3)


async def stops(ctx):
    raise KeyboardInterrupt


def stops_at_once(ctx):
    raise KeyboardInterrupt


class GaveUp(BaseException):
    """An error outside `Exception`, such as gevent.Timeout or a failure of pytest."""


def times_out(ctx):
    raise GaveUp


async def closes(ctx):
    raise GeneratorExit


@pytest.mark.full
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (cancelled, "CancelledError"),
        (leaves, "SystemExit"),
        (lambda ctx: sys.exit(3), "SystemExit"),
        (stops, "KeyboardInterrupt"),
        (stops_at_once, "KeyboardInterrupt"),
        (times_out, "GaveUp"),
        (closes, "GeneratorExit"),
    ],
)
def test_code_that_wants_to_end_the_process_fails_its_node(function, name):
    """Cancelling itself or leaving the program is a failure of that node, and others still run."""
    result = single(function)("task")

    assert result.status is Status.FAILED
    assert result.results["a"].error.name == name
    assert single(lambda ctx: asyncio.sleep(0, "fine"))("task").results["a"].output == "fine"


def test_on_the_main_thread_leaving_ends_the_worker():
    """Where a signal ends a worker in the middle of a node, that is no failure: another worker goes on."""
    bench = Bench(single(lambda ctx: sys.exit(0))).start()

    with pytest.raises(SystemExit):
        bench.deliver()

    assert bench.result().results["a"].status is Status.RUNNING


# -- questions ---------------------------------------------------------------------------------------


def test_questions_one_after_the_other():
    """Each round returns the answers so far and asks the next question."""

    def ask(ctx):
        return [ctx.interrupt("first"), ctx.interrupt("second"), ctx.interrupt("first")]

    graph = single(ask)
    result = graph("task")
    names = []
    while result.status is Status.INTERRUPTED:
        names += [interrupt.name for interrupt in result.interrupts]
        result = graph(answer_all(result, names[-1].upper()))

    assert names == ["first", "second"]
    assert result.results["a"].output == ["FIRST", "SECOND", "FIRST"]


def swallowed(ctx):
    try:
        return ctx.interrupt("ok?")
    except BaseException:  # noqa: BLE001 - the code that is tested
        return "swallowed"


def replaced(ctx):
    try:
        return ctx.interrupt("ok?")
    except BaseException as error:
        raise ValueError("replaced") from error


def unset(ctx):
    with contextlib.suppress(BaseException):
        value = ctx.interrupt("ok?")
    return value


def tried(ctx):
    try:
        return ctx.interrupt("ok?")
    except Exception:  # noqa: BLE001 - the code that is tested
        return "swallowed"


async def grouped(ctx):
    async def ask():
        return ctx.interrupt("ok?")

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
    return asked.result()


@pytest.mark.parametrize("function", [swallowed, replaced, unset, tried, grouped])
def test_code_cannot_lose_a_question(function):
    """However the code treats the exception of a question, the question is asked and answered."""
    graph = single(function)
    first = graph("task")

    assert [interrupt.name for interrupt in first.interrupts] == ["ok?"]
    assert graph(answer_all(first)).results["a"].output == "yes"


def test_a_bad_question_fails_the_node():
    """A question that can't be asked is an error at its place, not a question that nobody sees."""
    result = single(lambda ctx: ctx.interrupt("ok?", {"raw": object()}))("task")

    assert result.status is Status.FAILED
    assert "the reason of interrupt 'ok?'.raw" in str(result.results["a"].error)


def test_nobody_answers_in_time():
    """When the time is over the question raises where it was asked, or gives its default answer."""

    def ask(ctx):
        try:
            return ctx.interrupt("ok?", expires_in=60)
        except InterruptExpired as expired:
            return str(expired)

    def ask_default(ctx):
        return ctx.interrupt(
            "ok?",
            expires_in=60,
            on_expire={"response": {"approve": False}},
            response_schema=Decision,
        )

    for function, output in (
        (ask, "'ok?' was not answered within 60 s, so it counts as rejected."),
        (ask_default, {"approve": False}),
    ):
        bench = Bench(single(function)).start()
        assert bench.finish().status is Status.INTERRUPTED
        bench.later(61)
        assert bench.finish().results["a"].output == output


# -- once --------------------------------------------------------------------------------------------


def counted(counts: dict, key: str, value: object = "done"):
    def effect():
        counts[key] = counts.get(key, 0) + 1
        return value

    return effect


def test_an_effect_is_done_once_across_retries_and_lost_workers():
    """The record of `once` outlives an error of the node and the loss of its worker."""
    counts = {}

    def pay(ctx):
        ctx.once("pay", counted(counts, "pay"))
        if ctx.attempt == 1:
            raise ValueError("again")
        if ctx.attempt == 2:
            raise KeyboardInterrupt
        return ctx.attempt

    bench = Bench(single(pay, retry=RetryPolicy(backoff=1, jitter=0))).start()
    bench.deliver()
    bench.later(1)
    with pytest.raises(KeyboardInterrupt):
        bench.deliver()
    bench.later(31)

    assert bench.finish().results["a"].output == 3
    assert counts == {"pay": 1}


def test_each_visit_has_its_own_effects():
    """A loop that comes round again does the effect again."""
    counts = {}

    def pay(ctx):
        return ctx.once("pay", counted(counts, "pay", ctx.visit))

    builder = wired({"a": pay}, ("a a", lambda state: state.results["a"].output < 3))

    assert builder.build()("task").results["a"].output == 3
    assert counts == {"pay": 3}


def test_several_effects_are_kept_apart():
    """Each key has a result of its own, also when threads of the node write at once."""

    def pay(ctx):
        def one(number):
            ctx.once(f"pay {number}", lambda: number)

        workers = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ctx.interrupt("ok?")
        return [ctx.once(f"pay {number}", lambda: "again") for number in range(8)]

    graph = single(pay)

    assert graph(answer_all(graph("task"))).results["a"].output == list(range(8))


def test_async_effects():
    """An async effect is awaited: with `await` in an async function, without it in a plain one."""
    counts = {}

    async def effect():
        await asyncio.sleep(0)
        return counted(counts, "pay")()

    async def pay(ctx):
        first = await ctx.once("pay", effect)
        ctx.interrupt("ok?")
        return [first, await ctx.once("pay", effect)]

    def pay_plainly(ctx):
        return ctx.once("pay", effect)

    graph = single(pay)

    assert graph(answer_all(graph("task"))).results["a"].output == ["done", "done"]
    assert single(pay_plainly)("task").results["a"].output == "done"
    assert counts == {"pay": 2}


def test_an_async_effect_holds_up_no_other_node():
    """While an async effect of one node waits, async nodes beside it go on."""
    gone = asyncio.Event()

    async def slow():
        await asyncio.wait_for(gone.wait(), 20)
        return "slow"

    async def pay(ctx):
        return await ctx.once("pay", slow)

    async def other(ctx):
        gone.set()

    assert wired({"a": pay, "b": other}).build()("task").results["a"].output == "slow"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_effect_of_unknown_end_is_not_repeated_when_so_asked(is_async):
    """With `on_unknown="raise"` an effect that may have happened is reported, never done again."""
    counts = {}

    def die():
        counted(counts, "pay")()
        raise KeyboardInterrupt

    async def die_later():
        die()

    def pay(ctx):
        return ctx.once("pay", die, on_unknown="raise")

    async def pay_later(ctx):
        return await ctx.once("pay", die_later, on_unknown="raise")

    bench = Bench(single(pay_later if is_async else pay)).start()
    with pytest.raises(KeyboardInterrupt):
        bench.deliver()
    bench.later(31)
    result = bench.finish().results["a"]

    assert result.status is Status.FAILED
    assert isinstance(result.result, RunnerError)
    assert "once('pay') was started before and left no result" in str(result.error)
    assert counts == {"pay": 1}


@pytest.mark.parametrize("is_async", [False, True])
def test_an_effect_may_ask(is_async):
    """A question inside an effect is no unknown end: with the answer the effect begins again."""

    def pay(ctx):
        return ctx.once("pay", lambda: ctx.interrupt("ok?"), on_unknown="raise")

    async def pay_later(ctx):
        async def ask():
            return ctx.interrupt("ok?")

        return await ctx.once("pay", ask, on_unknown="raise")

    graph = single(pay_later if is_async else pay)

    assert graph(answer_all(graph("task"))).results["a"].output == "yes"


def test_once_checks_what_it_is_given():
    """An unknown word and a result that can't be stored are errors that name the key."""
    wrong = single(lambda ctx: ctx.once("pay", int, on_unknown="skip"))("task").results["a"]
    unstorable = single(lambda ctx: ctx.once("pay", object))("task").results["a"]

    assert isinstance(wrong.result, UsageError)
    assert "once('pay'): on_unknown is 'repeat' or 'raise'" in str(wrong.error)
    assert "the result of once('pay') is an object" in str(unstorable.error)


# -- progress, checks, outages -----------------------------------------------------------------------


def test_progress_is_an_event_of_the_run():
    """What a function reports is in the run's events with node and visit, in order."""

    def work(ctx):
        ctx.progress(0.5, "half")
        ctx.progress(1)

    bench = Bench(single(work)).start()
    bench.finish()
    events = [event for event in bench.store.events(bench.run_id) if event.kind == "progress"]

    assert [(entry.node, entry.visit, entry.data) for entry in events] == [
        ("a", 1, {"fraction": 0.5, "note": "half"}),
        ("a", 1, {"fraction": 1.0, "note": ""}),
    ]


def test_progress_that_cannot_be_stored_stops_nobody(caplog):
    """An outage while a function reports is logged; the function goes on."""

    class Deaf(MemoryStore):
        def do(self, request):
            """Be away for events."""
            if isinstance(request, EmitEvent):
                raise StoreError("the store can't be reached")
            return super().do(request)

    bench = Bench(single(lambda ctx: ctx.progress(0.5) or "done"), Deaf).start()

    assert bench.finish().results["a"].output == "done"
    assert "event.lost: the store can't be reached" in caplog.text


def test_a_function_learns_that_its_run_was_cancelled():
    """A cancel reaches a running function at its next check, and the node counts as cancelled."""

    def work(ctx):
        bench.engine.cancel(ctx.run_id, "enough")
        for reach in (
            ctx.check,
            lambda: ctx.progress(1),
            lambda: ctx.once("a", int),
            lambda: ctx.interrupt("b"),
        ):
            with pytest.raises(RunStopped):
                reach()
        ctx.check()

    bench = Bench(single(work)).start()

    assert bench.finish().status is Status.CANCELLED
    assert bench.result().results["a"].status is Status.CANCELLED


def test_a_function_whose_node_was_given_away_is_stopped():
    """A worker that was silent too long can neither record nor go on: the newer one's result holds."""

    def work(ctx):
        if ctx.attempt == 1:
            bench.later(31)
            bench.deliver()
            ctx.check()  # nobody has told this worker yet
            ctx.once("pay", lambda: None)
            pytest.fail("a worker that has lost the node went on")
        return ctx.attempt

    bench = Bench(single(work)).start()
    word = bench.deliver()

    assert bench.result().results["a"].output == 2
    assert word == "stale"


class Flaky(MemoryStore):
    """A store that is away for a number of checkpoints."""

    away = 0

    def do(self, request):
        """Save, or be away."""
        if isinstance(request, SaveCheckpoint) and self.away:
            self.away -= 1
            raise StoreError("the store can't be reached")
        return super().do(request)


@pytest.mark.parametrize("swallow", [False, True])
def test_an_outage_of_the_store_is_no_failure_of_the_node(swallow):
    """A checkpoint that can't be written stops the execution; the node runs again when its lease is over."""

    def pay(ctx):
        try:
            return ctx.once("pay", lambda: "paid")
        except StoreError as error:
            if swallow:
                raise ValueError("wrapped") from error
            raise

    bench = Bench(single(pay), Flaky)
    bench.store.away = 1
    bench.start()
    with pytest.raises(StoreError):
        bench.deliver()
    assert bench.result().results["a"].status is Status.RUNNING
    bench.later(31)

    assert bench.finish().results["a"].output == "paid"


# -- time --------------------------------------------------------------------------------------------


def test_a_node_that_runs_too_long_fails():
    """After its timeout a node has failed, whatever its code does; the code is told at its next check."""
    told = []

    def slow(ctx):
        try:
            while True:
                ctx.check()
        except RunnerError as error:
            told.append(type(error).__name__)
            raise

    result = single(slow, timeout=0.05)("task")

    assert result.status is Status.FAILED
    assert "execution timed out after 0.05 s" in str(result.results["a"].error)
    wait_until(lambda: told == ["NodeTimedOut"], "its code is told")


@pytest.mark.parametrize("writes", [False, True])
def test_code_that_does_not_listen_is_given_up(writes, caplog):
    """A node past its timeout is failed although its code goes on; late writes and results are refused.

    The log says so at once: the task's own error comes when the code returns, which may be never.
    """
    late = threading.Event()

    def deaf(ctx):
        ctx.once("wait", lambda: late.wait(60)) if writes else late.wait(60)
        return "late"

    bench = Bench(wired({"a": deaf, "b": ident}, a={"timeout": 0.05}).build()).start()
    with ThreadPoolExecutor() as pool:
        delivery = pool.submit(bench.engine.deliver, bench.run_id, "a", 1, 1)
        wait_until(lambda: bench.result().status is Status.FAILED, "it is given up")
        status, logged = bench.result().results["a"].status, caplog.text
        late.set()

    assert status is Status.FAILED
    assert f"node.timeout: run {bench.run_id}: node 'a' execution timed out" in logged
    assert (delivery.result().word, delivery.result().error.type) == (
        "settled",
        "runner.errors:NodeTimedOut",
    )
    assert bench.result().results["a"].output is None
    assert bench.result().status is Status.FAILED


def test_a_call_does_not_wait_for_code_past_its_deadline():
    """In process the result is there when the timeout is over, although the code goes on."""
    late = threading.Event()
    try:
        result = single(lambda ctx: late.wait(60), timeout=0.05)("task")
        assert not late.is_set()
    finally:
        late.set()

    assert "execution timed out after 0.05 s" in str(result.results["a"].error)


def test_async_code_is_ended_at_its_deadline():
    """A coroutine that waits for something that never comes is cancelled, and holds its thread no longer."""
    ended = threading.Event()

    async def endless(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    bench = Bench(single(endless, timeout=0.05)).start()

    assert bench.deliver() == "settled"
    assert ended.wait(60)
    assert "execution timed out after 0.05 s" in str(bench.result().results["a"].error)


@pytest.mark.full
def test_the_timeout_of_the_graph_holds_for_nodes_without_one():
    """A graph's node timeout is for every node that has none of its own."""

    def slow(ctx):
        """Go on until its time is over, or for longer than the graph's timeout."""
        ends = time.monotonic() + 0.3
        while ctx.node_id == "b" or time.monotonic() < ends:
            ctx.check()
        return "done"

    nodes = wired({"a": slow, "b": slow}, a={"timeout": 300})
    result = nodes.set_node_timeout(0.05).set_failure_policy("continue").build()("task")

    assert (result.results["a"].status, result.results["b"].status) == (
        Status.COMPLETED,
        Status.FAILED,
    )


def test_what_can_be_a_node():
    """A function that can be called with one argument can be a node."""
    assert function_node(lambda ctx: 1) is not None
    assert function_node(lambda *many: 1) is not None
    assert function_node(lambda ctx, more=1: 1) is not None
    assert function_node(lambda: 1) is None
    assert function_node(lambda one, two: 1) is None
    assert function_node(3) is None


def test_a_lost_node_raises_lease_lost():
    """`LeaseLost` and `RunStopped` pass through a function: they are no failure of it."""
    for error in (LeaseLost, RunStopped):

        def work(ctx, error=error):
            raise error

        bench = Bench(single(work)).start()
        bench.deliver()
        assert bench.result().results["a"].status in {Status.RUNNING, Status.RETRYING}
