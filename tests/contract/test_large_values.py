"""Large values on their way through the nodes of a run: who decompresses, decodes and encodes them."""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter, deque

import pytest
import redis

from runner import GraphBuilder
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.records.run import Status
from runner.store.encoding import LARGE
from runner.store.redis import large_values, requests
from runner.store.redis.store import RedisStore

TEXT, DATA = "x" * 100_000, list(range(50_000))


class Bells(deque):
    """Doorbells of one process, which it answers in their order."""

    ring = deque.extend

    def deliver(self, engine, most=1_000):
        """Answer up to so many."""
        while self and most:
            bell, most = self.popleft(), most - 1
            engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)


def many(builder, function):
    """Give 20 nodes the output of the first."""
    for number in range(20):
        builder.add_node(function, f"n{number}")
        builder.add_edge("a", f"n{number}")


def one(builder, function):
    """Give one node the output of the first."""
    builder.add_node(function, "b")
    builder.add_edge("a", "b")


def nested(builder, function):
    """Give a node in a graph in a graph the output of the first as its task."""
    inner, middle = GraphBuilder(), GraphBuilder()
    inner.add_node(function, "function")
    middle.add_node(inner.build(), "inner")
    builder.add_node(middle.build(), "middle")
    builder.add_edge("a", "middle")


def beside_a_map(builder, function):
    """Give a map the output of the first beside the list that it goes over."""
    builder.add_node(lambda _: [1, 2], "list")
    builder.add_map(function, "map", over="list")
    for edge in (("a", "list"), ("list", "map"), ("a", "map")):
        builder.add_edge(*edge)


def registered(form, function, value):
    """Register a graph whose first node returns a value."""
    builder, registry = GraphBuilder(), Registry()
    builder.add_node(lambda _: value, "a")
    builder.set_entry_point("a")
    form(builder, function)
    registry.add("g", builder.build)
    return registry


def ignore(_):
    """Look at nothing."""


async def ignore_async(_):
    """Look at nothing, on the loop."""


def pass_on(ctx):
    """Return the only input."""
    return ctx.inputs["a"]


def task_length(ctx):
    """Read the task."""
    return len(ctx.task)


@pytest.mark.parametrize(
    ("form", "function", "expected"),
    [
        (many, ignore, (0, (0, 0), (0, 0))),
        (many, pass_on, (1, (1, 20), (0, 20))),
        (many, ignore_async, (1, (1, 20), (0, 0))),
        (nested, ignore, (1, (0, 0), (0, 0))),
        (nested, task_length, (1, (1, 1), (0, 0))),
        (beside_a_map, ignore, (0, (0, 0), (0, 0))),
    ],
)
def test_a_large_value_is_decoded_where_it_is_read(
    redis_url, monkeypatch, form, function, expected
):
    """What no node looks at stays compressed; a text is decoded once for all readers, data for each."""
    counts: Counter[str] = Counter()

    def count(owner, name):
        original = getattr(owner, name)

        def counted(value):
            result = original(value)
            counts[name] += any(
                isinstance(x, bytes) and len(x) > LARGE for x in (value, result)
            )
            return result

        monkeypatch.setattr(owner, name, counted)

    for owner, name in (
        (zlib, "decompress"),
        (large_values, "load"),
        (large_values, "dump"),
        (requests, "dump"),
    ):
        count(owner, name)
    for number, value in enumerate([TEXT, DATA]):
        registry, bells = registered(form, function, value), Bells()
        with (
            contextlib.closing(RedisStore(redis_url, namespace=f"n{number}")) as first,
            contextlib.closing(RedisStore(redis_url, namespace=f"n{number}")) as second,
        ):
            engine = Engine(first, bells, registry)
            run_id = engine.start("g", "task")
            bells.deliver(engine, 1)
            counts.clear()
            bells.deliver(Engine(second, bells, registry))
            decompressed, decoded, encoded = expected
            assert counts["decompress"] == decompressed
            assert (counts["load"], counts["dump"]) == (decoded[number], encoded[number])
            assert first.read(run_id).record.status is Status.COMPLETED


def test_each_reader_of_data_has_a_copy(redis_url):
    """What one node changes in its input, no other node sees, nor does the run."""
    seen = []

    def change(ctx):
        seen.append(ctx.inputs["a"][0])
        ctx.inputs["a"][0] = "changed"
        return ctx.inputs["a"][0]

    registry, bells = registered(many, change, DATA), Bells()
    with contextlib.closing(RedisStore(redis_url)) as store:
        engine = Engine(store, bells, registry)
        run_id = engine.start("g", "task")
        bells.deliver(engine)

        assert seen == [0] * 20
        outputs = store.read(run_id).outputs
        assert (outputs["a", 1], outputs["n0", 1]) == (DATA, "changed")


@pytest.mark.parametrize(("function", "is_held"), [(pass_on, True), (ignore, False)])
def test_a_node_that_reads_a_damaged_value_is_held(redis_url, function, is_held):
    """It fails no run: it waits for the value to be repaired. One that ignores it completes."""
    registry, bells = registered(one, function, TEXT), Bells()
    with (
        contextlib.closing(RedisStore(redis_url)) as first,
        contextlib.closing(RedisStore(redis_url)) as second,
        redis.Redis.from_url(redis_url) as client,
    ):
        engine = Engine(first, bells, registry)
        run_id = engine.start("g", "task")
        bells.deliver(engine, 1)
        (key,) = client.scan_iter(f"*{run_id}:b")
        (name,) = client.hkeys(key)
        client.hset(key, name, b"100002 damaged")
        bells.deliver(Engine(second, bells, registry))

        run = first.read(run_id)
        assert run.nodes["b"].held == is_held
        assert (run.record.status is Status.COMPLETED) != is_held
