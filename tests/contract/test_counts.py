"""What each step costs the server, counted: machines differ, counts don't. Nothing here measures time.

`bench/counts.json` has the accepted counts: `python -m bench.counts --write` accepts others.
"""

from __future__ import annotations

from collections import Counter
from cProfile import Profile
from urllib.parse import urlsplit

import pytest
import redis

from bench import counts
from bench.fill import Filler, copy_runs
from bench.meter import Monitor
from bench.site import OURS, site
from runner.definition.model import MapSpec
from runner.dev.embedded import embedded_store
from runner.limits.limit import Limit
from runner.records.interrupts import Decision
from runner.records.listings import InterruptQuery
from runner.records.run import Status
from runner.records.workers import EVERY
from runner.scheduler import changes
from runner.scheduler.changes import DRAIN_LIMIT
from runner.store.addresses import partition_addresses
from runner.store.encoding import LARGE
from runner.store.interface import Settlement, Start
from runner.store.redis import layout
from runner.store.redis.doorbell_template import DoorbellTemplate
from runner.store.redis.store import RedisStore
from runner.store.redis.transaction import run_view
from runner.store.redis.workers import WorkerRegistry
from runner.store.requests import (
    AnswerQuestions,
    CancelRun,
    ClaimVisit,
    DrainRun,
    ExpandMap,
    SettleVisit,
    StartRun,
)
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.contract.test_partitions import partitioned
from tests.waiting import wait_until

NODES = 100
LONGER = 0.02
"""Part by which bytes may differ: the length of times and of durations."""


def differences(table, accepted):
    """Name each count that differs, as "step: count 3, accepted 2"."""
    steps = sorted(set(table) | set(accepted))
    pairs = [
        (
            f"{step}: {name}",
            table.get(step, {}).get(name, 0),
            accepted.get(step, {}).get(name, 0),
        )
        for step in steps
        for name in counts.COLUMNS
    ]
    return [
        f"{label} {now}, accepted {then}"
        for label, now, then in pairs
        if abs(now - then) > (then * LONGER if label.endswith("bytes") else 0)
    ]


@pytest.mark.full
def test_each_step_costs_what_was_accepted():
    """No step sends more commands or bytes, makes more round trips, calls or keys, than was accepted."""
    assert differences(counts.count(), counts.accepted()) == [], (
        "The counts of steps have changed. If that is meant: python -m bench.counts --write"
    )


def test_a_vote_is_no_dearer_than_an_answer():
    """In what Redis does for it; one that decides is a vote and an answer, in a quarter more calls."""
    calls = {step: row["commands"] + row["inside"] for step, row in counts.accepted().items()}
    answer, vote = calls["an answer"], calls["a vote that is counted"]

    assert vote <= 1.2 * answer
    assert calls["a vote that decides"] < answer + vote
    assert 4 * calls["a vote that decides"] <= 5 * answer
    assert counts.accepted()["the node goes on, by a decision"]["trips"] == 3


@pytest.mark.slow
def test_a_needless_command_shows(monkeypatch):
    """Control: with one more command in each claim, the counts differ."""
    do = RedisStore.do

    def careful(store, request):
        if isinstance(request, ClaimVisit):
            store._redis.call("PING")
        return do(store, request)

    monkeypatch.setattr(RedisStore, "do", careful)

    assert "a node of a chain: commands 3, accepted 2" in differences(
        counts.count(), counts.accepted()
    )


@pytest.fixture
def counted():
    """Give the address of an empty store whose round trips are counted."""
    with embedded_store() as server:
        yield f"{counts.SCHEME}://{urlsplit(server.url).path}"


@pytest.mark.full
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("push", "template"), [(True, True), (True, False), (False, False)])
def test_a_start_is_one_request(counted, push, template, key):
    """A run of a graph that this process knows starts in one round trip, also before any worker has run."""
    store = RedisStore(counted, push=push)
    if template:
        store.install_doorbell(DoorbellTemplate(["", "id", ""]))
    store.publish([shape("a>b", name="g")])
    store.do(StartRun(Start("00first", "g", None, "task")))
    counts.TALLY.reset()

    assert (
        store.do(StartRun(Start("00run", "g", None, "task", idempotency_key=key))).word
        == "started"
    )

    assert counts.TALLY.trips == 1
    # The guess that there is no template ends when there is one: then the script rings.
    store.install_doorbell(DoorbellTemplate(["", "id", ""]))
    later = store.do(StartRun(Start("00later", "g", None, "task")))
    assert (later.word, len(later.doorbells)) == ("started", 0 if push else 1)
    store.close()


