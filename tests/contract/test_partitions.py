"""Several partitions are one store: what concerns a run is asked of its own, and the rest of all."""

from __future__ import annotations

import functools
import itertools
import socket
from contextlib import closing, nullcontext, suppress

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from runner.celery.threads import Sealer
from runner.client import SweeperDispatcher
from runner.definition.registry import Registry
from runner.errors import ConflictError, StoreError, UsageError
from runner.execution.engine import Engine
from runner.limits.concurrency import Admission, Concurrency
from runner.limits.limit import Limit
from runner.operations.recovery import write_retry
from runner.records.checkpoints import Session, SessionUpdate
from runner.records.interrupts import Decision
from runner.records.listings import RunSummary, cursor_of, cut, position_in
from runner.records.run import Status
from runner.settings import Settings
from runner.store.addresses import partition_addresses
from runner.store.interface import Start, Token
from runner.store.redis import layout
from runner.store.redis.dead_letters import DeadLetters
from runner.store.redis.keys import Keys
from runner.store.redis.partitions import PartitionedStore, merged, open_store
from runner.store.redis.store import RedisStore
from runner.store.requests import (
    AnswerQuestions,
    CancelRun,
    FreezeScope,
    ShareSlots,
    StartRun,
    ThawScope,
)
from runner.testing import ManualClock
from tests.celery import graphs
from tests.chaos.transitions import Walk
from tests.contract.store import StoreContract
from tests.contract.store.manual_worker import ManualWorker, saved, shape
from tests.waiting import wait_until

pytestmark = pytest.mark.full

KEYS = [f"key{number}" for number in range(16)]
"""More than are ever all in one of a few partitions."""


def partitioned(urls, clock=None, durability="fast"):
    """Open a store of one partition on each of some servers."""
    where = partition_addresses(",".join(urls))
    partitions = [
        RedisStore(
            place.url,
            partition=place.partition,
            clock=clock,
            lease=30,
            push=False,
            durability=durability,
        )
        for place in where
    ]
    return PartitionedStore(partitions, relays=False)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def both(redis_url, other_url, clock):
    """A store of two partitions on two servers."""
    store = partitioned([redis_url, other_url], clock)
    yield store
    store.close()


class TestPartitionsOfOneServer(StoreContract, only="routed"):
    """What partitions route and merge, over two on one server."""

    @pytest.fixture
    def store(self, clock, redis_url):
        store = partitioned([redis_url] * 2, clock)
        yield store
        store.close()


class TestPartitionsOfTwoServers(StoreContract, only="routed"):
    """What partitions route and merge, over two that have a server each."""

    @pytest.fixture
    def store(self, both):
        return both


@pytest.fixture
def tight(redis_url):
    """Open a store whose user may touch nothing but the partition's keys."""
    with redis.Redis.from_url(redis_url) as client:
        client.acl_setuser(
            "tight", enabled=True, nopass=True, commands=["+@all"], keys=["runner:{p07}:*"]
        )
        store = RedisStore(
            f"{redis_url}&username=tight&password=any",
            partition="p07",
            push=False,
            clock=ManualClock(),
        )
        yield store
        store.close()
        client.acl_deluser("tight")


def test_no_transition_touches_a_key_outside_of_its_partition(tight):
    """A run through every transition, and one that fails and is retried, need no other key."""
    for _verb, _wanted, send in Walk(tight, "00walk"):
        send("")
    worker = ManualWorker(tight)
    run_id = worker.start("a")
    assert worker.fail(worker.token(run_id, "a")) == "settled"
    write_retry(tight, run_id)
    tight.sweep()
    worker.settle(worker.token(run_id, "a", attempt=2))

    assert worker.statuses(run_id) == "completed: a completed"
    assert tight.sweep().count == 0


def in_each(worker, graph):
    """Start a run in each of two partitions."""
    return [worker.start(graph, beside=digits) for digits in ("00", "01")]


# Where a run begins


def test_runs_spread_also_those_with_limits(both):
    """Runs begin in any partition; those of a graph that is not known in the first."""
    both.publish(
        [shape("a", name="free"), shape("a", name="bound", limits={"a": [Limit("x", rate=1)]})]
    )

    for name in ("free", "bound"):
        assert {both.partition(name, None) for _ in range(64)} == {0, 1}
        assert {both.partition(name, key) for key in KEYS} == {0, 1}
    assert {both.partition("unknown", key) for key in [None, *KEYS]} == {0}


