"""What is told to whom when a run has ended."""

from __future__ import annotations

import pytest

from runner import Client, GraphBuilder
from runner.definition.registry import Registry
from runner.errors import BrokerError, UsageError
from runner.operations import recovery
from runner.store.memory.store import MemoryStore
from tests.graphs import Bench

LONG = "x" * 2000


def bench(body, store=MemoryStore):
    builder = GraphBuilder()
    builder.add_node(body, "a")
    return Bench(builder.build(), store)


def broken(ctx):
    if ctx.attempt == 1:
        raise ValueError("no")
    return "mended"


def ended(body, store=MemoryStore, **options) -> Bench:
    """Run a graph of one node until only its end is to be told."""
    made = bench(body, store).start(on_end="shop.done", tags={"team": "a"}, **options)
    made.deliver("a")
    return made


def test_the_task_is_called_with_how_the_run_ended():
    """The task learns the run, its graph, status, output and tags; its id is made of the run's."""
    run = ended(lambda ctx: {"paid": ctx.task}, task=7)

    assert run.deliver("@end") == "end_reported"

    told = {
        "graph": "bench",
        "status": "completed",
        "output": {"paid": 7},
        "tags": {"team": "a"},
    }
    assert run.calls == [("shop.done", {"run_id": run.run_id, **told}, f"{run.run_id}.end")]


@pytest.mark.parametrize("body", [broken, lambda ctx: LONG])
def test_only_a_small_output_of_a_completed_run_is_told(body):
    """The task of a run that failed, or whose output is long, is told no output."""
    run = ended(body)
    run.deliver("@end")

    assert [kwargs["output"] for _, kwargs, _ in run.calls] == [None]


def test_an_outage_of_the_broker_is_tried_again():
    """When the task can't be sent the end stays unreported, and a sweep rings again."""
    run = ended(lambda ctx: 1)
    run.bells.clear()
    run.outage = BrokerError()
    with pytest.raises(BrokerError):
        run.engine.deliver(run.run_id, "@end", 1, 1)

    run.outage = None
    run.clock.advance(31)
    run.engine.sweep()

    assert run.deliver("@end") == "end_reported"
    assert len(run.calls) == 1


def test_a_program_without_a_broker_leaves_the_call_to_a_worker():
    """Where nothing can be sent the end stays unreported."""
    builder, registry = GraphBuilder(), Registry()
    builder.add_node(lambda ctx: 1, "a")
    registry.add("one", builder.build)
    client = Client(store=MemoryStore(), registry=registry)
    run = client.start("one", None, on_end="shop.done")
    client.engine.deliver(run.id, "a", 1, 1)

    assert client.engine.deliver(run.id, "@end", 1, 1).word == "left"
    assert client.engine.store.peek(run.id).unreported == 1


@pytest.mark.parametrize("name", ["@shop", "shop.done@", "shop done", "x" * 1001])
def test_what_is_no_task_is_refused(name):
    """A start whose `on_end` can't be a task begins nothing."""
    run = bench(lambda ctx: 1)

    with pytest.raises(UsageError, match="Nothing was started"):
        run.start(on_end=name)
    assert not run.store.runs().items


@pytest.mark.full
def test_a_doubled_doorbell_calls_once():
    """A doorbell for an end that was told is stale and calls nobody."""
    run = ended(lambda ctx: 1)

    assert [run.engine.deliver(run.run_id, "@end", 1, 1).word for _ in range(2)] == [
        "end_reported",
        "stale",
    ]
    assert len(run.calls) == 1


@pytest.mark.full
@pytest.mark.parametrize("where", [("@end", 2, 1), ("@end", 0, 1)])
def test_a_doorbell_of_another_end_calls_nobody(where):
    """Only the last end of a run is told."""
    run = ended(lambda ctx: 1)

    assert run.engine.deliver(run.run_id, *where).word == "stale"
    assert run.engine.deliver("00no", "@end", 1, 1).word == "stale"
    assert run.calls == []


@pytest.mark.full
def test_a_run_that_goes_on_calls_nobody(in_redis):
    """A doorbell from before a retry finds that the run has not ended; the next end is told."""
    run = ended(broken, in_redis)
    recovery.retry(run.engine, run.run_id)
    assert run.engine.deliver(run.run_id, "@end", 1, 1).word == "stale"

    run.engine.deliver(run.run_id, "a", 1, 2)
    assert run.engine.deliver(run.run_id, "@end", 2, 1).word == "end_reported"

    assert [(kwargs["status"], task_id) for _, kwargs, task_id in run.calls] == [
        ("completed", f"{run.run_id}.end.2")
    ]
