"""A node that raises RetryAfter goes on later: nothing has failed, and it holds nothing meanwhile."""

from __future__ import annotations

import math
import pickle
import threading

import pytest

from runner import Agent, GraphBuilder, Limit, RetryAfter, RetryPolicy, Status, tool
from runner.agent.models.scripted import ScriptedModel
from runner.approvals import Rule
from runner.definition.registry import Registry
from runner.errors import UsageError
from runner.execution.engine import Engine
from runner.limits.setting import LimitPause
from runner.operations.answers import apply_decisions
from runner.operations.views import read_run
from runner.records.interrupts import Decision
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.store.requests import ChangeLimit
from runner.testing import ManualClock
from tests.agent.visits import use


class Bells:
    """Keeps what was rung, as programs without a broker do."""

    def __init__(self):
        self.rung = []

    def ring(self, doorbells):
        self.rung += doorbells


class Site:
    """A store, what is rung for, and an engine for each process that works on it."""

    def __init__(self, store, clock):
        self.store, self.clock, self.bells, self.graphs = store, clock, Bells(), Registry()

    def process(self):
        """Make the engine of another process."""
        return Engine(self.store, self.bells, self.graphs)

    def start(self, *nodes, **options):
        """Start a run of a graph of these nodes, all at once."""
        builder = GraphBuilder()
        for name, node in nodes:
            builder.add_node(node, name, **options)
        self.graphs.add("g", builder.build)
        return self.process().start("g", "go")

    def deliver(self, engine=None):
        """Deliver everything that was rung; return the replies by node."""
        rung, self.bells.rung = self.bells.rung, []
        engine = engine or self.process()
        visits = [(bell.run_id, bell.node, bell.visit, bell.attempt) for bell in rung]
        return [(visit[1], engine.deliver(*visit).word) for visit in visits]

    def sweep(self, seconds):
        """Let time pass, and have another process do what is due."""
        self.clock.advance(seconds)
        engine = self.process()
        engine.sweep()
        return self.deliver(engine)


@pytest.fixture(params=["memory", "redis"])
def site(request, redis_url):
    """A site on either store."""
    clock = ManualClock()
    if request.param == "memory":
        yield Site(MemoryStore(clock), clock)
        return
    store = RedisStore(redis_url, clock=clock, push=False)
    yield Site(store, clock)
    store.close()


def raising(*errors):
    """A function that raises each error once, and then returns."""
    left = list(errors)

    def work(ctx):
        if left:
            raise left.pop(0)
        return f"attempt {ctx.attempt}"

    return work


def test_it_goes_on_then_in_any_process(site):
    """Its worker may die meanwhile: when the time has come, a sweep of another process rings for it."""
    run_id = site.start(("a", raising(RetryAfter(90, reason="closed until noon"))))
    engine = site.process()
    assert site.deliver(engine) == [("a", "retrying")]
    assert (engine.running(), site.store.peek(run_id).status) == ([], Status.EXECUTING)
    [node] = read_run(site.store, run_id).nodes
    assert (node.status, node.attempts) == ("retrying", 1)
    assert node.progress == "waits until 2023-11-14T22:14:50.000Z: closed until noon"

    assert site.sweep(89) == []
    assert site.sweep(1) == [("a", "settled")]
    [node] = read_run(site.store, run_id).nodes
    assert (node.status, node.output, node.progress) == ("completed", "attempt 1", "")


@pytest.mark.full
@pytest.mark.parametrize(
    ("error", "status"), [(RetryAfter(5), "completed"), (ValueError("no"), "failed")]
)
def test_no_attempt_is_counted(site, error, status):
    """A policy of two attempts allows one error after any number of waits; three errors it does not."""
    run_id = site.start(
        ("a", raising(error, error, ValueError("once"))),
        retry=RetryPolicy(max_attempts=2, backoff=1, jitter=0),
    )
    site.deliver()
    for _ in range(3):
        site.sweep(5)

    assert read_run(site.store, run_id).nodes[0].status == status