def test_keys_and_sessions_are_found_after_the_number_has_grown(redis_url, other_url):
    """What began in one partition stays there when there are two, and then four; what is new is anywhere."""
    worker = ManualWorker(partitioned([redis_url]))
    found: dict[str, str] = {}
    for number in (1, 2, 4):
        urls = [redis_url, other_url, other_url, other_url][:number]
        where, store = partition_addresses(",".join(urls)), partitioned(urls)
        assert layout.record(where) == ""
        worker.store = store
        store.publish([shape("a")])
        for name, run_id in found.items():
            assert f"{store.partition('g', name):02d}" == run_id[:2], name
            assert store.session(name) == Session([name]), name
        for key in KEYS:
            name = f"{key} of {number}"
            found[name] = worker.start("a", idempotency_key=name)
            worker.settle(
                worker.token(found[name], "a"),
                saved=saved(1, name),
                session=SessionUpdate(name, 0),
            )
        store.close()

    assert {run_id[:2] for run_id in found.values()} == {"00", "01", "02", "03"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a, b: f"{b},{a}", "in the order they were first used"),
        (lambda a, b: a, "partition 1 is on a server that is not named"),
        (lambda a, b: b, "partition 1 has 1 runs"),
    ],
    ids=["swapped", "fewer", "the wrong one"],
)
def test_servers_that_do_not_fit_are_refused(both, redis_url, other_url, change, says):
    """Programs with other servers would start runs twice, and not find those that wait."""
    in_each(ManualWorker(both), shape("a"))
    assert layout.record(partition_addresses(f"{redis_url},{other_url}")) == ""
    where = partition_addresses(change(redis_url, other_url))

    assert says in layout.problem(where)
    assert layout.record(where) == layout.problem(where)
    assert layout.problem(partition_addresses(f"{redis_url},{other_url}")) == ""


@pytest.mark.parametrize(
    ("number", "version"), [(None, "an older"), ("2", "a newer"), ("1", "")]
)
@pytest.mark.parametrize("partition", ["p00", "p01"])
def test_a_store_of_another_layout_is_refused(redis_url, clock, partition, number, version):
    """No process reads or writes where other keys are used, in any partition; the same layout is read."""
    where, store = partition_addresses(redis_url, 2), partitioned([redis_url] * 2, clock)
    runs = in_each(ManualWorker(store, clock), shape("a"))
    own = runs[int(partition[1:])]
    store.close()
    with redis.Redis.from_url(redis_url) as client:
        assert client.get(f"runner:{{{partition}}}:layout") == layout.LAYOUT
        client.delete(f"runner:{{{partition}}}:layout")
        if number:
            client.set(f"runner:{{{partition}}}:layout", number)
        before = {key: client.dump(key) for key in client.scan_iter()}
        store = partitioned([redis_url] * 2, clock)

        if not version:
            assert (layout.problem(where), store.do(CancelRun(own, "enough")).word) == (
                "",
                "cancelled",
            )
        else:
            for request in (
                lambda: store.read(own),
                lambda: store.do(CancelRun(own, "enough")),
            ):
                with pytest.raises(
                    StoreError, match=f"has data of layout .* Use {version} version until"
                ):
                    request()
            assert f"Use {version} version" in layout.problem(where)
            assert layout.record(where) == layout.problem(where)
            assert {key: client.dump(key) for key in client.scan_iter()} == before
    store.close()


def test_an_empty_store_takes_the_layout_with_its_first_graph(redis_url, client):
    """Who only reads an empty store leaves nothing in it; a graph brings the number."""
    store = RedisStore(redis_url)
    assert store.peek("00run") is None
    assert client.dbsize() == 0

    store.publish([shape("a")])

    assert client.get("runner:{p00}:layout") == layout.LAYOUT
    store.close()


def test_a_new_number_of_partitions_is_logged_with_the_old_one(redis_url, caplog):
    """Whoever changes it for all says so; control: the first number, and the same again, aren't logged."""
    one, two = partition_addresses(redis_url), partition_addresses(redis_url, 2)
    for places in (one, one):
        assert layout.record(places) == ""
    assert not caplog.messages
    for _ in range(2):
        assert layout.record(two) == ""
    (line,) = caplog.messages
    assert "was 1 and is now 2" in line


