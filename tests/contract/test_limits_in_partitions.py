"""Limits over several partitions: one of them counts a key for the runs of all, however a process dies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from runner.errors import StoreError
from runner.limits.limit import Limit
from runner.limits.setting import LimitPause
from runner.records.run import Status
from runner.store.addresses import partition_addresses
from runner.store.interface import Settlement
from runner.store.redis import layout
from runner.store.requests import ChangeLimit, ClaimVisit, RetryVisit, SettleVisit
from runner.testing import ManualClock
from tests.chaos.test_racing_answers import UncheckedScripts
from tests.contract.store.limits import ONE, SLOW, LimitContract, crowd, set_limit
from tests.contract.store.manual_worker import ManualWorker, shape, word_of
from tests.contract.test_partitions import partitioned

pytestmark = pytest.mark.full

GRAPH = crowd(ONE, names="a b")
"""Two nodes that share a limit of one."""


class Death(Exception):
    """The end of a process, in the middle of what it does."""


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(redis_url, other_url, clock):
    """A store on two servers that had one partition at first: that counts all keys."""
    with redis.Redis.from_url(redis_url) as client:
        client.rpush("runner:{p00}:partitions", 1, 2)
    store = partitioned([redis_url, other_url], clock)
    yield store
    store.close()


@pytest.fixture
def worker(store, clock):
    return ManualWorker(store, clock)


class TestLimitsCountedElsewhere(LimitContract):
    """All that is promised of limits, where another server than the run's counts their keys."""

    @pytest.fixture
    def worker(self, store, clock):
        store.partition = lambda *_: 1
        return ManualWorker(store, clock)


def before(partition, script, act, how=""):
    """Have something happen once before a partition runs a script."""
    run, acts = partition._scripts.run, [act]

    def act_and_run(name, _, *arguments, **options):
        if acts and name == script and how in ("", *arguments):
            acts.pop()()
        return run(name, partition.clock(), *arguments, **options)

    partition._scripts.run = act_and_run


def fail(error):
    raise error


def at_work(worker, run_id):
    """Count the nodes of a run that workers have."""
    nodes = worker.read(run_id).nodes.values()
    return sum(node.status is Status.RUNNING for node in nodes)


@pytest.mark.parametrize("counted", [True, False])
def test_runs_of_several_partitions_share_the_slots_of_a_key(store, worker, counted):
    """A slot that a run has is missing in all partitions; control: where each counts alone, both run."""
    for partition in store._partitions if not counted else ():
        partition.limits.home = lambda _: None
    one, other = (worker.start(GRAPH, beside=digits) for digits in ("00", "01"))
    for first, second in ((one, other), (other, one)):
        node = "a" if first == one else "b"
        token = worker.token(first, node)
        reply = store.do(ClaimVisit(second, node, 1, 1, worker.nonce()))
        assert word_of(reply) == ("limited" if counted else "claimed")
        if not counted:
            return
        assert [bell.run_id for bell in settle(store, worker, token)] == [second]
        settle(store, worker, worker.token(second, node))


def settle(store, worker, token):
    """Complete a visit; return the doorbells."""
    settlement = Settlement(Status.COMPLETED, "", None, {"v": 1})
    return store.do(SettleVisit(token, settlement, worker.nonce())).doorbells


def test_keys_are_counted_in_the_partitions_that_their_hashes_name(redis_url, other_url):
    """They spread over the partitions that there were at first, and stay where these become more."""
    urls = [redis_url, other_url, redis_url, other_url]
    homes = []
    for number in (2, 4):
        assert layout.record(partition_addresses(",".join(urls[:number]))) == ""
        store = partitioned(urls[:number])
        homes.append([store._layout.limit_home(f"key{each}") for each in range(32)])
        store.close()

    assert set(homes[0]) == {0, 1}
    assert homes[0] == homes[1]


