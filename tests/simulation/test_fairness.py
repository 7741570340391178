"""A thousand tenants in a model of a fleet: who waits for whom, and what the window of doorbells costs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from runner.limits.fairness import Share
from tests.simulation.fairness import (
    NOISY,
    TENANTS,
    Fleet,
    Setting,
    backlog,
    few_at_a_time,
    p95,
    shares,
    stream,
    use,
)
from tests.simulation.stride_queue import StrideQueue

SETTING = Setting()


@pytest.mark.full
def test_a_noisy_tenant_costs_the_others_little():
    """With 100 times the backlog of all others it adds a fifth to their wait at most; control: a queue."""
    alone = p95(backlog(SETTING, noise=0))
    in_order = backlog(replace(SETTING, fair=False), until=3 * alone)

    assert p95(backlog(SETTING)) <= 1.2 * alone
    assert p95(in_order, expected=len(TENANTS)) > 3 * alone


@pytest.mark.full
def test_weights_are_shares():
    """A key of weight 5 begins five times as often as one of 1; control: without weights as often."""
    both = {"gold": [0], "plain": [0]}
    weighted = shares(replace(SETTING, weights={"gold": 5}), both)
    equal = shares(SETTING, both)

    assert weighted["gold"] / weighted["plain"] == pytest.approx(5, rel=0.05)
    assert equal["gold"] / equal["plain"] == pytest.approx(1, rel=0.05)


def test_an_idle_key_begins_at_the_time_of_the_queue():
    """A key that had nothing to do gets its share from now on, and nothing for the time before."""
    queue = StrideQueue[int]()
    for number in range(2_000):
        queue.add(Share("ab"[number % 2], 1), number)
    for _ in range(1_500):
        queue.pop()
    for number in range(1_000):
        queue.add(Share("c", 1), number)

    assert Counter(key for key, _ in filter(None, (queue.pop() for _ in range(300))))[
        "c"
    ] == pytest.approx(100, abs=1)


@pytest.mark.full
def test_a_key_that_has_few_nodes_at_a_time_gets_no_more_than_its_share():
    """A key whose queue is often empty keeps its pass; control: one that forgets it gets thrice that."""
    share = 0.1 / 9.1

    assert few_at_a_time(forgets=False) == pytest.approx(share, rel=0.2)
    assert few_at_a_time(forgets=True) > 3 * share


@pytest.mark.full
def test_the_first_priority_comes_before_fairness():
    """While nodes of a more urgent priority are ready no other begins; control: in one priority both do."""
    urgent = shares(replace(SETTING, priorities=2), {"urgent": [0], "later": [1]})
    equal = shares(SETTING, {"urgent": [0], "later": [0]})

    assert urgent["later"] == 0
    assert equal["later"] == pytest.approx(0.5, rel=0.05)


@pytest.mark.full
def test_a_window_of_a_doorbell_a_slot_is_enough():
    """It keeps slots as busy as a wider one, which only adds waits; control: a quarter of it does not."""
    fleet = replace(SETTING, trip=1)
    small, enough, large = (use(replace(fleet, window=size)) for size in (0.25, 1, 4))
    waits = [p95(stream(replace(SETTING, window=size), 0.5, noise=True)) for size in (1, 4)]

    assert small < 0.9 * enough
    assert enough == pytest.approx(large, rel=0.01)
    assert 2 * waits[0] < waits[1]


@pytest.mark.full
def test_each_partition_gives_fair_shares_of_its_own():
    """Keys that are spread get their weights; one in one of four has a share of a quarter of the slots."""
    setting = replace(SETTING, partitions=4, weights={"gold": 5})
    spread = shares(setting, {"gold": range(4), "plain": range(4)})
    apart = shares(setting, {"gold": [0], "plain": range(4)})

    assert spread["gold"] == pytest.approx(5 / 6, rel=0.05)
    assert apart["gold"] == pytest.approx(5 / 6 / 4, rel=0.05)
    assert p95(backlog(replace(SETTING, partitions=4))) <= 1.2 * p95(
        backlog(replace(SETTING, partitions=4), noise=0)
    )


def test_lost_doorbells_leave_the_window():
    """What a dead worker had fetched begins after a lease; control: if that has no end, never."""
    setting = replace(SETTING, prefetch=4, trip=0.1, dies_at=1.0)
    begun = [
        len(Fleet(replace(setting, lease=lease), [(0.0, NOISY, 0, 2_000)]).run().waits[NOISY])
        for lease in (5.0, math.inf)
    ]

    assert begun[0] == 2_000 > begun[1]
