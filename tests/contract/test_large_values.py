"""Large values on their way through the nodes of a run: who decompresses, decodes and encodes them."""

from __future__ import annotations

import contextlib
import enum
import math
import zlib
from collections import Counter, deque
from types import MappingProxyType, SimpleNamespace

import pydantic
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from runner import GraphBuilder
from runner.approvals import Rule
from runner.definition.registry import Registry
from runner.errors import UnstorableError
from runner.execution.engine import Engine
from runner.hooks import AfterNodeCallEvent
from runner.operations.answers import apply_decisions
from runner.records import codec
from runner.records.interrupts import answers_from
from runner.records.run import Status
from runner.store import encoding
from runner.store.encoding import LARGE
from runner.store.redis import large_values, requests
from runner.store.redis.large_values import LargeValue
from runner.store.redis.store import RedisStore
from runner.testing import answer
from tests.execution.test_effects import vote

TEXT, DATA = "x" * 100_000, list(range(20_000))


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


def routed(builder, function):
    """Give a graph the output of the first, and have a condition read what the graph gives."""
    inner = GraphBuilder()
    inner.add_node(function, "function")
    builder.add_node(inner.build(), "b")
    builder.add_node(ignore, "c")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c", condition=lambda state: state.results["b"].result != "")


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
    """Return the only input, or the task."""
    return next(iter(ctx.inputs.values()), ctx.task)


def shorten(ctx):
    """Return the only input but for its first item."""
    return ctx.inputs["a"][1:]


def task_length(ctx):
    """Read the task."""
    return len(ctx.task)


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "function", "expected"),
    [
        (many, ignore, (0, (0, 0), False)),
        (many, pass_on, (1, (1, 21), False)),  # decoded once more, to compare with
        (many, ignore_async, (1, (1, 20), False)),
        (one, shorten, (1, (1, 1), True)),
        (nested, ignore, (1, (0, 0), False)),
        (nested, task_length, (1, (1, 1), False)),
        (nested, pass_on, (1, (1, 2), False)),
        (beside_a_map, ignore, (0, (0, 0), False)),
    ],
)
def test_a_large_value_is_decoded_where_it_is_read(
    redis_url, monkeypatch, form, function, expected
):
    """What no node reads stays compressed, what one returns unchanged is not encoded; all read one text."""
    counts: Counter[str] = Counter()

    def count(kind, owner, name):
        original = getattr(owner, name)

        def counted(value, *options):
            result = original(value, *options)
            counts[kind] += any(
                isinstance(x, bytes) and len(x) > LARGE for x in (value, result)
            )
            return result

        monkeypatch.setattr(owner, name, counted)

    count("decompressed", zlib, "decompress")
    for owner, name in ((large_values, "load"), (encoding, "load")):
        count("decoded", owner, name)
    for owner, name in ((codec, "dump_json"), (requests, "dump"), (zlib, "compress")):
        count("encoded", owner, name)
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
            decompressed, decoded, is_encoded = expected
            assert counts["decompressed"] == decompressed
            assert counts["decoded"] == decoded[number]
            assert bool(counts["encoded"]) == is_encoded
            assert first.read(run_id).record.status is Status.COMPLETED


@pytest.mark.full
def test_each_reader_of_data_has_a_copy(redis_url):
    """What one node changes in its input, no other node sees; what it returns is stored as it is then."""
    seen = []

    def change(ctx):
        seen.append(ctx.inputs["a"][0])
        ctx.inputs["a"][0] = "changed"
        return ctx.inputs["a"]

    registry, bells = registered(many, change, DATA), Bells()
    with contextlib.closing(RedisStore(redis_url)) as store:
        engine = Engine(store, bells, registry)
        run_id = engine.start("g", "task")
        bells.deliver(engine)

        assert seen == [0] * 20
        outputs = store.read(run_id).outputs
        assert (outputs["a", 1], outputs["n0", 1]) == (DATA, ["changed", *DATA[1:]])


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "function", "most", "is_held"),
    [(one, pass_on, 1, True), (one, ignore, 1, False), (routed, pass_on, 3, True)],
)
def test_a_node_that_reads_a_damaged_value_is_held(redis_url, form, function, most, is_held):
    """It fails no run: it waits for the value to be repaired. One that ignores it completes."""
    registry, bells = registered(form, function, TEXT), Bells()
    with (
        contextlib.closing(RedisStore(redis_url)) as first,
        contextlib.closing(RedisStore(redis_url)) as second,
        redis.Redis.from_url(redis_url) as client,
    ):
        engine = Engine(first, bells, registry)
        run_id = engine.start("g", "task")
        bells.deliver(engine, most)
        (key,) = client.scan_iter(f"*{run_id}:b")
        (name,) = client.hkeys(key)
        client.hset(key, name, b"100002 damaged")
        bells.deliver(Engine(second, bells, registry))

        run = first.read(run_id)
        assert run.nodes["b"].held == is_held
        assert (run.record.status is Status.COMPLETED) != is_held