@pytest.mark.parametrize("limit", [ONE, Limit("rare", rate=1, per=3600)])
def test_no_fewer_partitions_count_while_one_has_slots(redis_url, limit):
    """Fewer would count keys elsewhere; control: a node without limits refuses no smaller number."""
    where = partition_addresses(redis_url, 2)
    assert layout.record(where) == ""
    store = partitioned([redis_url] * 2)
    names = (f"{limit.name}{number}" for number in range(32))
    name = next(name for name in names if store._layout.limit_home(name) == 1)
    worker = ManualWorker(store)
    worker.token(worker.start("a", beside="00"), "a")
    assert layout.problem(where[:1]) == ""
    _, token = worker.begin(crowd(replace(limit, name=name), name="limited"), beside="00")

    assert "nodes run under limits that 2 partitions count" in layout.record(where[:1])
    worker.end(token)
    assert bool(layout.problem(where[:1])) is bool(limit.rate)
    store.close()


def test_a_slot_held_by_a_process_that_dies_is_free_after_a_lease(store, worker, clock):
    """Where no claim follows, the sweep of the key's partition returns the slot, and rings for the node."""
    run_id = worker.start(GRAPH, beside="01")
    before(store._partitions[1], "commit", lambda: fail(Death))
    with pytest.raises(Death):
        worker.claim(run_id, "a")
    worker.limited(run_id, "b")
    assert worker.sweep(after=29) == []
    worker.limited(run_id, "b")

    assert "b.1.1" in worker.sweep(after=1)
    worker.claim(run_id, "b")
    worker.limited(run_id, "a")


def test_a_slot_whose_return_was_lost_is_free_after_a_lease(store, worker):
    """Where a process dies between a settle and the return, a node that waits is rung for by a sweep."""
    run_id, token = worker.begin(GRAPH, beside="01")
    worker.limited(run_id, "b")
    before(store._partitions[0], "slot", lambda: fail(Death), how="drop")
    with pytest.raises(Death):
        worker.end(token)
    worker.limited(run_id, "b")

    assert "b.1.1" in worker.sweep(after=30)
    worker.claim(run_id, "b")


@pytest.mark.parametrize("read_later", [False, True])
@pytest.mark.parametrize("checked", [True, False])
def test_a_claim_that_comes_after_its_slot_was_returned_is_refused(
    store, worker, clock, checked, read_later
):
    """It is written within half a lease of the look before it held the slot; control: two nodes run."""
    home, other = store._partitions
    run_id = worker.start(GRAPH, beside="01")
    if read_later:
        # Its answers are read in a look of their own, after the slot is held.
        worker.answer(*worker.park(run_id, "a"))
    if not checked:
        deadline = "if before > 0 and now >= before then changed = true end"
        other._scripts = UncheckedScripts(other, "commit", ((deadline, ""),))

    def lose_the_slot():
        clock.advance(30)
        store._offer = lambda *_: ()  # who sweeps dies before it rings
        for _, name in home.sweep().fired:
            store._check_slot(home, name)
        worker.claim(run_id, "b")

    if read_later:
        before(home, "slot", lambda: before(other, "look", lose_the_slot), how="hold")
    else:
        before(other, "commit", lose_the_slot)
    reply = store.do(ClaimVisit(run_id, "a", 1, 1, worker.nonce()))

    assert word_of(reply) == ("limited" if checked else "claimed")
    assert at_work(worker, run_id) == (1 if checked else 2)


@pytest.mark.parametrize("checked", [True, False])
def test_a_slot_that_is_held_again_is_not_returned(store, worker, clock, checked):
    """A check that is late returns no slot that a new claim has; control: otherwise two nodes run."""
    home, other = store._partitions
    run_id = worker.start(GRAPH, beside="01")
    if not checked:
        version = "if how ~= 'leave' and ARGV[10] ~= ''"
        home._scripts = UncheckedScripts(
            home, "slot", ((version, "if false and ARGV[10] ~= ''"),)
        )
    before(other, "commit", lambda: fail(Death))
    with pytest.raises(Death):
        worker.claim(run_id, "a")
    before(home, "slot", lambda: worker.claim(run_id, "a"), how="drop")
    clock.advance(30)
    for _, name in home.sweep().fired:
        store._check_slot(home, name)

    reply = store.do(ClaimVisit(run_id, "b", 1, 1, worker.nonce()))
    assert word_of(reply) == ("limited" if checked else "claimed")
    assert at_work(worker, run_id) == (1 if checked else 2)


