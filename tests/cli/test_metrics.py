"""Measured times: how they are collected, and what `runner metrics` makes of them."""

from __future__ import annotations

import json
import re
import sys

import pytest
import redis

from runner.celery.measuring import spent
from runner.records.metrics import ANSWER, NODE, QUEUE_WAIT
from runner.records.outcomes import Succeeded
from runner.records.workers import Worker
from runner.store.redis.connection import RedisConnection
from runner.store.redis.measurements import BOUNDS, Collector, increments, spending
from runner.store.redis.store import RedisStore
from runner.store.redis.workers import WorkerRegistry, described
from tests.graphs import Bench, ident, wired
from tests.waiting import wait_until

SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? ([0-9.e+]+)")


@pytest.fixture
def store(fake_store):
    return RedisStore(fake_store.url, push=False)


def samples(call, url) -> dict[str, float]:
    """What `runner metrics` writes, by name and labels."""
    lines = call("metrics", url=url).stdout.splitlines()
    matches = [SAMPLE.fullmatch(line) for line in lines if not line.startswith("#")]
    return {f"{match[1]}{{{match[2] or ''}}}": float(match[3]) for match in matches}


def test_a_histogram_counts_up_to_each_bound(call, store, fake_store):
    """Each bucket has what is at most its bound; the sum and the number of all follow."""
    for seconds in (0.01, 0.02, 3, 1e9):
        store.measure(increments(NODE, seconds, graph="shop", outcome="completed"))
    numbers = samples(call, fake_store.url)
    labels = 'graph="shop",outcome="completed"'

    assert numbers[f'runner_node_seconds_bucket{{{labels},le="0.01"}}'] == 1
    assert numbers[f'runner_node_seconds_bucket{{{labels},le="0.05"}}'] == 2
    assert numbers[f'runner_node_seconds_bucket{{{labels},le="1800"}}'] == 3
    assert numbers[f'runner_node_seconds_bucket{{{labels},le="+Inf"}}'] == 4
    assert numbers[f"runner_node_seconds_count{{{labels}}}"] == 4
    assert numbers[f"runner_node_seconds_sum{{{labels}}}"] == pytest.approx(1e9 + 3.03)
    text = call("metrics", url=fake_store.url).stdout
    assert text.count("# TYPE runner_node_seconds histogram") == 1


@pytest.mark.full
def test_an_answer_counts_with_the_time_that_its_question_was_open(call, store, fake_store):
    """The time to answer is measured wherever the answer comes in."""
    graph = wired({"ask": lambda ctx: ctx.interrupt("ok?")}).build()
    bench = Bench(graph, lambda _: store).start()
    (question,) = bench.finish().interrupts
    call("interrupts", "respond", question.id, "--response", "true", url=fake_store.url)
    call("interrupts", "respond", question.id, "--response", "true", url=fake_store.url)
    numbers = samples(call, fake_store.url)

    assert numbers["runner_answer_seconds_count{}"] == 1
    assert numbers['runner_answer_seconds_bucket{le="10"}'] == 1


@pytest.mark.full
def test_decided_questions_are_not_counted_as_open(call, store, fake_store):
    """After a decision there are as many as wait, and the age is of these; control: before it, of both."""
    graph = wired({"ask": lambda ctx: ctx.interrupt("ok?")}).build()
    first, _ = (Bench(graph, lambda _: store).start().finish().interrupts[0] for _ in range(2))
    assert samples(call, fake_store.url)['runner_questions_open{graph="bench"}'] == 2
    call("interrupts", "respond", first.id, "--response", "true", url=fake_store.url)
    numbers = samples(call, fake_store.url)

    assert numbers['runner_questions_open{graph="bench"}'] == 1
    assert numbers["runner_question_oldest_seconds{}"] < 600


def test_the_wait_of_a_ready_node_is_known(store):
    """From its doorbell on, until it runs."""
    bench = Bench(wired({"a": ident}).build(), lambda _: store).start()

    assert 0 <= store.waited(bench.run_id, "a") < 10
    assert store.waited(bench.run_id, "b") is None
    bench.finish()
    assert store.waited(bench.run_id, "a") is None


def test_measurements_are_written_together():
    """A busy worker writes once in a while, and nothing twice."""
    written = []
    collector = Collector(written.append, delay=3600)
    for _ in range(3):
        collector.add(increments(QUEUE_WAIT, 0.5, graph="g"))
    collector.flush()
    collector.flush()
    (fields,) = written

    assert {json.loads(field)[2]: number for field, number in fields.items()} == {
        "1": 3,
        "sum": 1.5,
    }