def test_fewer_partitions_are_refused_while_one_has_runs_or_sessions(redis_url, clock):
    """On one server an empty partition may be left out."""
    store = partitioned([redis_url] * 2, clock)
    worker = ManualWorker(store, clock)
    assert layout.record(partition_addresses(redis_url, 2)) == ""
    run_id = in_each(worker, shape("a"))[1]
    assert "partition 1 has" in layout.record(partition_addresses(redis_url))
    with redis.Redis.from_url(redis_url) as client:
        client.delete(*client.keys("runner:{p01}:r*"))
        client.rpush("runner:{p01}:session:m:ann", "1")
        assert "partition 1 has sessions" in layout.record(partition_addresses(redis_url))
        client.delete("runner:{p01}:session:m:ann")
    assert run_id.startswith("01")
    assert layout.record(partition_addresses(redis_url)) == ""
    assert layout.record(partition_addresses(redis_url, 2)) == ""
    store.close()


@pytest.mark.parametrize(
    ("recorded", "number"), [(3, 1), (3, 2), (3, 3), (3, 4), (1, 1), (0, 1), (0, 3)]
)
def test_a_program_with_fewer_partitions_than_the_store_is_refused(
    redis_url, other_url, recorded, number
):
    """It would list some of the runs and start others twice; as many as recorded, or more, are right."""
    urls = [redis_url, other_url, other_url, other_url]
    if recorded:
        assert layout.record(partition_addresses(",".join(urls[:recorded]))) == ""
    store = open_store(Settings(redis_url=",".join(urls[:number])), push=False)
    worker = ManualWorker(store)
    for request in (lambda: worker.start("a"), store.runs):
        with (
            pytest.raises(StoreError, match=f"has 3 partitions, and {number} ")
            if number < recorded
            else nullcontext()
        ):
            request()
    store.close()


@pytest.mark.parametrize("order", ["1", "10", "01", "011"])
def test_servers_without_the_first_one_are_refused(both, redis_url, other_url, order):
    """Where the first server is missing, no program takes another one for an empty store."""
    in_each(ManualWorker(both), shape("a"))
    urls = [redis_url, other_url]
    store = open_store(
        Settings(redis_url=",".join(urls[int(one)] for one in order)), push=False
    )
    with (
        nullcontext()
        if order.startswith("0")
        else pytest.raises(
            StoreError, match=r"has partition 1, but is set to have 0, .* all servers"
        )
    ):
        assert len(store.runs().items) == 2
    store.close()


# What concerns several


def test_a_set_of_answers_is_for_one_partition(both, clock):
    """Answers to runs of two can't be applied as one, and none is; those that are refused anyway say why."""
    worker = ManualWorker(both, clock)
    questions = [worker.park(run_id, "a")[0] for run_id in in_each(worker, shape("a"))]
    with pytest.raises(ConflictError, match="Send a set for each run"):
        worker.answer(*questions)
    assert [
        question.is_open for question in both.interrupts([one.id for one in questions])
    ] == [True] * 2

    assert worker.answer(questions[0]) == ["accepted"]
    assert worker.answer(*questions) == ["duplicate", "rejected"]
    unknown = [Decision(questions[1].id, 1), Decision("00none.a.1.x", 1)]
    assert [
        str(receipt.status) for receipt in both.do(AnswerQuestions(unknown, "n")).receipts
    ] == [
        "rejected",
        "unknown",
    ]


def test_what_a_lost_process_left_of_a_session_is_moved(both, clock):
    """A part is added once: by who settled, else by who reads next, however often that is tried."""
    worker = ManualWorker(both, clock)
    runs = in_each(worker, shape("a"))
    name = next(
        name for name in map(str, itertools.count()) if both._layout.session_home(name) == 0
    )
    first, second = both._partitions
    token = worker.token(runs[1], "a")
    # As `settle` does it in a process that dies before it moves the part.
    both._move = lambda *_: None
    worker.settle(
        token, saved=saved(1, "left"), session=SessionUpdate(name, 0, {"n": 1}, ["gone"])
    )
    del both._move
    assert first.session(name) == Session()
    part = second.sessions.take_part(name)
    for _ in range(2):
        first.sessions.add_part(name, "1", part)

    assert [both.session(name) for _ in range(2)] == [Session(["left"], {"n": 1})] * 2
    assert second.sessions.take_part(name) is None
    first.sessions.add_part(name, "1", part)
    assert first.session(name) == Session(["left"], {"n": 1})