def test_two_claims_of_one_visit_hold_one_slot(store, worker):
    """A doorbell that came twice takes no slot of another node: with two slots two nodes run."""
    run_id = worker.start(crowd(Limit("two", concurrency=2), names="a b c"), beside="01")
    before(store._partitions[1], "commit", lambda: worker.claim(run_id, "a"))
    assert word_of(store.do(ClaimVisit(run_id, "a", 1, 1, worker.nonce()))) == "stale"
    worker.claim(run_id, "b")
    worker.limited(run_id, "c")


@pytest.mark.parametrize("script", ["slot", "reserve"])
def test_nodes_of_a_key_wait_while_its_server_is_away(store, worker, script):
    """Others go on, also in the same run; when it is back, so do those that waited."""
    limit = ONE if script == "slot" else SLOW
    run_id = worker.start(shape("a b", limits={"a": [limit]}), beside="01")
    before(store._partitions[0], script, lambda: fail(StoreError("away")))
    worker.limited(run_id, "a")
    worker.claim(run_id, "b")
    assert worker.statuses(run_id) == "executing: a ready, b running"

    assert "a.1.1" in worker.sweep(after=30)
    worker.claim(run_id, "a")


def test_a_slot_is_returned_when_the_server_of_its_key_is_back(store, worker):
    """A node ends while that is away: the settle holds, and the slot is free after a lease."""
    run_id, token = worker.begin(GRAPH, beside="01")
    before(store._partitions[0], "slot", lambda: fail(StoreError("away")), how="drop")
    assert worker.end(token) == []
    assert worker.read(run_id).nodes["a"].status is Status.COMPLETED

    worker.sweep(after=30)
    worker.claim(run_id, "b")


def test_what_is_set_of_a_limit_holds_in_every_partition(store, worker, redis_url):
    """A pause stops its nodes in all; a partition that comes later gets it when a graph is published."""
    runs = [worker.start(GRAPH, beside=digits) for digits in ("00", "01")]
    set_limit(store, "one", lambda setting: setting.pause(LimitPause("one", 0)))
    for run_id in runs:
        worker.limited(run_id, "a")
    store._partitions[1].connection.call("DEL", "runner:{p01}:limits")
    store.publish([GRAPH])
    worker.limited(runs[1], "a")

    set_limit(store, "one", lambda setting: setting.resume("one"))
    assert worker.sweep() == ["a.1.1", "b.1.1"] * 2
    worker.claim(runs[1], "a")


def test_a_node_that_was_refused_pauses_its_key_in_every_partition(store, worker):
    """Where a node is retried later with the name of a limit, no run starts one under it until then."""
    one, other = (worker.start(GRAPH, beside=digits) for digits in ("00", "01"))
    token = worker.token(other, "a")
    store.do(RetryVisit(token, 60_000, None, None, reason="429", limit="one"))
    worker.limited(one, "a")
    worker.sweep(after=59)
    worker.limited(one, "a")

    assert "a.1.1" in worker.sweep(after=1)
    worker.claim(one, "a")


@pytest.mark.parametrize("twice", [False, True])
def test_a_node_that_waits_for_one_limit_has_no_slot_of_a_later_one(redis_url, clock, twice):
    """What a claim held elsewhere is free at once; control: not what another claim of the visit may use."""
    layout.record(partition_addresses(redis_url, 2))
    store = partitioned([redis_url] * 2, clock)
    worker = ManualWorker(store, clock)
    here, elsewhere = (
        next(name for name in names if store._layout.limit_home(name) == home)
        for home, names in (
            (1, map("a{}".format, range(32))),
            (0, map("b{}".format, range(32))),
        )
    )
    both = [Limit(here, concurrency=1), Limit(elsewhere, concurrency=2)]
    graph = shape("x y z", limits={"x": both, "y": both, "z": both[1:]})
    run_id = worker.start(graph, beside="01")
    worker.claim(run_id, "x")
    if twice:
        before(store._partitions[1], "commit", lambda: fail(Death))
        with pytest.raises(Death):
            worker.claim(run_id, "y")
    worker.limited(run_id, "y")

    reply = store.do(ClaimVisit(run_id, "z", 1, 1, worker.nonce()))
    assert word_of(reply) == ("limited" if twice else "claimed")
    store.close()


