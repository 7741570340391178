"""A freeze stops every effect of a graph, of a tool or all; nothing is lost, and a thaw lets all go on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner import Agent, Status, graph, tool
from runner.agent.models.scripted import ScriptedModel
from runner.approvals import Rule, freezes, freezing
from runner.approvals.freezes import scope_of
from runner.definition.registry import Registry
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.execution import engine as engine_module
from runner.execution.engine import Engine
from runner.limits.fairness import Fairness
from runner.operations.answers import apply_decisions
from runner.operations.views import read_run
from runner.records.interrupts import Decision
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from tests.agent.visits import use
from tests.graphs import single, wired
from tests.simulation.stride_queue import UNKNOWN_WINDOW
from tests.waiting import wait_until


class Bells:
    """Keeps what was rung, as programs without a broker do."""

    def __init__(self):
        self.rung = []

    def ring(self, doorbells):
        """Note each."""
        self.rung += doorbells

    def call(self, task, kwargs, task_id):
        """Nobody is called here."""
        raise NotImplementedError


CALLS = []


@tool
def refund(order: str) -> str:
    """Pay back."""
    CALLS.append(order)
    return f"paid {order}"


def paying(call=refund):
    agent = Agent("pay", ScriptedModel([use("refund", order="7"), "done"]), [call])
    return wired({"pay": agent}).build()


def approved():
    return paying(tool(approval=Rule())(refund.function))


def asking():
    return single(lambda ctx: ctx.interrupt("ok?"))


def in_turns():
    return single(lambda ctx: "done", queue="shared")


def careful():
    return single(lambda ctx: ctx.once("pay", lambda: CALLS.append("once") or "paid"))


def delegating():
    """A function, and a tool of an agent, that call an agent themselves."""

    @tool
    def ask_clerk() -> str:
        """Have the clerk do it."""
        clerk = Agent("clerk", ScriptedModel([use("refund", order="7"), "done"]), [refund])
        return str(clerk("pay").message)

    boss = Agent("boss", ScriptedModel([use("ask_clerk"), "done"]), [ask_clerk])
    return wired({"a": lambda ctx: ask_clerk(), "b": boss}).build()


def inline():
    """A function that runs a graph itself."""
    return single(lambda ctx: str(paying()("pay").status))


def around(make, node):
    """A graph with another one in it, at this node."""
    return lambda: wired({node: make()}).build()


settled = graph("settlements")(paying)
"""What the decorator returns: other factories call it to put the registered graph into theirs."""

GRAPHS = {
    "pay": paying,
    "ask": asking,
    "careful": careful,
    "gated": approved,
    "delegating": delegating,
    "inline": inline,
    "orders": around(around(paying, "refunds"), "after"),
    "shop": around(settled, "settle"),
}


class Site:
    """An engine on a store, and what it rings for."""

    def __init__(self, store, clock):
        self.store, self.clock, self.bells = store, clock, Bells()
        self.engine = self.another()

    def another(self):
        """Make the engine of another process."""
        registry = Registry()
        for name, factory in GRAPHS.items():
            registry.add(name, factory)
        for name in ("turns", "other turns"):
            registry.add(name, in_turns, fairness=Fairness("tag:tenant"))
        return Engine(self.store, self.bells, registry)

    def deliver(self, engine=None):
        """Deliver everything that was rung; return the words."""
        rung, self.bells.rung = self.bells.rung, []
        visits = [(bell.run_id, bell.node, bell.visit, bell.attempt) for bell in rung]
        return [(engine or self.engine).deliver(*visit).word for visit in visits]

    def sweep(self, seconds):
        """Let time pass, and do what is due."""
        self.clock.advance(seconds)
        self.engine.sweep()
        return self.deliver()


@pytest.fixture
def site(in_redis, monkeypatch):
    """A site whose every process looks each time."""
    monkeypatch.setattr(freezes, "LOOK_EVERY", 0.0)
    CALLS.clear()
    clock = ManualClock()
    return Site(in_redis(clock), clock)


@pytest.mark.full
@pytest.mark.parametrize("scope", ["graph:pay", "all"])
def test_nodes_of_a_frozen_graph_are_not_claimed(site, scope):
    """Its doorbells come to nothing, in any process; after the thaw the next sweep starts what waited."""
    freezing.freeze(site.engine, scope, "fraud", "ana")
    run_id = site.engine.start("pay", "go")

    assert site.deliver(site.another()) == ["frozen"]
    assert site.store.read(run_id).nodes["pay"].status is Status.READY
    assert "fraud" in read_run(site.store, run_id).frozen
    assert site.sweep(31) == ["frozen"]  # its doorbell rings on

    freezing.thaw(site.engine, scope, "all is well", "ana")
    assert CALLS == []
    assert site.sweep(0) == ["settled"]
    assert (CALLS, site.store.peek(run_id).status) == (["7"], Status.COMPLETED)
    assert read_run(site.store, run_id).frozen == ""


def test_a_frozen_graph_keeps_no_other_of_its_queue_waiting(site):
    """Where both take turns, its doorbells leave the window; control: before, others wait."""
    freezing.freeze(site.engine, "graph:turns", "fraud")
    for _ in range(UNKNOWN_WINDOW):
        site.engine.start("turns", "go")
    run_id = site.engine.start("other turns", "go")
    assert run_id not in {bell.run_id for bell in site.bells.rung}

    assert site.deliver() == ["frozen"] * UNKNOWN_WINDOW
    assert site.deliver() == ["settled"]
    assert site.store.peek(run_id).status is Status.COMPLETED


def test_a_thaw_counts_at_once(site, monkeypatch):
    """A process that has looked just before it does not let the doorbell pass that the thaw rings."""
    other = site.another()
    freezing.freeze(site.engine, "graph:pay", "fraud")
    other.freezes.refresh()
    monkeypatch.setattr(freezes, "LOOK_EVERY", 3600.0)
    site.engine.start("pay", "go")
    assert site.deliver(other) == ["frozen"]

    freezing.thaw(site.engine, "graph:pay", "all is well")
    site.engine.sweep()
    assert site.deliver(other) == ["settled"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("orders", "orders"),
        ("orders", "orders/after"),
        ("orders", "after"),
        ("orders", "refunds"),
        ("orders", "orders/after/refunds"),
        ("shop", "settle"),
        ("shop", "settlements"),
    ],
)
def test_a_nested_graph_is_frozen_by_any_name_on_its_path(site, name, scope):
    """By the graph around it, by its node, by the whole path, and by the name that it is registered under."""
    freezing.freeze(site.engine, scope_of(scope), "fraud", force=True)
    site.engine.start(name, "go")
    for _ in range(4):
        site.sweep(31)
    assert CALLS == []

    freezing.thaw(site.engine, scope_of(scope), "over")
    for _ in range(4):
        site.sweep(31)
    assert CALLS == ["7"]


@pytest.mark.full
@pytest.mark.parametrize(
    "scope", ["graph:setlements", "graph:order", "tool:refnd", "tool:refund ", "graph:Pay"]
)
def test_a_freeze_of_a_name_that_nothing_has_is_an_error(site, scope):
    """Nothing is frozen, and the nearest name is said; with force it is frozen all the same."""
    site.engine.start("orders", "go")
    with pytest.raises(NotFoundError, match=r"Did you mean '(settlements|orders|refund|pay)'"):
        freezing.freeze(site.engine, scope, "fraud")
    assert site.store.frozen() == {}
    freezing.freeze(site.engine, scope, "fraud", force=True)
    assert list(site.store.frozen()) == [scope]


@pytest.mark.parametrize(
    "scope", ["graph:settlements", "graph:orders/after", "graph:refunds", "tool:refund", "all"]
)
def test_a_freeze_of_a_name_that_something_has_needs_no_force(site, monkeypatch, scope):
    """Names of graphs, of those inside others, and of agents' tools are known where their code is."""
    monkeypatch.setitem(GRAPHS, "settlements", settled)
    freezing.freeze(site.another(), scope, "fraud")
    assert list(site.store.frozen()) == [scope]