def test_no_slot_is_held_meanwhile(site):
    """The slot of its limit goes to the next node, and it must acquire one again."""
    site.start(
        ("a", raising(RetryAfter(60))), ("b", raising()), limits=[Limit("one", concurrency=1)]
    )

    assert site.deliver() == [("a", "retrying"), ("b", "settled")]
    assert site.sweep(60) == [("a", "settled")]


@pytest.mark.full
@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, 7 * 86_400 + 1, "30", True, None])
def test_a_time_that_no_node_can_wait_fails_it(site, seconds):
    """The error says which times there are."""

    def work(ctx):
        raise RetryAfter(seconds)

    run_id = site.start(("a", work))
    assert site.deliver() == [("a", "settled")]
    with pytest.raises(UsageError, match=r"0 to 604,800 seconds"):
        RetryAfter(seconds)
    assert "0 to 604,800" in str(read_run(site.store, run_id).nodes[0].error)


def test_it_comes_back_from_another_process_as_it_was_raised():
    """Code that runs in a pool of processes may raise it: a copy has the time, the limit and the reason."""
    raised = pickle.dumps(RetryAfter(30, "model", reason="closed"))
    error = pickle.loads(raised)  # noqa: S301 - this test has written it
    assert (error.seconds, error.limit, error.reason) == (30, "model", "closed")
    assert str(error) == "The node goes on in 30 s: closed."


def test_a_question_of_the_same_execution_is_not_lost(site):
    """Code that asks, catches the question and raises RetryAfter waits for the answer."""

    def work(ctx):
        try:
            return ctx.interrupt("ok?")
        except BaseException as error:
            raise RetryAfter(5) from error

    run_id = site.start(("a", work))
    assert site.deliver() == [("a", "waiting")]
    assert [question.name for question in read_run(site.store, run_id).interrupts] == ["ok?"]


CALLS = []


def shop(closed, opened):
    """Two tools: one pays, as soon as `opened` is set; one books, and raises `closed` once."""

    @tool
    def pay() -> str:
        """Pay."""
        assert opened.wait(60)
        CALLS.append("pay")
        return "paid"

    @tool
    def book() -> str:
        """Book, when the shop is open."""
        CALLS.append("book")
        opened.set()
        if closed:
            raise closed.pop()
        return "booked"

    return [pay, book]


@pytest.mark.full
def test_a_tool_of_an_agent_may_raise_it(site):
    """Calls of the same reply end and are stored; then only the call that asked for it is made again."""
    CALLS.clear()
    tools = shop([RetryAfter(30)], threading.Event())
    script = [[use("pay"), use("book")], "done"]
    run_id = site.start(("a", Agent("a", ScriptedModel(script), tools)))
    assert site.deliver() == [("a", "retrying")]
    assert site.sweep(30) == [("a", "settled")]

    assert sorted(CALLS) == ["book", "book", "pay"]
    assert read_run(site.store, run_id).status == "completed"


@pytest.mark.full
def test_a_question_of_another_tool_is_asked_meanwhile(site):
    """People may decide before the time has come; then each call is made once more, or once."""
    CALLS.clear()
    pay, book = shop([RetryAfter(30)], threading.Event())
    script = [[use("pay"), use("book")], "done"]
    agent = Agent("a", ScriptedModel(script), [tool(approval=Rule())(pay.function), book])
    run_id = site.start(("a", agent))
    assert site.deliver() == [("a", "retrying")]
    [question] = read_run(site.store, run_id).interrupts
    vote = Decision(question.id, None, "ana", decision="approve")
    apply_decisions(site.process(), [vote])
    assert (site.deliver(), CALLS) == ([], ["book"])

    assert site.sweep(30) == [("a", "settled")]
    assert sorted(CALLS) == ["book", "book", "pay"]