def test_a_retry_renews_no_pause_that_is_being_ended(store, worker):
    """Only its own pause goes to the other partitions: another may have been resumed there by then."""
    one, other = (worker.start(GRAPH, beside=digits) for digits in ("00", "01"))
    token = worker.token(one, "a")
    set_limit(store, "one", lambda setting: setting.pause(LimitPause("one", 0)))
    resume = ChangeLimit("one", lambda setting: setting.resume("one"), "", "")
    store._partitions[1].do(resume)
    store.do(RetryVisit(token, 60_000, None, None, reason="429", limit="one"))
    store._partitions[0].do(resume)

    worker.claim(other, "a")


def damage(store, run_id, node):
    """Have a node be damaged; return what heals it."""
    key, field = f"runner:{{p{run_id[:2]}}}:r:{run_id}", f"n:{node}"
    text = store.partition_of(run_id).connection.call("HGET", key, field)
    store.partition_of(run_id).connection.call("HSET", key, field, "damaged")
    return lambda: store.partition_of(run_id).connection.call("HSET", key, field, text)


@pytest.mark.parametrize("digits", ["00", "01"])
def test_a_damaged_node_that_is_offered_a_slot_disturbs_no_settle(store, worker, digits):
    """The run of another node that returns a slot goes on, and so does the key after a lease."""
    one, other = worker.start(GRAPH, beside="00"), worker.start(GRAPH, beside=digits)
    token = worker.token(one, "a")
    worker.limited(other, "a")
    damage(store, other, "a")

    assert worker.end(token) == []
    worker.sweep(after=30)
    worker.claim(one, "b")


def test_a_damaged_node_that_has_a_slot_stops_no_sweep(store, worker):
    """What is due for others is done; its slot stays taken as long as it may run."""
    one, run_id = worker.start("x", beside="00"), worker.start(GRAPH, beside="01")
    token = worker.token(run_id, "a")
    heal = damage(store, run_id, "a")
    worker.token(one, "x")
    assert worker.sweep(after=30) == ["x.1.2", "b.1.1"]
    worker.limited(run_id, "b")

    heal()
    assert worker.end(token) == ["b.1.1"]


def test_a_slot_that_was_kept_for_minutes_costs_a_lease_no_more_than_others(store, worker):
    """A node keeps one while it waits for a later limit; once it has run, a lost return costs a lease."""
    limits = [Limit("first", concurrency=1), Limit("second", concurrency=1)]
    nodes = {"a": limits, "b": limits[1:], "c": limits[:1]}
    run_id, token = worker.begin(shape("a b c", limits=nodes), beside="01", node="b")
    worker.limited(run_id, "a")
    assert worker.end(token) == ["a.1.1"]
    token = worker.token(run_id, "a")
    worker.limited(run_id, "c")
    before(store._partitions[0], "slot", lambda: fail(Death), how="drop")
    with pytest.raises(Death):
        worker.end(token)

    assert "c.1.1" in worker.sweep(after=30)
    worker.claim(run_id, "c")


def test_a_slot_stays_with_a_node_that_runs_for_long(store, worker, clock):
    """A check at the end of each lease finds it at work; its lease is renewed as ever."""
    run_id, token = worker.begin(GRAPH, beside="01")
    for _ in range(10):
        clock.advance(15)
        store.renew([token])
        store.sweep()
        worker.limited(run_id, "b")

    assert worker.end(token) == ["b.1.1"]


def test_a_slot_kept_for_a_node_that_comes_late_is_free_once(store, worker, clock):
    """A lease later one other node gets it, whether that asks before the sweep that returns it or after."""
    run_id, token = worker.begin(crowd(ONE, names="a b c d"), beside="01")
    for node in "bcd":
        worker.limited(run_id, node)
    assert worker.end(token) == ["b.1.1"]
    clock.advance(30)
    store.do(ClaimVisit(run_id, "c", 1, 1, worker.nonce()))

    worker.sweep()
    for node in "bcd":
        store.do(ClaimVisit(run_id, node, 1, 1, worker.nonce()))
    assert at_work(worker, run_id) == 1