def test_letters_name_their_partition(both, redis_url, other_url, clock):
    """A node that killed its workers leaves a letter in its partition; it is read and deleted by its id."""
    worker = ManualWorker(both, clock)
    for run_id in in_each(worker, shape("a")):
        for attempt in range(1, 6):
            worker.claim(run_id, "a", attempt=attempt)
            worker.sweep(after=31)
    letters = DeadLetters(f"{redis_url},{other_url}")
    listed = letters.all()

    assert sorted(letter.id.rpartition(":")[0] for letter in listed) == ["node", "node:1"]
    assert [letters.get(letter.id) for letter in listed] == listed
    assert [letters.drop(letter.id) for letter in listed] == [True, True]
    assert letters.count() == 0
    with pytest.raises(UsageError, match="is not the id of a dead letter"):
        letters.get("node:2:1-1")


def test_a_partition_that_is_away_leaves_the_others(redis_url, clock):
    """Sweeps and renewals do what can be done; a listing, which would lack runs, raises."""
    store = partitioned([redis_url, "redis://127.0.0.1:1/0"], clock)
    near = partitioned([redis_url], clock)
    worker = ManualWorker(near, clock)
    token = worker.token(worker.start("a"), "a")
    away = Start("01away", "g", None, None)

    assert store.renew([token, Token("01away", "a", 1, 1)]) == ["ok", ""]
    clock.advance(31)
    assert store.sweep().count == 1
    for read in (store.runs, store.open_interrupts, lambda: store.do(StartRun(away))):
        with pytest.raises(StoreError):
            read()
    store.close()
    near.close()


def test_slots_are_shared_and_nodes_woken_where_servers_are_up(redis_url, other_url, clock):
    """Windows get their size, and frozen nodes begin, also behind a partition that is away."""
    shared = [redis_url, "redis://127.0.0.1:1/0", other_url]
    with closing(partitioned(shared, clock)) as store:
        assert store.do(ShareSlots({"g": 8})).word == "sized"
        assert store.do(FreezeScope("graph:g", "audit", "ann")).word == "frozen"
        assert store.do(ThawScope("graph:g", "done", "ann")).word == "thawed"
        for number, place in enumerate(partition_addresses(",".join(shared))):
            windows = f"{Keys(store.namespace, place.partition).prefix}fair:windows"
            assert number == 1 or store.connections[number].call("HGET", windows, "g")


def test_the_log_says_once_that_a_server_is_away(redis_url, clock, caplog):
    """Each sweep and each heartbeat asks it, and each of the two says it once."""
    with closing(partitioned([redis_url, "redis://127.0.0.1:1/0"], clock)) as store:
        store.do(ShareSlots({"g": 8}))
        store.do(ShareSlots({"g": 8}))
        assert [line.split(":")[0] for line in caplog.messages] == ["partition.left_out"]
        for _ in range(3):
            store.sweep()
            store.do(ShareSlots({"g": 8}))
        lines = [line.split(":")[0] for line in caplog.messages]
        assert lines == ["partition.left_out", "sweep.failed"]


def test_a_nested_graph_begins_while_another_server_is_away(redis_url):
    """Also in a process that has published nothing yet, such as a child of a prefork pool."""
    registry = Registry()
    registry.add("nested", graphs.nested)
    with closing(partitioned([redis_url])) as near:
        first = Engine(near, SweeperDispatcher(), registry)
        first.publish(["nested"])
        run_id = first.start("nested", "go")
        first.deliver(run_id, "before", 1, 1)
    with closing(partitioned([redis_url, "redis://127.0.0.1:1/0"])) as store:
        assert Engine(store, SweeperDispatcher(), registry).deliver(run_id, "inner", 1, 1).child


