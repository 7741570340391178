"""The testing strategy of the second seed on real workers, killed while their questions wait.

All runs are started on one worker, which is killed when every one of them waits; another worker,
a process that never saw them, takes the answers.
"""

from __future__ import annotations

import json

import pytest

from runner import Status
from tests.waiting import wait_until

pytestmark = pytest.mark.full

RUNS = {
    "basic": "agent_basic",
    "parallel": "agent_parallel",
    "several": "agent_several",
    "reject": "agent_reject",
    "kept": "agent_basic",
    "by_message": "waiting",
}


@pytest.fixture(scope="module")
def interrupted(databases):
    """Give the runs, and the result of each as it was when its worker was killed."""
    site = next(databases)
    site.ready(1)
    runs = {
        name: site.client.start(graph, "What is the weather?") for name, graph in RUNS.items()
    }
    before = {name: run.wait(60) for name, run in runs.items()}
    site.workers[0].kill()
    site.send(
        json.dumps(
            {"v": 1, "interrupt_id": before["by_message"].interrupts[0].id, "response": "yes"}
        )
    )
    alone = site.client.run(runs["by_message"].id)
    # Control: with nobody there nothing happens, and nothing is lost.
    with pytest.raises(AssertionError):
        wait_until(lambda: alone.status is not Status.INTERRUPTED, "it goes on", seconds=1)
    site.ready(1)
    yield runs, before
    site.end()


def respond(run, result, *responses):
    """Answer every question of a result, in its order, and give the result of the whole run."""
    pairs = zip(result.interrupts, responses, strict=True)
    receipts = run.respond(
        [
            {"interruptResponse": {"interruptId": question.id, "response": response}}
            for question, response in pairs
        ]
    )
    assert {receipt.status for receipt in receipts} == {"accepted"}
    return run.wait(60)


def text(result, node: str) -> str:
    return result.results[node].output


def test_basic_agent_interrupt(interrupted):
    """An agent's tool asks, a person answers, the agent completes with the answer."""
    runs, before = interrupted
    waiting = before["basic"]
    assert waiting.status is Status.INTERRUPTED
    assert [interrupt.name for interrupt in waiting.interrupts] == ["weather_approval"]
    assert waiting.interrupts[0].reason == "need location"

    result = respond(runs["basic"], waiting, "Seattle")

    assert result.status is Status.COMPLETED
    assert text(result, "weather_agent") == "Weather in Seattle: sunny"


def test_parallel_execution(interrupted):
    """Agents beside the one that asks complete while it waits, and are not run again."""
    runs, before = interrupted
    waiting = before["parallel"]
    assert waiting.status is Status.INTERRUPTED
    assert sorted(waiting.execution_order) == ["news_agent", "time_agent"]

    result = respond(runs["parallel"], waiting, "Oslo")

    assert result.status is Status.COMPLETED
    assert sorted(result.execution_order) == ["news_agent", "time_agent", "weather_agent"]
    assert result.results["time_agent"] == waiting.results["time_agent"]


def test_multiple_interrupts(interrupted):
    """Several agents ask at the same time; each gets its own answer."""
    runs, before = interrupted
    waiting = before["several"]
    assert sorted(interrupt.node_id for interrupt in waiting.interrupts) == ["north", "south"]
    assert len({question.id for question in waiting.interrupts}) == 2

    result = respond(
        runs["several"], waiting, *(question.node_id.upper() for question in waiting.interrupts)
    )

    assert text(result, "north") == "Weather in NORTH: sunny"
    assert text(result, "south") == "Weather in SOUTH: sunny"


def test_reject_scenario(interrupted):
    """A person says no: the tool learns so, and the agent goes on with that."""
    runs, before = interrupted

    result = respond(runs["reject"], before["reject"], "no")

    assert result.status is Status.COMPLETED
    assert text(result, "cleaner") == "refused by a person"


def test_session_persistence(interrupted):
    """What an agent said and asked before its process died is there in the next one, once."""
    runs, before = interrupted

    result = respond(runs["kept"], before["kept"], "Seattle")

    snapshot = runs["kept"]._engine.store.read(runs["kept"].id, messages=True)
    messages = snapshot.messages["weather_agent"]
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert result.usage["totalTokens"] == 30


def test_an_answer_waits_for_a_worker(interrupted):
    """An answer that was sent while no worker lived is taken by the next one: it was in its stream."""
    runs, before = interrupted
    assert sorted(before["by_message"].execution_order) == ["a", "d", "e"]

    wait_until(lambda: runs["by_message"].status is Status.COMPLETED, "the run has its answer")

    assert sorted(runs["by_message"].result().execution_order) == ["a", "b", "d", "e", "f"]