@pytest.mark.full
def test_a_limit_that_another_partition_counts_costs_two_round_trips(counted):
    """A slot is held there before the claim, and returned after the settle; control: in its own none is."""
    urls = [counted] * 2
    assert layout.record(partition_addresses(",".join(urls))) == ""
    store = partitioned(urls)
    limit = Limit("some", concurrency=9)
    graph = shape("a", limits={"a": [limit]})
    worker, trips = ManualWorker(store), []
    home = store._layout.limit_home(limit.name)
    for partition in (0, 1) * 2:  # the first time loads the scripts
        run_id = worker.start(graph, beside=f"{partition:02d}")
        counts.TALLY.reset()
        worker.end(worker.token(run_id, "a"))
        trips.append(counts.TALLY.trips)

    assert trips[3 - home] - trips[2 + home] == 2
    store.close()


@pytest.mark.full
@pytest.mark.parametrize(
    ("on_end", "output", "trips"),
    [("", "out", 1), ("shop.done", "out", 1), ("", "o" * LARGE, 2)],
)
def test_the_end_of_a_run_is_one_request(counted, on_end, output, trips):
    """A run of one node ends in one round trip, also with a task to call; a large output adds one."""
    store = RedisStore(counted)
    store.install_doorbell(DoorbellTemplate(["", "id", ""]))
    worker = ManualWorker(store)
    tokens = [worker.begin("a", on_end=on_end)[1] for _ in range(2)]
    worker.settle(tokens[0], output=output)  # loads the scripts
    counts.TALLY.reset()

    assert worker.settle(tokens[1], output=output) == "settled"

    assert counts.TALLY.trips == trips
    store.close()


@pytest.mark.full
@pytest.mark.parametrize("processes", [1, 2])
def test_a_settle_claims_a_join_in_one_request(counted, processes):
    """What its other sources left is remembered where they ran; control: another process ran one of them."""
    workers = [ManualWorker(RedisStore(counted, push=False)) for _ in range(processes)]
    graph = shape("a>c b>c")
    for _ in range(2):  # the first one loads the scripts
        run_id = workers[0].start(graph)
        token = workers[-1].token(run_id, "b")
        workers[0].settle(workers[0].token(run_id, "a"), "one")
        counts.TALLY.reset()
        settlement = Settlement(Status.COMPLETED, "1", "two", {"v": 1}, may_continue=True)
        reply = workers[-1].store.do(SettleVisit(token, settlement, workers[-1].nonce()))

    assert counts.TALLY.trips == processes
    assert list(reply.claim.inputs) == [("a", 1, "one"), ("b", 1, "two")]
    for worker in workers:
        worker.store.close()


@pytest.mark.slow
def test_a_node_costs_the_same_in_a_wide_graph():
    """Before and at a join of 500, a node makes as many calls as at a join of 50."""
    with embedded_store() as store:
        table = counts.Story(urlsplit(store.url).path, width=500).work()

    few = counts.accepted()
    many = {step: row["inside"] for step, row in table.items() if step not in few}
    assert len(many) == 4
    assert many == {step: few[step.replace("500", "50")]["inside"] for step in many}


@pytest.mark.slow
def test_a_chain_costs_a_worker_little_more_than_a_command_a_node():
    """Each node is settled; the first is fetched and claimed, and the others stay on its slot."""
    with site("threads", sides=(OURS,), graphs=("chain100",)) as bench:
        bench.run("chain100")
        with Monitor(bench.urls[OURS]) as monitor:
            bench.run("chain100")

    # What a worker sends without nodes comes on top, some commands a second: on a slow machine for long.
    sent = Counter(monitor.sent)
    del sent["hincrbyfloat"]  # measurements, sent together every few seconds
    assert sent["brpop"] <= NODES * 0.1
    assert sent["evalsha"] <= NODES * 1.1
    assert {name for name, count in sent.items() if count >= NODES} == {"evalsha"}


HEARTBEATS = 3
"""Times ten seconds for which an idle worker is watched."""


