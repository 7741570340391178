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
from tests.contract.store.stories import Story, stories, tell
from tests.contract.test_partitions import partitioned

pytestmark = pytest.mark.full

FIRST, SECOND = Limit("first", concurrency=1), Limit("second", concurrency=1)
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


class Elsewhere(Story):
    """A run in the second partition, whose keys the first one counts."""

    def __init__(self, worker, graph):
        super().__init__(worker)
        self.graph, self.runs[""] = graph, worker.start(graph, beside="01")

    def near(self, name):
        """Begin a run in the first partition."""
        self.runs[f"{name}/"] = self.worker.start(self.graph, beside="00")
        return ""

    def do(self, request):
        try:
            return super().do(request)
        except Death:
            return "died"

    def settle(self, claimed, edges=None):
        try:
            return super().settle(claimed, edges)
        except Death:
            return "died"

    def dies(self, partition, script, how=""):
        """Have the process die before a script of a partition runs next."""
        before(self.store._partitions[int(partition)], script, lambda: fail(Death), how)
        return ""

    def away(self, partition, script, how=""):
        """Have a partition be away when a script of it is to run next."""
        away = StoreError("away")
        before(self.store._partitions[int(partition)], script, lambda: fail(away), how)
        return ""

    def meanwhile(self, partition, script, verb, *words):
        before(
            self.store._partitions[int(partition)], script, lambda: getattr(self, verb)(*words)
        )
        return ""

    def refused(self, claimed):
        self.do(RetryVisit(self.claims[claimed].token, 60_000, None, None, "429", "one"))
        return ""

    def damage(self, address):
        damage(self.store, *self.at(address)[:2])
        return ""

    def swept(self, seconds, *names):
        """Look for visits among those that a sweep rings for."""
        assert set(names) <= set(self.worker.sweep(after=float(seconds)))
        return ""


AWAY = """
    away 0 {}
    claim a = limited
    claim b
    stands = executing: a ready, b running
    swept 30 a.1.1
    claim a
"""

STORIES = {
    "a slot held by a process that dies is free after a lease": (
        GRAPH,
        """
        dies 1 commit
        claim a = died
        claim b = limited
        sweep 29
        claim b = limited
        swept 1 b.1.1
        claim b
        claim a = limited
        """,
    ),
    "a slot whose return was lost is free after a lease": (
        GRAPH,
        """
        claim a
        claim b = limited
        dies 0 slot drop
        settle a = died
        claim b = limited
        swept 30 b.1.1
        claim b
        """,
    ),
    "two claims of one visit hold one slot": (
        crowd(Limit("two", concurrency=2), names="a b c"),
        """
        meanwhile 1 commit claim a
        claim a = stale
        claim b
        claim c = limited
        """,
    ),
    "nodes of a key wait while its server is away": (
        shape("a b", limits={"a": [ONE]}),
        AWAY.format("slot"),
    ),
    "nodes of a rate wait while its server is away": (
        shape("a b", limits={"a": [SLOW]}),
        AWAY.format("reserve"),
    ),
    "a slot is returned when the server of its key is back": (
        GRAPH,
        """
        claim a
        away 0 slot drop
        settle a
        rings
        stands = executing: a completed, b ready
        swept 30
        claim b
        """,
    ),
    "a node that was refused pauses its key in every partition, until its time": (
        GRAPH,
        """
        near one
        claim a
        refused a
        claim one/a = limited
        swept 59
        claim one/a = limited
        swept 1 a.1.1
        claim one/a
        """,
    ),
    "a damaged node that is offered a slot disturbs no settle": (
        GRAPH,
        """
        near one
        claim one/a
        claim a = limited
        damage a
        settle one/a
        rings
        swept 30
        claim one/b
        """,
    ),
    "nor does one in the partition of the key": (
        GRAPH,
        """
        near one
        near other
        claim one/a
        claim other/a = limited
        damage other/a
        settle one/a
        rings
        swept 30
        claim one/b
        """,
    ),
    "a slot that was kept for minutes costs a lease no more than others, once its return is lost": (
        shape("a b c", limits={"a": [FIRST, SECOND], "b": [SECOND], "c": [FIRST]}),
        """
        claim b
        claim a = limited
        settle b
        rings = a.1.1
        claim a
        claim c = limited
        dies 0 slot drop
        settle a = died
        swept 30 c.1.1
        claim c
        """,
    ),
    "a slot stays with a node that runs for long": (
        GRAPH,
        """
        claim a
        wait 15
        renew a = ok
        swept 0
        claim b = limited
        wait 15
        renew a = ok
        swept 0
        claim b = limited
        wait 15
        renew a = ok
        swept 0
        claim b = limited
        settle a
        rings = b.1.1
        """,
    ),
}


@stories(STORIES)
def test_slots_are_counted_elsewhere_as_its_story_says(worker, graph, story):
    """Whoever dies, is away or is damaged: each slot is free again after a lease, and for one node."""
    tell(Elsewhere(worker, graph), story)


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
