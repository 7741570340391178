"""The fake store of the test kit: a Redis in this process."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from runner import Client, Status
from runner.cli.program import runner
from runner.store.redis.store import RedisStore
from runner.testing import answer
from runner.testing import fake_store as make
from tests.contract.store import StoreContract
from tests.graphs import Bench, ident, wired

pytestmark = pytest.mark.full


class TestFakeStore(StoreContract, only="scripts"):
    @pytest.fixture
    def store(self, clock, fake_store):
        store = RedisStore(fake_store.url, clock=clock, lease=30, push=False)
        yield store
        store.close()


def test_a_client_and_an_engine_work_on_it(fake_store):
    """What one object writes another one reads at the same address, as on a server."""
    graph = wired({"ask": lambda ctx: ctx.interrupt("ok?"), "end": ident}, "ask end").build()
    bench = Bench(graph, lambda clock: RedisStore(fake_store.url, push=False)).start()
    result = bench.finish()
    client = Client(redis_url=fake_store.url)

    assert result.status is Status.INTERRUPTED
    assert client.run(bench.run_id).respond(answer(result, "yes"))[0].status == "accepted"
    bench.engine.sweep()
    assert bench.finish().status is Status.COMPLETED
    assert client.run(bench.run_id).status is Status.COMPLETED


def test_a_graph_runs_on_it_when_it_is_called(fake_store):
    """A graph called in process runs in it, and what other code does by its address counts in the run."""
    builder = wired(
        {"ask": lambda ctx: ctx.interrupt("ok?", ctx.task), "end": ident}, "ask end"
    )
    graph = builder.set_store(fake_store.open()).build()
    result = graph("go")
    client = Client(redis_url=fake_store.url)
    (question,) = client.interrupts()
    assert (question.run_id, question.reason) == (result.run_id, "go")

    client.respond(question.id, "yes")

    assert graph([]).status is Status.COMPLETED
    assert client.run(result.run_id).result().results["ask"].output == "yes"


def test_the_command_line_works_on_it(fake_store):
    """A command in this process reaches it by its address."""
    done = CliRunner().invoke(
        runner, ["runs", "list", "--json"], env={"RUNNER_REDIS_URL": fake_store.url}
    )

    assert (done.exit_code, '"runs": []' in done.stdout) == (0, True), done.output


def test_the_doctor_needs_a_server(fake_store):
    """What reads of the server itself says that this is none, and changes nothing."""
    done = CliRunner().invoke(runner, ["doctor"], env={"RUNNER_REDIS_URL": fake_store.url})

    assert done.exit_code == 7


def test_each_fake_store_is_empty_and_apart():
    """Two stores share nothing, and one that is over is gone with its data."""
    with make() as one, make() as other:
        one.client.set("key", "value")
        assert other.client.keys() == []
    with make() as later:
        assert later.client.keys() == []