def test_measurements_are_written_without_more_work():
    """An idle worker writes what it has measured, too."""
    written = []
    Collector(written.append, delay=0.01).add(increments(ANSWER, 1))

    wait_until(lambda: written, "it is written")


@pytest.mark.full
def test_a_worker_measures_its_nodes_and_their_waits(cli, waiting):
    """By graph: how long nodes ran and with which outcome, and how long they waited for a worker."""

    def measured() -> str:
        return cli("metrics").stdout

    for name in (
        'runner_node_seconds_count{graph="shop-refund",node="approve",outcome="waiting"}',
        "runner_queue_wait_seconds_count",
    ):
        wait_until(lambda name=name: name in measured(), name)


def test_a_node_that_is_measured_again_costs_no_json():
    """The fields of a histogram are written once for each node; control: those of another node."""
    encoded = []

    def watch(frame, event, _):
        if event == "call" and frame.f_code is json.dumps.__code__:
            encoded.append(frame)

    counts = []
    increments(NODE, 0.001, graph="g", node="again", outcome="completed")
    sys.setprofile(watch)
    try:
        for node in ("again", "another"):
            increments(NODE, 0.001, graph="g", node=node, outcome="completed")
            counts.append(len(encoded))
    finally:
        sys.setprofile(None)

    assert counts == [0, 2]


def test_bounds_rise():
    """A histogram whose bounds were out of order would count wrong."""
    assert all(list(bounds) == sorted(set(bounds)) for bounds in BOUNDS.values())


def test_what_agents_spend_is_a_counter(call, store, fake_store):
    """By graph: an agent that goes on after an answer adds only what it spent since."""
    store.measure(spending("tokens", 30, "shop"))
    store.measure(spending("tokens", 12, "shop"))
    text = call("metrics", url=fake_store.url).stdout

    assert 'runner_spent_total{counter="tokens",graph="shop"} 42' in text
    assert text.count("# TYPE runner_spent_total counter") == 1


def test_a_worker_measures_what_an_execution_has_spent():
    """Not what the executions before it had: each checkpoint has the usage so far."""
    before = {"totalTokens": 30, "modelCalls": 2, "costMicros": 1_000_000}
    after = {"totalTokens": 45, "modelCalls": 3, "toolCalls": 1, "costMicros": 1_500_000}

    assert spent(Succeeded(None, None, after), before) == {
        "tokens": 15,
        "model_calls": 1,
        "tool_calls": 1,
        "cost": 0.5,
    }
    assert spent(Succeeded(None, None, {"totalTokens": 45}), {}) == {}


def test_what_waits_and_what_expires_is_measured(call, store, fake_store):
    """How long the first ready node of a queue waits, and how many questions expire within some time."""
    Bench(wired({"a": ident}, a={"queue": "gpu"}).build(), lambda _: store).start()
    ask = wired({"ask": lambda ctx: ctx.interrupt("ok?", expires_in=7200)}).build()
    other = Bench(ask, lambda _: store)
    other.engine.publish(["bench"])
    other.start().finish()
    numbers = samples(call, fake_store.url)

    assert 0 <= numbers['runner_ready_oldest_seconds{queue="runner/gpu"}'] < 60
    assert numbers['runner_questions_expiring{within="1h"}'] == 0
    assert numbers['runner_questions_expiring{within="1d"}'] == 1
    assert numbers["runner_runs_unserved{}"] == 1


def test_workers_say_how_long_their_nodes_run_and_how_wrong_their_clocks_are(
    call, store, fake_store
):
    """The longest node and the largest difference count, of those that live."""
    roster = WorkerRegistry(fake_store.url)
    now = roster.now()
    for name, longest, ahead in (("a", 5.0, 0), ("b", 90.0, -7_000)):
        roster.enter(described(Worker(name, 1, slots=1, longest=longest)), now + ahead)
    numbers = samples(call, fake_store.url)
    roster.close()

    assert numbers["runner_executing_oldest_seconds{}"] == 90
    assert 6.5 < numbers["runner_clock_skew_seconds{}"] < 60
    assert numbers["runner_workers{}"] == 2


def test_the_memory_of_the_store_is_measured(call, redis_url):
    """What it uses and what it may, by server; a limit of 0 is none."""
    with redis.Redis.from_url(redis_url) as client:
        place = RedisConnection(redis_url).place
        client.config_set("maxmemory", "200mb")
        numbers = samples(call, redis_url)
        client.config_set("maxmemory", "0")

    assert numbers[f'runner_store_memory_limit_bytes{{server="{place}"}}'] == 200 * 1024**2
    assert 0 < numbers[f'runner_store_memory_bytes{{server="{place}"}}'] < 200 * 1024**2
    assert samples(call, redis_url)[f'runner_store_memory_limit_bytes{{server="{place}"}}'] == 0
