"""Runs that people steer, on real workers."""

from __future__ import annotations

import pytest

from runner import Status
from runner.errors import ConflictError
from tests.waiting import wait_until


def ran(site, run_id):
    """What was started in a run, in order of the name."""
    return sorted(line.decode() for line in site.redis.lrange(f"ran:{run_id}", 0, -1))


def ends(run, status):
    wait_until(lambda: run.status is status, f"run {run.id} is {status}")
    return run.result()


def test_a_failed_run_is_mended_and_goes_on(threads):
    """What completed is not run again, `once` is not repeated, the withdrawn question is asked again."""
    run = threads.client.start("repairable", "go")
    ends(run, Status.FAILED)
    assert threads.redis.get(f"paid:{run.id}") == b"1"
    threads.redis.set(f"mended:{run.id}", 1)

    assert set(run.retry()) <= {"b", "d"}

    wait_until(lambda: run.status is Status.INTERRUPTED, "only the question is left")
    (question,) = run.interrupts()
    assert threads.client.respond(question.id, "yes").status == "accepted"
    result = ends(run, Status.COMPLETED)
    started = ran(threads, run.id)
    assert [line for line in started if line[0] in "ab"] == ["a 1", "b 1", "b 2"]
    assert threads.redis.get(f"paid:{run.id}") == b"1"
    assert (result.results["b"].output, result.results["d"].output) == (["a"], "yes")
    with pytest.raises(ConflictError):
        run.retry()


def test_a_held_node_goes_on_when_it_is_released_and_a_skipped_one_ends(threads):
    """It keeps the answer that comes meanwhile; a worker ends the other with the output that is given."""
    store, node = threads.client.engine.store, "node.with.dots"
    run, other = (threads.client.start("question", "go") for _ in range(2))
    (question,) = run.wait(60).interrupts
    other.wait(60)
    assert run.hold(node, by="ana", reason="an audit")
    threads.client.respond(question.id, "yes")
    assert run.status is Status.NEEDS_MIGRATION
    assert other.skip(node, "given", by="ana")
    assert ends(other, Status.COMPLETED).results[node].output == "given"
    assert store.read(run.id).nodes[node].hold == "human:|ana"

    assert run.release(node, by="bo")

    assert ends(run, Status.COMPLETED).results[node].output == "yes"
    assert not run.release(node, by="bo")


def test_a_question_is_asked_anew_and_the_old_answer_is_superseded(threads):
    """An answer that was on its way to the old question never takes the new one's place."""
    run = threads.client.start("agent_basic", "weather?")
    (old,) = run.wait(60).interrupts

    threads.client.withdraw(old.id, "asked of the wrong team", reask=True)

    wait_until(
        lambda: [interrupt.id for interrupt in run.interrupts()] not in ([], [old.id]),
        "it is asked anew",
    )
    (new,) = run.interrupts()
    threads.send(
        f'{{"v":1,"interrupt_id":"{old.id}","response":"Rome","reply_to":"runner:replies:old"}}'
    )
    assert threads.receipt("runner:replies:old")["status"] == "superseded"
    threads.client.respond(new.id, "Seattle")
    result = ends(run, Status.COMPLETED)
    assert result.results["weather_agent"].output == "Weather in Seattle: sunny"