def test_a_model_may_raise_it(site):
    """The call is made again when the time has come; what the agent did before is not."""
    CALLS.clear()
    closed = [RetryAfter(30)]

    def reply(_messages):
        return closed.pop() if closed else "done"

    script = [use("book"), reply]
    run_id = site.start(("a", Agent("a", ScriptedModel(script), shop([], threading.Event()))))
    assert site.deliver() == [("a", "retrying")]
    assert site.sweep(30) == [("a", "settled")]

    assert CALLS == ["book"]
    assert read_run(site.store, run_id).nodes[0].attempts == 1


def limited(site, by="tag:tenant", before=lambda: None, **numbers):
    """Start runs of two tenants; the node of the first one raises RetryAfter with its limit, once."""
    closed = [RetryAfter(60, limit="model", reason="slow down")]

    def work(ctx):
        if closed:
            before()
            raise closed.pop()
        return ctx.task

    builder = GraphBuilder()
    builder.add_node(
        work, "a", limits=[Limit("model", by=by, **(numbers or {"concurrency": 9}))]
    )
    site.graphs.add("g", builder.build)
    engine = site.process()
    return [engine.start("g", name, tags={"tenant": name[0]}) for name in ("x1", "x2", "y1")]


def test_its_key_pauses_and_other_keys_go_on(site):
    """No node of the key starts before the time that one was told, in any process; then all of them do."""
    limited(site)

    assert sorted(site.deliver()) == [("a", "limited"), ("a", "retrying"), ("a", "settled")]
    assert site.sweep(59) == []
    assert site.sweep(1) == [("a", "settled"), ("a", "settled")]


def test_without_its_name_no_key_pauses(site):
    """The control: the other node of the same key starts at once."""
    nodes = [("a", raising(RetryAfter(60))), ("b", raising())]
    site.start(*nodes, limits=[Limit("model", concurrency=9)])

    assert site.deliver() == [("a", "retrying"), ("b", "settled")]


@pytest.mark.full
def test_after_a_pause_the_rate_holds(site):
    """Nodes whose start times had been assigned before do not start all at once when the pause ends."""
    others, replies = [], []

    def request_times():
        site.bells.rung = others
        replies.extend(site.deliver())

    limited(site, by="all", before=request_times, rate=1, per=10)
    site.bells.rung, others[:] = site.bells.rung[:1], site.bells.rung[1:]
    assert site.deliver() == [("a", "retrying")]
    assert replies == [("a", "limited"), ("a", "limited")]
    assert site.sweep(20) == [("a", "limited"), ("a", "limited")]

    words = [word for _, word in site.sweep(40)]
    assert sorted(words) == ["limited", "limited", "settled"]
    assert [len(site.sweep(seconds)) for seconds in (9, 1, 9, 1)] == [0, 1, 0, 1]


def test_a_longer_pause_stays(site):
    """A node does not end what an operator has paused for longer, and waits as long itself."""

    def put(change):
        site.store.do(ChangeLimit("model", change, "limit.changed", "limit:model"))

    pause = LimitPause("model:tag:tenant:x", ends_at=0)
    limited(site, before=lambda: put(lambda setting: setting.pause(pause)))
    assert sorted(site.deliver()) == [("a", "limited"), ("a", "retrying"), ("a", "settled")]
    assert site.sweep(60) == [("a", "limited")]

    put(lambda setting: setting.resume("model"))
    assert site.sweep(301) == [("a", "settled"), ("a", "settled")]


def test_a_limit_that_the_node_lacks_fails_it(site):
    """The error names the limits that it has; no retry policy applies."""
    run_id = site.start(
        ("a", raising(*[RetryAfter(5, limit="modle")] * 3)),
        limits=[Limit("model", concurrency=1)],
        retry=RetryPolicy(backoff=0),
    )

    assert site.deliver() == [("a", "settled")]
    error = str(read_run(site.store, run_id).nodes[0].error)
    assert "'modle'" in error
    assert "'model'" in error
