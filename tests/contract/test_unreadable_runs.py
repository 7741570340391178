"""A run that can't be read keeps its own timers waiting, and those of no other run."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from runner.approvals.ballots import Standing
from runner.errors import CorruptDocument
from runner.records import codec
from runner.store.interface import Claim
from runner.store.redis import due_timers
from runner.store.redis.dead_letters import DeadLetters
from runner.store.redis.keys import Keys
from runner.store.redis.server_info import read_server_info
from runner.store.redis.transaction import transaction
from runner.store.requests import ClaimVisit, SaveCheckpoint
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import saved, shape

HEALTHY = 40
RETIRED = "runner:{p00}:retired"
DAMAGE = "ready one 1 0 0 - - {not json"


def rung_after_a_loss(store, clock, client):
    """Lose the doorbells of many runs, damage one of them, sweep; return it and the runs that were rung."""
    worker = ManualWorker(store)
    graph = shape("a")
    first = [worker.start(graph) for _ in range(HEALTHY // 2)]
    broken = worker.start(graph)
    last = [worker.start(graph) for _ in range(HEALTHY // 2)]
    record = client.hget(Keys().run(broken), "n:a")
    client.hset(Keys().run(broken), "n:a", DAMAGE)
    clock.advance(60)
    rung = set()
    for _ in range(3):
        rung |= {bell.run_id for bell in store.sweep(50).doorbells}
    assert broken not in rung
    return broken, record, rung & {*first, *last}


@pytest.mark.full
def test_the_timers_of_other_runs_are_applied(store, clock, client, caplog):
    """Beside one damaged record every other run is rung again, and the log names the damaged one."""
    with caplog.at_level(logging.ERROR):
        broken, _, rung = rung_after_a_loss(store, clock, client)

    assert len(rung) == HEALTHY
    assert any("timer.failed" in line and broken in line for line in caplog.messages)


def test_a_sweep_that_ends_at_the_first_error_would_lose_them(
    store, clock, client, monkeypatch
):
    """The control: without protection a sweep ends at the damaged run, and others get no doorbell."""
    monkeypatch.setattr(due_timers, "handle", due_timers.attempt)
    with pytest.raises(ValueError, match=r"key must be a string"):
        rung_after_a_loss(store, clock, client)


@pytest.mark.full
def test_a_record_that_contradicts_its_nodes_holds_up_no_worker(
    store, clock, client, monkeypatch
):
    """A step that the store refuses again and again on the same data ends as damage; the control is whole."""
    monkeypatch.setattr(transaction, "PAUSE", 0)
    worker = ManualWorker(store, clock)
    run_id, token = worker.begin("a")
    key = Keys().run(run_id)
    record = client.hget(key, "run")
    client.hset(key, "run", "completed 0 0 0 0 1 17 -")

    with pytest.raises(CorruptDocument, match="contradicts itself"):
        worker.settle(token)
    client.hset(key, "run", record)
    assert worker.settle(token) == "settled"


@pytest.mark.full
def test_a_damaged_count_holds_up_no_server(store, clock, client):
    """No script and no reader counts on and on by what a field says: the next run is claimed at once."""
    worker = ManualWorker(store, clock)
    run_id, token = worker.begin("a")
    key = Keys().run(run_id)
    assert store.do(SaveCheckpoint(token, saved(1, "x"))).word == "saved"
    client.hset(f"{key}:m", "#a", 2**40)
    client.hset(key, "v:q", codec.encode(Standing(votes=2**40)))

    assert store.votes(f"{run_id}.q") == []
    clock.advance(60)
    (bell,) = store.sweep().doorbells
    with suppress(Exception):  # whatever a worker makes of the messages that are not there
        store.do(ClaimVisit(run_id, bell.node, bell.visit, bell.attempt, "nonce"))
    assert worker.begin("a")


@pytest.mark.parametrize("member", [b"garbage", b"node|00run", b"node|\xff|a"])
def test_what_is_no_timer_is_a_dead_letter(store, clock, client, redis_url, member):
    """An entry that no version could have written is deleted by name, and a node beside it is rung."""
    worker = ManualWorker(store)
    run_id = worker.start("a")
    client.zadd(Keys().timers, {member: 1})
    clock.advance(60)

    assert [bell.run_id for bell in store.sweep().doorbells] == [run_id]

    assert client.zscore(Keys().timers, member) is None
    (letter,) = DeadLetters(redis_url).all()
    assert repr(member) in letter.reason


@pytest.mark.parametrize(
    "entry", [b"run\ncompleted", b"\xff\n", b"run\na\nb\nnone", b"run\na\nb\n[]"]
)
def test_what_is_no_ended_run_stops_no_sweep(store, clock, client, entry):
    """An entry that no version could have written is removed, and a node beside it is rung."""
    run_id = ManualWorker(store).start("a")
    client.zadd(RETIRED, {entry: 1})
    clock.advance(60)

    assert [bell.run_id for bell in store.sweep().doorbells] == [run_id]
    assert client.zscore(RETIRED, entry) is None


@pytest.mark.slow
def test_a_timer_that_keeps_failing_is_a_dead_letter_and_heals(store, clock, client, redis_url):
    """After some failures there is one dead letter; doctor knows the run; a repaired run continues."""
    broken, record, _ = rung_after_a_loss(store, clock, client)
    for _ in range(10):
        clock.advance(300)
        store.sweep()

    (letter,) = DeadLetters(redis_url).all()
    assert (letter.run_id, letter.node) == (broken, "a")
    assert "fails" in letter.reason
    assert read_server_info(redis_url).failing == [broken]

    client.hset(Keys().run(broken), "n:a", record)
    clock.advance(300)
    assert broken in {bell.run_id for bell in store.sweep().doorbells}
    assert read_server_info(redis_url).failing == []
    assert isinstance(store.do(ClaimVisit(broken, "a", 1, 1, "nonce")), Claim)
