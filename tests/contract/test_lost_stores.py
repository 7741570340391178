"""What a store that lost its data does not lose: the keys by which services know effects."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest

from runner import Client, GraphBuilder, Status
from runner.approvals import Rule
from runner.operations.message_handlers import IncomingMessage, handle_start
from runner.store.redis.store import RedisStore
from runner.store.requests import RemoveRun
from tests.graphs import Bench, wired
from tests.waiting import wait_until


@pytest.fixture
def emptied(in_redis, client):
    """Make a store that has lost all that it had."""

    def make(clock, **options):
        client.flushall()
        return in_redis(clock, **options)

    return make


def paid(store, start=lambda engine, **key: engine.start("bench", "task", **key), **key):
    """Return the keys of what a run pays: in itself, in a graph inside it, and for each of two items."""
    keys = []

    def pay(ctx):
        keys.append(ctx.idempotency_key)
        return [1, 2]

    builder = GraphBuilder()
    builder.add_node(pay, "pay")
    builder.add_node(wired({"pay": pay}).build(), "inside")
    builder.add_map(wired({"pay": pay}).build(), "each", over="pay")
    builder.add_edge("pay", "inside")
    builder.add_edge("pay", "each")
    bench = Bench(builder.build(), store=store)
    start(bench.engine, **key)
    bench.finish_all()
    assert len(set(keys)) == len(keys) == 4
    return keys


def test_effects_keep_their_keys_when_a_run_is_started_again(emptied):
    """A run that its store lost, and that is started again with its key, does not pay twice."""
    assert paid(emptied, idempotency_key="order-1042") == paid(
        emptied, idempotency_key="order-1042"
    )


@pytest.mark.full
@pytest.mark.parametrize("key", [{}, {"idempotency_key": "order-1042"}])
@pytest.mark.parametrize("nested", [False, True])
def test_a_decision_is_used_by_the_node_after_the_one_that_asked(emptied, key, nested):
    """However the run was started, and also in a graph inside it."""

    def ask(ctx):
        return ctx.interrupt("pay", rule=Rule(), action={"amount": 1}).approved

    def pay(ctx):
        return ctx.approved("pay", {"amount": 1}, rule=Rule()).decision

    graph = wired({"ask": ask, "pay": pay}, "ask pay").build()
    bench = Bench(wired({"inside": graph}).build() if nested else graph, store=emptied)
    bench.start(**key).finish()
    (question,) = bench.result().interrupts
    client = Client(store=bench.store, dispatcher=bench)
    assert client.vote(question.id, "approve", by="ana").status == "accepted"
    assert bench.finish().status is Status.COMPLETED, bench.result()


def test_other_starts_have_keys_of_their_own(emptied):
    """A start without a key, with another one, or in another namespace, has other keys of effects."""
    starts = [{}, {}, {"idempotency_key": "a"}, {"idempotency_key": "b"}]
    known = [key for start in starts for key in paid(emptied, **start)]

    assert len(set(known)) == len(known)


@pytest.mark.full
def test_keys_of_effects_differ_between_namespaces(redis_url):
    """Two environments that start with the same key share none with the services that both call."""
    stores = [
        partial(RedisStore, redis_url, push=False, namespace=name) for name in ("one", "two")
    ]
    first, second = (
        paid(lambda clock, make=make: make(clock=clock), idempotency_key="a") for make in stores
    )

    assert not {*first} & {*second}


@pytest.mark.full
@pytest.mark.parametrize(("key", "same"), [({"idempotency_key": "a"}, True), ({}, False)])
def test_the_place_of_a_message_names_no_effects(emptied, key, same):
    """Messages of two stores may have one place; only a key that a program gave is the same work."""
    body = json.dumps({"v": 1, "graph": "bench", "task": "task", **key}).encode()

    def start(engine):
        verdicts = [
            handle_start(engine, IncomingMessage("1-0", "starts/1-0", body)) for _ in range(2)
        ]
        assert (
            len({verdict.receipt.run_id for verdict in verdicts}) == 1
        )  # the message came twice

    first, second = paid(emptied, start), paid(emptied, start)

    assert (first == second) is same


def test_a_run_of_a_removed_one_has_an_id_of_its_own(emptied):
    """The key of a start names its effects, never the run: old answers fit no question of the new one."""
    bench = Bench(wired({"a": lambda ctx: ctx.idempotency_key}).build(), store=emptied)
    results = []
    for _ in range(2):
        results.append(
            (bench.start(idempotency_key="k").finish().results["a"].output, bench.run_id)
        )
        bench.store.do(RemoveRun(bench.run_id))
        ended = time.time()
        wait_until(lambda ended=ended: time.time() > ended + 0.002, "the clock of ids went on")
    (first, first_id), (second, second_id) = results

    assert (first, sorted([first_id, second_id])) == (second, [first_id, second_id])
    assert first_id != second_id
