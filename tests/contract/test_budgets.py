"""The rule of budgets stands in Python and in a script: random requests hold the two equal."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from runner.records import budgets
from runner.records.budgets import COUNTERS, Spending, Tagged
from runner.store.interface import Start
from runner.store.memory.store import MemoryStore
from runner.store.requests import SpendBudget, StartRun
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
    run = ManualWorker(store, clock).start(shape("a"))
    store.do(
        SpendBudget(run, Tagged("customer", "ana", 60_000), Spending("a", "1", {"tokens": 1}))
    )
    [key] = [key.decode() for key in client.scan_iter("*budget:*")]

    assert type_in_dictionary(key) is not None
    assert 0 < client.pttl(key) <= 120_000