@pytest.mark.slow
def test_a_worker_without_work_needs_little():
    """Six connections and two commands a second, started as the docs say: in a fleet of any size."""
    with site("threads", sides=(OURS,), graphs=("short",)) as bench:
        server, roster = bench.servers[OURS], WorkerRegistry(bench.urls[OURS])

        def heartbeats() -> int:
            """Count by the server's time, which is that of its commands."""
            (worker,) = roster.all()
            return worker.seen

        began = heartbeats()
        with Monitor(bench.urls[OURS]) as monitor:
            wait_until(
                lambda: heartbeats() - began >= HEARTBEATS * EVERY * 1000,
                "some time has passed",
            )
        seconds = (heartbeats() - began) / 1000
        own = server.client_id()
        theirs = [
            client
            for client in server.client_list()
            if int(client["db"]) == OURS
            and int(client["id"]) != own
            and client["cmd"] != "hscan"
        ]

    sent = Counter(monitor.sent)
    del sent["hscan"], sent["echo"]  # the test's own
    assert len(theirs) <= 6
    assert sent.total() <= 2 * seconds + 10  # the last ones of its start


def commands_per_item(url, count, window):
    """Run a map of so many items, and count the commands of its scripts for each."""
    graph = shape("m>z", maps={"m": MapSpec("function", None, window)})
    store = RedisStore(url, push=False)
    with redis.Redis.from_url(url) as server:
        server.flushall()
        worker = ManualWorker(store)
        run_id, token = worker.begin(graph, node="m")
        server.config_resetstat()
        store.do(ExpandMap(token, list(range(count))))
        worker.run(run_id, *(f"m[{index}]" for index in range(count)))
        ran = server.info("commandstats")
        store.close()
    assert worker.read(run_id).maps["m"].has_ended
    return sum(stat["calls"] for stat in ran.values()) / count


def cost_of_stop(url, count):
    """Cancel a run of so many ready nodes; return commands, and bytes in both directions, for each."""
    names = [f"n{number:04d}" for number in range(count)]
    store = RedisStore(url, push=False)
    with redis.Redis.from_url(url) as server:
        server.flushall()
        worker = ManualWorker(store)
        run_id = worker.start(shape(" ".join(names)))
        server.config_resetstat()
        store.do(CancelRun(run_id, "enough"))
        last_node = ""
        while store.peek(run_id).status != Status.CANCELLED:
            last_node = store.do(DrainRun(run_id, last_node)).detail
        info = server.info("everything")
        store.close()
    calls = sum(stat["calls"] for name, stat in info.items() if name.startswith("cmdstat_"))
    return calls / count, (
        info["total_net_input_bytes"] + info["total_net_output_bytes"]
    ) / count


@pytest.mark.slow
def test_a_cancelled_node_costs_the_same_in_a_wide_run(redis_url):
    """A stop of ten times as many nodes costs no more commands and bytes for each."""
    few, many = cost_of_stop(redis_url, 500), cost_of_stop(redis_url, 5_000)

    assert many[0] <= few[0] * 1.1
    assert many[1] <= few[1] * 1.1


