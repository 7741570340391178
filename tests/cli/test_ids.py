"""Ids: a unique prefix is enough, and the shell completes them."""

from __future__ import annotations

import json

import pytest

from runner.operations.message_handlers import Disposition, IncomingMessage, handle_answer
from runner.store.redis.store import RedisStore
from tests.graphs import Bench, ident, wired


@pytest.fixture
def bench(fake_store):
    """A run that waits for a person, in a store of this process."""
    graph = wired({"ask": lambda ctx: ctx.interrupt("ok?"), "end": ident}, "ask end").build()
    bench = Bench(graph, lambda _: RedisStore(fake_store.url, push=False)).start()
    bench.finish()
    return bench


@pytest.fixture
def told(call, fake_store):
    return lambda *arguments: call(*arguments, url=fake_store.url)


def question_of(bench) -> str:
    (question,) = bench.store.read(bench.run_id).interrupts
    return question.id


def test_a_unique_prefix_of_a_run_is_enough(bench, told):
    """The id can be cut off where no other run begins so."""
    shown = told("runs", "show", bench.run_id[:-6], "--json")

    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["run_id"] == bench.run_id


def test_a_prefix_of_two_runs_changes_nothing(bench, told):
    """The error names both, and neither run is cancelled."""
    first, second = bench.run_id, bench.start().run_id

    refused = told("runs", "cancel", first[:4])

    assert refused.exit_code == 2
    assert first in refused.stderr
    assert second in refused.stderr
    assert {run.status for run in bench.store.runs()} == {"interrupted", "executing"}


@pytest.mark.full
@pytest.mark.parametrize(
    "text", ["zz", "00zz", "x", "00" + "0" * 40, "0006h02mgellr5rcm1555941sc5o"]
)
def test_a_prefix_of_no_run_is_not_found(bench, told, text):
    """What can't begin an id, or begins none, is the same mistake."""
    assert told("runs", "show", text).exit_code == 4


@pytest.mark.full
@pytest.mark.parametrize("command", ["show", "cancel", "retry", "remove", "export", "watch"])
def test_a_key_of_a_run_is_no_run(bench, told, command):
    """`RUN:e` is where the store has the run's events: it is not found like any other wrong id."""
    done = told("runs", command, f"{bench.run_id}:e")

    assert done.exit_code == 4
    assert f"there is no run '{bench.run_id}:e'" in done.stderr


def test_an_answer_that_names_a_key_of_a_run_is_unknown(bench):
    """A sender of such an id gets its receipt, and the message is kept: it is not tried for ever."""
    body = {"v": 1, "interrupt_id": f"{bench.run_id}:e.a.1.abc", "response": 1}
    message = IncomingMessage("1-0", "key", json.dumps(body).encode())
    verdict = handle_answer(bench.engine, message, lambda _: "kept")

    assert (verdict.disposition, verdict.receipt.status) == (Disposition.DEAD, "unknown")


@pytest.mark.full
def test_a_question_is_named_by_the_beginning_of_its_run(bench, told):
    """A run with one open question needs no more to answer it."""
    receipt = told("interrupts", "respond", bench.run_id[:12], "--response", "true")

    assert receipt.exit_code == 0, receipt.stderr
    assert receipt.stdout.split("\t")[:2] == ["accepted", question_of(bench)]
    assert told("interrupts", "show", question_of(bench)[:-4]).exit_code == 0


@pytest.mark.full
def test_a_question_of_a_child_run_is_named_by_the_outer_run(told, fake_store):
    """The id that `runs list` shows first is enough."""
    inner = wired({"ask": lambda ctx: ctx.interrupt("ok?")}).build()
    bench = Bench(
        wired({"one": inner}).build(), lambda _: RedisStore(fake_store.url, push=False)
    ).start()
    bench.finish()

    shown = told("interrupts", "show", bench.run_id, "--json")

    assert json.loads(shown.stdout)["name"] == "ok?"


@pytest.mark.full
def test_the_open_question_is_meant_where_others_are_answered(bench, told):
    """Of the questions of a run the one that is still open is taken."""
    graph = wired(
        {"first": lambda ctx: ctx.interrupt("1?"), "then": lambda ctx: ctx.interrupt("2?")},
        "first then",
    )
    twice = Bench(graph.build(), lambda _: bench.store)
    twice.engine.publish(["bench"])
    twice.start().finish()
    told("interrupts", "respond", twice.run_id, "--response", "1")
    twice.engine.sweep()
    twice.finish()

    receipt = told("interrupts", "respond", twice.run_id, "--response", "2")

    assert receipt.stdout.startswith("accepted"), receipt.output
    assert {question.status for question in twice.store.read(twice.run_id).interrupts} == {
        "answered"
    }


@pytest.mark.full
@pytest.mark.parametrize("word", ["interrupted", "Interrupted", "INTERRUPTED"])
def test_a_status_is_accepted_in_any_case(bench, told, word):
    """A status can be copied from wherever it is shown."""
    assert told("runs", "list", "--status", word).stdout.startswith(bench.run_id)


def test_the_version_is_an_option_too(told):
    """`runner --version` writes one line."""
    done = told("--version")

    assert done.exit_code == 0
    assert done.stdout.split()[0] == "runner"