def test_known_graphs_are_published_where_servers_are_up(redis_url, clock):
    """So a program that has a graph can start it; control: a new graph, and a worker's, are refused."""
    known = shape("a", name="known")
    with closing(partitioned([redis_url], clock)) as near:
        near.publish([known])
    with closing(partitioned([redis_url, "redis://127.0.0.1:1/0"], clock)) as store:
        store.publish([known], replace=False)
        for graph, replace in ((known, True), (shape("a", name="new"), False)):
            with pytest.raises(StoreError):
                store.publish([graph], replace=replace)


def test_a_key_is_looked_for_where_it_could_be(redis_url, other_url):
    """A start asks neither the partition that is chosen for its key, nor one twice."""
    with closing(partitioned([redis_url, other_url])) as store:
        assert layout.record(partition_addresses(f"{redis_url},{other_url}")) == ""
        store.publish([shape("a")])
        key = next(key for key in KEYS if store.partition("g", key) == 1)
    with closing(partitioned([redis_url, "redis://127.0.0.1:1/0"])) as store:
        assert store.partition("g", key) == 1


def test_sweeps_do_not_wait_each_time_for_a_server_that_hangs(redis_url, clock):
    """One waits for it, and the next ones leave it out; control: the first server is swept by each."""
    worker = ManualWorker(partitioned([redis_url], clock), clock)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        away = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with closing(partitioned([redis_url, away], clock)) as store:
            for _ in range(3):
                worker.token(worker.start("a"), "a")
                clock.advance(31)
                assert store.sweep().count
            silent.accept()[0].close()
            with pytest.raises(BlockingIOError):
                silent.accept()
    worker.store.close()


def test_audits_are_sealed_while_another_server_is_away(redis_url, other_url):
    """Those before it in the list of servers, and those behind it."""
    settings = Settings(
        redis_url=f"{redis_url},redis://127.0.0.1:1/0,{other_url}", audit="all", audit_seal=0.1
    )
    with closing(open_store(settings)) as store:
        audits = [audit for number, audit in enumerate(store.audit_logs) if number != 1]
        for audit in audits:
            audit.note("dead.replayed", actor="ann")
        sealer = Sealer(Engine(store, SweeperDispatcher(), Registry()), settings)

        def all_sealed():
            with suppress(StoreError):
                sealer.seal(lambda: False)
            return all(audit.head().size for audit in audits)

        wait_until(all_sealed, "both are sealed", seconds=20)


def test_settings_open_what_they_name(redis_url, other_url):
    """One partition is a plain store, at no extra cost; several are on one server or on their own."""
    for urls, number, kind, count in (
        (redis_url, 1, RedisStore, 1),
        (redis_url, 3, PartitionedStore, 3),
        (f"{redis_url},{other_url}", 1, PartitionedStore, 2),
    ):
        settings = Settings(redis_url=urls, partitions=number)
        store = open_store(settings)
        assert (type(store), len(settings.partition_addresses)) == (kind, count)
        store.close()
    with pytest.raises(UsageError, match="RUNNER_PARTITIONS"):
        Settings(redis_url=f"{redis_url},{other_url}", partitions=3)
    cluster = "redis+cluster://a:1,b:2"
    sentinels = "sentinel://a:1,b:2/main"
    assert [place.url for place in partition_addresses(f"{cluster},{sentinels}")] == [
        cluster,
        sentinels,
    ]
    assert (
        Keys(partition=partition_addresses(cluster, 12)[11].partition).prefix == "runner:{p11}:"
    )


# Pages


def page_of(items, short, limit, cursor):
    """Read a page as a partition does: from newest to oldest, at times with fewer items than it could."""
    after = position_in(cursor) if cursor else None
    rest = [item for item in items if after is None or item.position < after]
    looked_at = rest[: min(limit + 1, short)]
    page = cut(looked_at, lambda item: item.position, limit)
    if page.next is None and len(looked_at) < len(rest):
        return cut(
            looked_at,
            lambda item: item.position,
            limit,
            next_cursor=cursor_of(looked_at[-1].position),
        )
    return page