def test_other_graphs_go_on(site):
    """A freeze of one graph holds for no other."""
    freezing.freeze(site.engine, "graph:ask", "fraud")
    run_id = site.engine.start("pay", "go")

    assert site.deliver() == ["settled"]
    assert site.store.peek(run_id).status is Status.COMPLETED


def test_a_frozen_tool_is_not_called_and_its_node_waits(site):
    """The model is not asked again, no attempt is counted, and after the thaw the call is made once."""
    freezing.freeze(site.engine, "tool:refund", "wrong amounts")
    run_id = site.engine.start("pay", "go")

    assert site.deliver() == ["retrying"]
    assert site.sweep(16) == ["retrying"]
    assert CALLS == []
    assert read_run(site.store, run_id).frozen == "tool:refund is frozen: wrong amounts"
    freezing.thaw(site.engine, "tool:refund", "fixed")
    assert read_run(site.store, run_id).frozen == ""
    assert site.sweep(16) == ["settled"]

    result = site.store.read(run_id, messages=True)
    assert (CALLS, result.record.status) == (["7"], Status.COMPLETED)
    assert [message["role"] for message in result.messages["pay"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_frozen_tool_is_not_called_by_an_agent_that_code_calls(site, is_frozen):
    """Neither a function nor a tool passes a freeze by an agent of its own; the control is not frozen."""
    site.engine.start("delegating", "go")
    if is_frozen:
        freezing.freeze(site.engine, "tool:refund", "wrong")

    words = site.deliver()

    assert (words, CALLS) == (
        (["retrying"] * 2, []) if is_frozen else (["settled"] * 2, ["7"] * 2)
    )


@pytest.mark.slow
def test_a_graph_that_code_runs_in_process_waits_for_the_thaw(site, monkeypatch):
    """The node that runs it looks again until the tool may be called, and then calls it once."""
    monkeypatch.setattr(engine_module, "WAIT_MS", 10)
    looks, read = [], site.engine.freezes._read
    monkeypatch.setattr(site.engine.freezes, "_read", lambda: looks.append(1) or read())
    site.engine.start("inline", "go")
    freezing.freeze(site.engine, "tool:refund", "wrong")
    with ThreadPoolExecutor() as pool:
        delivery = pool.submit(site.deliver)
        wait_until(lambda: len(looks) > 10 or delivery.done(), "it has looked again")
        assert CALLS == []
        freezing.thaw(site.engine, "tool:refund", "right")

        assert (delivery.result(30), CALLS) == (["settled"], ["7"])


def test_an_effect_of_a_running_function_waits(site):
    """What `once` would do is not begun in a graph that was frozen after its node had started."""
    run_id = site.engine.start("careful", "go")
    engine = site.another()
    known = engine.freezes.of
    engine._is_frozen = lambda *visit: False  # it was claimed just before
    freezing.freeze(site.engine, "graph:careful", "wrong")

    assert site.deliver(engine) == ["retrying"]
    assert CALLS == []
    assert known("careful") is not None
    freezing.thaw(site.engine, "graph:careful", "right")
    assert site.sweep(16) == ["settled"]
    assert (CALLS, site.store.peek(run_id).status) == (["once"], Status.COMPLETED)


def test_questions_are_answered_meanwhile_and_receipts_say_so(site):
    """An answer to a frozen graph is taken; its receipt says why nothing happens yet."""
    run_id = site.engine.start("ask", "go")
    site.deliver()
    (question,) = site.store.read(run_id).interrupts
    freezing.freeze(site.engine, "graph:ask", "fraud")
    (receipt,) = apply_decisions(site.engine, [Decision(question.id, "yes")])

    assert receipt.status == "accepted"
    assert "graph:ask is frozen: fraud" in receipt.detail
    assert site.deliver() == ["frozen"]
    freezing.thaw(site.engine, "graph:ask", "over")
    assert site.sweep(0) == ["settled"]


def test_a_vote_on_a_call_of_a_frozen_tool_says_so(site):
    """The receipt of the vote that decides has what keeps the call from being made."""
    run_id = site.engine.start("gated", "go")
    site.deliver()
    (question,) = site.store.read(run_id).interrupts
    freezing.freeze(site.engine, "tool:refund", "fraud")
    vote = Decision(question.id, None, "ana", decision="approve")
    (receipt,) = apply_decisions(site.engine, [vote])

    assert (receipt.status, receipt.detail) == ("accepted", "tool:refund is frozen: fraud")
    assert (site.deliver(), CALLS) == (["retrying"], [])
    freezing.thaw(site.engine, "tool:refund", "over")
    assert (site.sweep(16), CALLS) == (["settled"], ["7"])


def test_a_freeze_is_noticed_and_audited(site):
    """Notices and the audit have what was frozen, by whom, and that it ended; the reason by its hash."""
    freezing.freeze(site.engine, "tool:refund", "fraud", "ana")
    freezing.thaw(site.engine, "tool:refund", "over", "ben")
    store = site.store

    notices = [
        {name.decode(): value.decode() for name, value in fields.items()}
        for _, fields in store.connection.client.xrange("runner:{p00}:notices")
    ]
    entries = [json.loads(raw) for _, raw in store.audit_logs[0].kept()]
    assert [(notice["kind"], notice["detail"]) for notice in notices] == [
        ("effects.frozen", "tool:refund"),
        ("effects.thawed", "tool:refund"),
    ]
    assert [(entry["type"], entry["actor"], entry["outcome"]) for entry in entries] == [
        ("frozen", "human:|ana", {"scope": "tool:refund"}),
        ("thawed", "human:|ben", {"scope": "tool:refund"}),
    ]
    assert "fraud" not in json.dumps(entries)


def test_a_freeze_needs_a_reason_and_a_scope(site):
    """Without a reason nothing is frozen or thawed; nor twice, nor what is not frozen."""
    with pytest.raises(UsageError):
        freezing.freeze(site.engine, "all", " ")
    with pytest.raises(NotFoundError):
        freezing.thaw(site.engine, "all", "why")
    freezing.freeze(site.engine, "all", "why")
    with pytest.raises(ConflictError):
        freezing.freeze(site.engine, "all", "another")
    with pytest.raises(UsageError):
        freezing.thaw(site.engine, "all", "")
    with pytest.raises(UsageError):
        scope_of("a graph", "a tool")
    assert list(site.store.frozen()) == ["all"]


def test_control_without_the_looks_the_effect_happens(site, monkeypatch):
    """Control: an engine that does not look claims the node and calls the tool."""
    monkeypatch.setattr(freezes.Freezes, "known", {})
    freezing.freeze(site.engine, "all", "fraud")
    site.engine.start("pay", "go")

    assert site.deliver() == ["settled"]
    assert CALLS == ["7"]


def test_a_process_looks_at_most_every_few_seconds(redis_url):
    """What a look costs does not depend on the number of nodes: one read in five seconds of work."""
    store = RedisStore(redis_url, push=False)
    looks = []

    def counted():
        looks.append(1)
        return store.frozen()

    known = freezes.Freezes(counted)
    for _ in range(1_000):
        known.check("pay", "refund")

    assert len(looks) == 1
    store.close()