class Name(enum.StrEnum):
    """A text that is stored as a plain one."""

    ONE = "1"


class Model(pydantic.BaseModel):
    """Data that is stored with its class."""

    key: int = 1


def alike(value):
    """Make values that look as another does as JSON, in `==` or by their length."""
    texts = [value.encode(), Name.ONE, value + "\udfff"] if isinstance(value, str) else []
    lists = [tuple(value), value[::-1], [*value, value]] if isinstance(value, list) else []
    objects = (
        [MappingProxyType(value), Counter(value), {1: 1}, Model()]
        if isinstance(value, dict)
        else []
    )
    return [*texts, *lists, *objects, 1, 1.0, True, "1", -0.0, 0, math.nan, 2**70, {1}]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, 1, 2**63 - 1, 0.0, 1.0, "1", "", "ö"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["key", "__bytes_encoded__", "1"]), inner)
    ),
)


def changed(data, value):
    """Change a value in place, somewhere or not at all."""
    if isinstance(value, (list, dict)) and value and data.draw(st.booleans()):
        key = data.draw(
            st.sampled_from(range(len(value)) if isinstance(value, list) else [*value])
        )
        value[key] = changed(data, value[key])
        return value
    return data.draw(st.sampled_from([value, *alike(value)]))


def stored(value, given=()):
    """Return both forms in which a result is stored, with the types in them; or why it can't be."""
    try:
        return repr([codec.read(form) for form in codec.pack_result(value, given)])
    except UnstorableError as error:
        return str(error)


@pytest.mark.full
@given(JSON_VALUES.filter(lambda value: isinstance(value, (str, list, dict))), st.data())
def test_a_returned_input_is_stored_as_it_is_now(value, data):
    """Whatever a node did to it before, its stored form is what it would be of a value of its own."""
    large = LargeValue("", data=codec.dump_json(value))
    result = changed(data, large.read())
    assert stored(result, [large]) == stored(result)


class Trusting(LargeValue):
    """Takes what is returned for what was read."""

    def holds(self, value):
        """Look at nothing."""
        return True


@pytest.mark.parametrize("form", [LargeValue, Trusting])
def test_a_change_that_json_hides_is_seen(form):
    """Control of the property: without the comparison the form before the change would be stored."""
    large = form("", data=b'{"n":[1]}')
    result = large.read()
    assert codec.pack_result(result, [large]) == (large, large)
    result["n"][0] = True
    assert (stored(result, [large]) == stored(result)) == (form is LargeValue)


@pytest.mark.full
def test_all_that_reads_a_passed_value_gets_it(redis_url):
    """Hooks that ask, what records a decision, a condition, a map and a graph inside get it."""
    texts, seen = ["x" * 30_000, "y" * 30_000, "z" * 30_000], []

    def ask(event):
        if event.node_id == "c":
            seen.append(event.result)
            event.interrupt("sure")

    builder, inner = GraphBuilder(), GraphBuilder()
    inner.add_node(pass_on, "function")
    builder.add_node(lambda _: texts, "a")
    builder.add_node(pass_on, "b", approval=Rule(eligible=["ana"]))
    builder.add_node(pass_on, "c")
    builder.add_node(inner.build(), "inner", task=pass_on)
    builder.add_map(task_length, "map", over=pass_on)
    builder.add_edge("a", "b")
    builder.add_edge("b", "c", condition=lambda state: state.results["b"].result == texts)
    builder.add_edge("c", "inner")
    builder.add_edge("inner", "map")
    hooks = SimpleNamespace(
        register_hooks=lambda registry, **_: registry.add_callback(AfterNodeCallEvent, ask)
    )
    builder.set_hook_providers([hooks])
    registry, bells = Registry(), Bells()
    registry.add("g", builder.build)
    with contextlib.closing(RedisStore(redis_url)) as store:
        engine = Engine(store, bells, registry)
        run_id = engine.start("g", "task")
        bells.deliver(engine)
        vote(
            SimpleNamespace(
                store=store,
                interrupts=store.read(run_id).interrupts,
                ring=bells.ring,
                go_on=lambda: bells.deliver(engine),
            ),
            "ana",
        )
        *_, question = store.read(run_id).interrupts
        apply_decisions(engine, answers_from(answer(question, "yes")))
        bells.deliver(engine)

        outputs = store.read(run_id).outputs
        assert seen == [texts, texts]
        assert outputs["b", 1] == outputs["c", 1] == outputs["inner", 1] == texts
        assert outputs["map", 1] == [30_000] * 3