@given(
    times=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=2, max_size=4),
    limit=st.integers(1, 5),
    short=st.integers(1, 4),
)
def test_merged_pages_have_each_item_once_and_in_order(times, limit, short):
    """However items are spread, however short a partition's pages are, and whatever begins meanwhile."""
    lists = [
        sorted(
            (
                RunSummary(f"{number:02d}{place:03d}", "g", Status.EXECUTING, time, {})
                for place, time in enumerate(own)
            ),
            key=lambda run: run.position,
            reverse=True,
        )
        for number, own in enumerate(times)
    ]
    pages = [functools.partial(page_of, own, short) for own in lists]
    every = sorted(itertools.chain(*lists), key=lambda run: run.position, reverse=True)
    items, cursor = [], ""
    for turn in range(1_000):
        page = merged(pages, limit, cursor, lambda run: run.position, newest=True)
        lists[0].insert(0, RunSummary("00new", "g", Status.EXECUTING, 10 + turn, {}))
        assert len(page) <= limit
        items += page
        if page.next is None:
            break
        cursor = page.next

    assert [item.run_id for item in items] == [item.run_id for item in every]


# Bounds of open runs


@pytest.fixture
def shared(redis_url, other_url):
    """Open a store of two partitions as a program does, which knows how many there are."""
    store = open_store(Settings(redis_url=f"{redis_url},{other_url}"))
    yield store
    store.close()


def admitted(store, graph_id, *keys):
    """Start runs with these idempotency keys (None: without one); return how many have begun."""
    words = []
    for number, key in enumerate(keys):
        run_id = f"{store.partition(graph_id, key):02d}{graph_id}{number}{key or ''}"
        start = Start(run_id, graph_id, None, None, idempotency_key=key)
        words.append(store.do(StartRun(start)).word)
    assert set(words) <= {"started", "full"}
    return words.count("started")


def test_partitions_share_a_bound_of_open_runs(shared):
    """A start without a key finds the partition that has room, one with a key its own; the bound holds."""
    bounded = Admission(max_open_runs=5)
    shared.publish([shape("a", name=name, admission=bounded) for name in ("g", "keyed")])
    assert admitted(shared, "g", *[None] * 20) == 5
    assert admitted(shared, "keyed", *KEYS) == 5


def test_a_namespace_bounds_the_open_runs_of_all_graphs(redis_url, other_url, clock):
    """RUNNER_MAX_OPEN_RUNS holds over graphs and partitions; without it any number of runs is open."""
    for bound, begun in ((3, 3), (0, 8)):
        settings = Settings(redis_url=f"{redis_url},{other_url}", max_open_runs=bound)
        store = open_store(settings.model_copy(update={"namespace": f"n{bound}"}))
        store.publish([shape("a", name="g"), shape("a", name="h")])
        graphs = ("g", "h") * 4
        assert (
            sum(admitted(store, name, f"{name}{at}") for at, name in enumerate(graphs)) <= begun
        )
        assert sum(admitted(store, name, None) for name in ("g", "h")) == (0 if bound else 2)
        store.close()


# Keys of open runs


def test_runs_of_a_key_live_in_one_partition(both):
    """Keys spread over the partitions, and each has its own, whatever the idempotency key of a start."""
    concurrency = Concurrency(1, by="tag:account")
    both.publish([shape("a", admission=Admission(concurrency=concurrency))])
    both.publish([shape("a", admission=Admission(concurrency=concurrency))])
    homes = {
        account: {both.partition("g", key, {"account": account}) for key in (None, *KEYS)}
        for account in KEYS
    }
    assert {len(numbers) for numbers in homes.values()} == {1}
    assert set.union(*homes.values()) == {0, 1}


def test_a_key_stays_where_it_has_open_runs_as_partitions_are_added(redis_url, other_url):
    """A start waits for the open run in the older partition; with none open it goes to the new one."""
    graph = shape("a", admission=Admission(concurrency=Concurrency(1, by="tag:account")))
    worker = ManualWorker(partitioned([redis_url]))
    assert layout.record(partition_addresses(redis_url)) == ""
    worker.start(graph, tags={"account": "7"})
    assert layout.record(partition_addresses(f"{redis_url},{other_url}")) == ""
    grown = partitioned([redis_url, other_url])
    grown.publish([graph])
    assert {grown.partition("g", None, {"account": name}) for name in KEYS} == {0, 1}
    moved = next(key for key in KEYS if grown.partition("g", None, {"account": key}) == 1)
    worker.start(graph, tags={"account": moved})

    assert grown.partition("g", None, {"account": moved}) == 0
    worker.store.close()
    grown.close()
