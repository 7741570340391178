"""The rule of budgets stands in Python and in a script: random requests hold the two equal."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from runner import Agent, Budget, GraphBuilder, tool
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.answers import apply_decisions
from runner.records import budgets
from runner.records.budgets import COUNTERS, Spending, Tagged
from runner.records.interrupts import Decision
from runner.store.interface import Start
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.store.requests import CancelRun, SpendBudget, StartRun
from runner.testing import ScriptedModel
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.key_dictionary import type_in_dictionary

spendings = st.builds(
    Spending,
    who=st.sampled_from("ab"),
    nonce=st.sampled_from("123"),
    amounts=st.dictionaries(st.sampled_from(COUNTERS), st.integers(-3, 9), max_size=3),
    bounds=st.dictionaries(st.sampled_from(COUNTERS), st.integers(1, 12), max_size=2),
    raises=st.dictionaries(
        st.sampled_from(["q1", "q2"]),
        st.tuples(st.sampled_from(COUNTERS), st.integers(1, 4)),
        max_size=2,
    ),
)

requests = st.lists(st.tuples(st.booleans(), spendings, st.integers(0, 30)), max_size=12)

GRAPH = shape("a")

fresh = itertools.count()


class Desk:
    """An engine on a store, and agents that begin together: their budget has two model calls for each."""

    def __init__(self, store, per, count):
        self.store, self.bells, registry = store, [], Registry()
        registry.add("desk", lambda: self.graph(per, count))
        self.engine = Engine(store, self, registry)
        self.engine.publish(["desk"])

    def graph(self, per, count):
        @tool
        def note() -> str:
            """Note it."""
            return "noted"

        builder, budget = GraphBuilder(), Budget(per=per, model_calls=2 * count, over="ask")
        for number in range(count):
            replies = [[{"toolUse": {"name": "note", "input": {}}}]] * 3
            model = ScriptedModel([*replies, "done"])
            agent = Agent(f"agent{number}", model, tools=[note], budgets=[budget])
            builder.add_node(agent, f"n{number}")
            builder.set_entry_point(f"n{number}")
        return builder.build()

    def ring(self, bells):
        self.bells += bells

    def go_on(self):
        """Run all that is ready, and return the open questions."""
        while self.bells:
            bell = self.bells.pop(0)
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
        return list(self.store.open_interrupts().items)

    def answer(self, question, response):
        """Answer a question, and run all that is ready."""
        apply_decisions(self.engine, [Decision(question.id, response, "ana")])
        return self.go_on()


def difference(store, clock, drawn):
    """Make the same requests of both stores, and return the first replies that differ.

    They begin with a window: which of them it has depends on what was drawn alone.
    """
    clock.advance(-clock() % 60_000 / 1000)
    tagged = Tagged("team", f"é: {{x}} {next(fresh)}", 60_000)
    stores = [MemoryStore(clock=clock), store]
    run_id = f"00run{next(fresh)}"
    for one in stores:
        one.publish([GRAPH])
        one.do(StartRun(Start(run_id, "g", GRAPH.fingerprint, None)))
    for of_tag, spending, seconds in drawn:
        sum_of = tagged if of_tag else None
        replies = [
            (one.do(SpendBudget(run_id, sum_of, spending)), one.spent(run_id, sum_of))
            for one in stores
        ]
        if replies[0] != replies[1]:
            return replies
        clock.advance(seconds)
    return None


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(drawn=requests)
def test_both_stores_count_alike(store, clock, drawn):
    """Any requests get the same replies from both, and leave the same sums."""
    assert difference(store, clock, drawn) is None


@pytest.mark.full
@pytest.mark.parametrize("forgotten", ["nonce", "raises", "bounds"])
def test_a_rule_that_stands_otherwise_is_found(store, clock, monkeypatch, forgotten):
    """The control: where memory forgets a part of the rule, some requests show it."""
    rule = budgets.add

    def without(fields, spending):
        changed = {"nonce": f"{next(fresh)}", "raises": {}, "bounds": {}}[forgotten]
        parts = {
            name: getattr(spending, name)
            for name in ("who", "nonce", "amounts", "bounds", "raises")
        }
        return rule(fields, Spending(**parts | {forgotten: changed}))

    monkeypatch.setattr(budgets, "add", without)

    assert find(
        requests,
        lambda drawn: difference(store, clock, drawn) is not None,
        settings=settings(phases=[Phase.generate], max_examples=1000),
    )


def test_the_sum_of_a_tag_is_in_the_dictionary_and_goes_away(store, client, clock):
    """Its key has a name that is declared, and an end."""
    run = ManualWorker(store, clock).start("a")
    store.do(
        SpendBudget(run, Tagged("customer", "ana", 60_000), Spending("a", "1", {"tokens": 1}))
    )
    [key] = [key.decode() for key in client.scan_iter("*budget:*")]

    assert type_in_dictionary(key) is not None
    assert 0 < client.pttl(key) <= 120_000


@pytest.mark.full
@pytest.mark.parametrize(("per", "count", "runs"), [("run", 3, 1), ("tag:team", 1, 2)])
def test_one_question_raises_a_sum_for_nodes_and_runs(redis_url, per, count, runs):
    """Agents of one run, or of runs with one tag, ask once, and all of them go on with the answer."""
    store = RedisStore(redis_url, push=False)
    desk = Desk(store, per, count)
    run_ids = [desk.engine.start("desk", "go", tags={"team": "red"}) for _ in range(runs)]
    (asked,) = desk.go_on()
    (again,) = desk.answer(asked, {"raise_by": 1})

    statuses = [str(store.peek(run_id).status) for run_id in run_ids]
    assert (again.reason["spent"], again.reason["limit"]) == (2 * count + 1, 2 * count + 1)
    assert statuses == ["interrupted"] * runs
    assert desk.answer(again, {"raise_by": 100}) == []
    assert {str(store.peek(run_id).status) for run_id in run_ids} == {"completed"}
    store.close()


@pytest.mark.full
def test_who_waits_for_a_question_asks_when_that_has_no_answer(redis_url, clock):
    """Its run was cancelled: after some minutes one that waits looks, and asks in its place."""
    store = RedisStore(redis_url, push=False, clock=clock)
    desk = Desk(store, "tag:team", 1)
    first, second = (desk.engine.start("desk", "go", tags={"team": "red"}) for _ in range(2))
    (asked,) = desk.go_on()
    other = second if asked.run_id == first else first
    desk.engine.do(CancelRun(asked.run_id, "no more"))
    assert desk.go_on() == []
    clock.advance(600)
    desk.engine.sweep(50)
    (again,) = desk.go_on()

    assert again.run_id == other
    assert desk.answer(again, {"raise_by": 100}) == []
    assert str(store.peek(other).status) == "completed"
    store.close()