def stop_of_open_questions(store, client, clock, *, count, cause):
    """Stop a run whose nodes have asked so many questions.

    Return the scripts that it takes, for each question the calls in Redis, the bytes and the calls of
    functions, and the run.
    """
    client.flushall()
    worker, names = ManualWorker(store, clock), [f"n{number:03d}" for number in range(count)]
    if cause == "map":
        run_id, token = worker.begin(shape("m>z", maps={"m": MapSpec("function")}), node="m")
        store.do(ExpandMap(token, list(range(count))))
        names = [f"m[{index}]" for index in range(count)]
    else:
        run_id = worker.start(shape(" ".join([*names, "last"]), execution_timeout=60.0))
    for name in names:
        worker.park(run_id, name, assignees=["ana"])
    failing = worker.token(run_id, "last") if cause == "failure" else None
    if failing is None and cause != "map":
        worker.run(run_id, "last")
    store.sweep()  # the first one also looks for runs to pack
    client.config_resetstat()
    with Profile() as profile:
        if failing is not None:
            worker.fail(failing)
        elif cause == "timeout":
            worker.sweep(after=61)
        else:
            store.do(CancelRun(run_id, "enough"))
    info = client.info("everything")
    calls = sum(stat["calls"] for name, stat in info.items() if name.startswith("cmdstat_"))
    network = info["total_net_input_bytes"] + info["total_net_output_bytes"]
    scripts = info["cmdstat_evalsha"]["calls"]
    here = sum(entry.callcount for entry in profile.getstats())
    return scripts, calls / count, network / count, here / count, worker.read(run_id)


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["cancel", "failure", "timeout", "map"])
def test_a_stop_reads_all_open_questions_at_once(store, client, clock, cause):
    """A run that stops withdraws 200 open questions in as many requests as 25, and no more calls for each."""
    few, *first, _ = stop_of_open_questions(store, client, clock, count=25, cause=cause)
    many, *last, run = stop_of_open_questions(store, client, clock, count=200, cause=cause)

    assert run.record.is_final
    assert {str(question.status) for question in run.interrupts} == {"withdrawn"}
    assert few == many <= 6
    assert all(later <= early for later, early in zip(last, first, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("bound", [(DRAIN_LIMIT, [500, 500, 500]), (10_000, [1_500])], ids=str)
def test_a_stop_of_many_questions_lets_others_in(store, client, clock, monkeypatch, bound):
    """Each step withdraws 500, also of one node, and rings another run first; control: another bound."""
    limit, pieces = bound
    for module in (changes, run_view):
        monkeypatch.setattr(module, "DRAIN_LIMIT", limit)
    worker, counts = ManualWorker(store, clock), {"few": 75, "many": 1_000, "others": 425}
    other, run_id = (
        worker.start(shape("a", name="other")),
        worker.start(shape(" ".join(counts))),
    )
    for name, count in counts.items():
        worker.park(run_id, name, *(f"q{number}" for number in range(count)))
    clock.advance(store.lease_ms / 1000)
    steps, left = [lambda: store.do(CancelRun(run_id, "enough"))], 1_500
    steps += [lambda: clock.advance(1) or store.sweep(limit=1)] * len(pieces)
    withdrawn = []
    for step in steps:
        bells = step().doorbells
        withdrawn.append(left - client.zcount("runner:{p00}:open:g:g", 0, "+inf"))
        left -= withdrawn[-1]
        assert [bell.run_id for bell in bells] == ([other] if len(withdrawn) == 2 else [])

    assert [piece for piece in withdrawn if piece] == pieces
    assert (withdrawn[1], worker.read(run_id).record.status) == (0, Status.CANCELLED)


@pytest.mark.full
@pytest.mark.parametrize("window", [None, 400, 600])
def test_the_end_of_an_item_is_one_request(store, client, clock, window):
    """Also while more items are left than a map begins at once: no worker drafts the next ones."""
    worker = ManualWorker(store, clock)
    run_id, token = worker.begin(
        shape("m>z", maps={"m": MapSpec("function", None, window)}), node="m"
    )
    store.do(ExpandMap(token, list(range(900))))
    tokens = [worker.token(run_id, f"m[{index}]") for index in range(5)]
    client.config_resetstat()

    for token in tokens:
        assert worker.settle(token) == "settled"

    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == len(tokens)


@pytest.mark.parametrize(("graph", "reads"), [(None, 1), ("g", 2)])
def test_a_page_of_questions_reads_each_once(store, client, clock, graph, reads):
    """Their runs are read only where a filter asks for what those have; control: one does."""
    worker = ManualWorker(store, clock)
    for _ in range(3):
        worker.asking("a")
    client.config_resetstat()

    assert len(store.open_interrupts(InterruptQuery(graph, urgent=True))) == 3
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 3 * reads


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 5])
def test_an_item_costs_the_same_in_a_long_list(redis_url, window):
    """A list thirty times as long costs no more commands for each item."""
    few, many = (
        commands_per_item(redis_url, 100, window),
        commands_per_item(redis_url, 3_000, window),
    )

    assert many <= few * 1.05


def test_copies_of_runs_are_runs(redis_url, client):
    """Those that fill a bench's store are listed one by one, and each goes on by its answer."""
    filler = Filler(redis_url)
    filler.add("waiting", 1)
    copy_runs(client, "waiting", 2)

    questions = list(filler.store.open_interrupts())
    assert len({question.run_id for question in questions}) == 3
    assert len({question.asked_at for question in questions}) == 3
    for question in questions:
        answers = AnswerQuestions([Decision(question.id, True)], question.id)
        filler.bells.ring(filler.store.do(answers).doorbells)
    filler.deliver()
    runs = [filler.store.read(question.run_id) for question in questions]
    assert [run.record.status for run in runs] == [Status.COMPLETED] * 3
    assert not list(filler.store.open_interrupts())
