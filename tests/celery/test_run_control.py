"""Runs that people steer, on real workers."""

from __future__ import annotations

import pytest

from runner import Status
from runner.errors import ConflictError, InterruptWithdrawn
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


def test_a_graph_inside_is_mended_in_its_place(threads):
    """The child run goes on where it failed, and its parent after it."""
    run = threads.client.start("repairable_inside", "go")
    ends(run, Status.FAILED)
    (child,) = threads.client.engine.store.children(run.id)
    threads.redis.set(f"mended:{child}", 1)

    assert run.retry() == ["inner"]

    result = ends(run, Status.COMPLETED)
    assert result.results["after"].output == ["x"]
    assert ran(threads, child) == ["x 1", "y 1", "y 2"]
    assert threads.client.engine.store.children(run.id) == [child]


def test_a_cancelled_run_goes_on(threads):
    """A run that was cancelled while it waited asks its question again, under a new id."""
    run = threads.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    run.cancel("a mistake")
    ends(run, Status.CANCELLED)

    assert run.retry() == ["node.with.dots"]

    wait_until(run.interrupts, "it is asked again")
    (again,) = run.interrupts()
    assert again.id != question.id
    assert threads.client.respond(question.id, "no").status == "superseded"
    threads.client.respond(again.id, "yes")
    assert ends(run, Status.COMPLETED).results["node.with.dots"].output == "yes"


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


def test_a_run_is_forked_from_a_node(threads):
    """The node has its edited input, nodes before it don't run again, and the source stays as it is."""
    run = threads.client.start("repairable", "go")
    ends(run, Status.FAILED)

    forked = run.fork("b", input="other")

    threads.redis.set(f"mended:{forked.id}", 1)
    wait_until(
        lambda: forked.status is not Status.EXECUTING,
        "the fork has come to its end or question",
    )
    if forked.status is Status.FAILED:  # it was quicker than the test that mends
        forked.retry()
    wait_until(forked.interrupts, "the fork asks a question of its own")
    threads.client.respond(forked.interrupts()[0].id, "yes")
    result = ends(forked, Status.COMPLETED)
    assert result.results["a"].output == {"task": "go"}
    assert [line for line in ran(threads, forked.id) if line[0] == "a"] == []
    assert run.status is Status.FAILED


def test_a_run_is_started_again(threads):
    """It is a run of its own with the same task and tags."""
    run = threads.client.start("chain", "go", tags={"team": "red"})
    run.wait(60)

    again = run.again()

    assert again.wait(60).execution_order == ["a", "b", "c"]
    assert again.id != run.id


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


def test_a_withdrawn_question_fails_its_node(threads):
    """The node's error says that the question was withdrawn, and why."""
    run = threads.client.start("question", "go")
    (question,) = run.wait(60).interrupts

    threads.client.withdraw(question.id, "no longer needed")

    error = ends(run, Status.FAILED).results["node.with.dots"].result
    assert isinstance(error, InterruptWithdrawn)
    assert "no longer needed" in str(error)
