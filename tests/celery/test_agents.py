"""Agents on real workers: one is killed in the middle of everything, another goes on.

All runs begin on one worker. Some wait for a person, some are in the middle of a tool call when
that worker is killed; a process that never saw them ends them. Each promise has its control.
"""

from __future__ import annotations

import json

import pytest

from runner import Status
from runner.store.redis.keys import Keys
from tests.waiting import wait_until

pytestmark = pytest.mark.full

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.graphs,tests.celery.agent_graphs"}
WAITING = {
    "boss": ("boss", None),
    "again": ("looked_at", None),
    "enough": ("looked_at", None),
    "local": ("looked_at_local", None),
    "team": ("team", None),
}
IN_FLIGHT = {
    "sequential": "five_sequential",
    "concurrent": "five_concurrent",
    "plain": "five_plain",
}


class Story:
    """The runs, and what they wrote down."""

    def __init__(self, site):
        self.site = site
        self.runs = {}
        self.before = {}

    def begin(self, name, graph, state=None):
        self.runs[name] = self.site.client.start(graph, name, invocation_state=state)
        return self.runs[name]

    def notes(self, what, name):
        """Give what a run wrote: lists of texts, the process first."""
        return [
            line.decode().split("|") for line in self.site.redis.lrange(f"{what}:{name}", 0, -1)
        ]

    def document(self, name):
        text = self.site.redis.hget(Keys().run(self.runs[name].id), "k:a")
        return json.loads(text)["executor"] if text else {"calls": []}

    def answer(self, name, *responses):
        """Answer the open questions of a run, and wait until it rests again."""
        questions = self.runs[name].interrupts()
        receipts = self.runs[name].respond(
            [
                {"interruptResponse": {"interruptId": question.id, "response": response}}
                for question, response in zip(questions, responses, strict=True)
            ]
        )
        assert {receipt.status for receipt in receipts} == {"accepted"}
        return self.runs[name].wait(60)

    def answered(self, name, response):
        """Answer a run's question, unless another test has done so."""
        if self.runs[name].status is Status.INTERRUPTED:
            self.answer(name, response)
        return self.runs[name].wait(60)


def done(call):
    return call["stage"] == "done"


@pytest.fixture(scope="module")
def killed(databases):
    """Give the runs after their worker was killed and another has taken over."""
    site = next(databases)
    site.ready(1, **GRAPHS)
    story = Story(site)
    story.begin("first", "remembering", {"customer": "ann"}).wait(60)
    for name, (graph, state) in WAITING.items():
        story.begin(name, graph, state)
    story.before = {name: story.runs[name].wait(60) for name in WAITING}
    for name, graph in IN_FLIGHT.items():
        story.begin(name, graph)
    wait_until(lambda: len(story.notes("calls", "sequential")) == 3, "the third call runs")
    wait_until(
        lambda: len(story.notes("calls", "plain")) == 3, "the third thing of the function runs"
    )
    wait_until(
        lambda: sum(map(done, story.document("concurrent")["calls"])) == 3,
        "three calls are done",
    )
    wait_until(lambda: len(story.notes("calls", "concurrent")) == 5, "the two others run")
    site.workers[0].kill()
    for name in IN_FLIGHT:
        site.redis.set(f"gate:{name}", 1)
    site.ready(1, **GRAPHS)
    yield story
    site.end()


def test_a_swarm_goes_on_where_it_waited(killed):
    """After kill -9 the asking agent ends its turn; the one before it is not called again."""
    asked = killed.before["team"]
    assert (asked.status, asked.execution_order) == (Status.INTERRUPTED, ["desk"])

    result = killed.answered("team", "Seattle")

    assert (result.status, result.execution_order) == (Status.COMPLETED, ["desk", "weather"])
    assert result.results["desk"].output == "handed over"
    assert "Seattle" in result.results["weather"].output
    assert "Handoff Message: where is it sunny?" in result.results["weather"].output
    assert "@swarm" not in result.results


def numbers(lines):
    return [int(line[1]) for line in lines]


def test_finished_calls_are_not_run_again(killed):
    """After kill -9 in the third of five calls the first two aren't repeated, and the model isn't asked."""
    result = killed.runs["sequential"].wait(60)

    assert result.status is Status.COMPLETED
    assert result.results["a"].output == "did 1, did 2, did 3, did 4, did 5"
    calls = killed.notes("calls", "sequential")
    assert numbers(calls) == [1, 2, 3, 3, 4, 5]
    assert calls[2][0] != calls[3][0]
    assert [line[1] for line in killed.notes("model", "sequential")] == ["1", "3"]


def test_the_call_in_flight_has_the_same_key_again(killed):
    """Both starts of the call carry one idempotency key, and no other call has it."""
    killed.runs["sequential"].wait(60)

    calls = killed.notes("calls", "sequential")
    keys = [line[3] for line in calls]
    assert keys[2] == keys[3]
    assert len(set(keys)) == 5
    assert {line[2] for line in calls} == {"1"}


def test_of_concurrent_calls_only_those_in_flight_repeat(killed):
    """Calls that had ended beside the lost ones keep their results."""
    result = killed.runs["concurrent"].wait(60)

    assert result.results["a"].output == "did 1, did 2, did 3, did 4, did 5"
    calls = killed.notes("calls", "concurrent")
    assert sorted(numbers(calls)) == [1, 2, 3, 3, 4, 4, 5]
    keys = {(line[1], line[3]) for line in calls}
    assert len(keys) == 5
    assert [line[1] for line in killed.notes("model", "concurrent")] == ["1", "3"]


def test_a_function_begins_anew(killed):
    """Control: without an agent's checkpoints the same five things run from the first again."""
    result = killed.runs["plain"].wait(60)

    assert result.status is Status.COMPLETED
    assert numbers(killed.notes("calls", "plain")) == [1, 2, 3, 1, 2, 3, 4, 5]


def test_a_failed_call_is_shown_to_another_process_as_it_was(killed):
    """The callback that asked sees the exception again: its type, arguments, fields, notes and cause."""
    assert [interrupt.name for interrupt in killed.before["again"].interrupts] == ["retry"]
    assert killed.before["again"].interrupts[0].reason == str(("none left", {"unit": "calls"}))

    result = killed.answered("again", "again")

    first, second, last = killed.notes("looks", "again")
    assert first[0] != second[0]
    assert first[1:] == ["QuotaError", "True", "True", "False"]
    assert second[1:] == ["QuotaError", "True", "True", "True"]
    assert last[1:] == ["NoneType", "False", "False", "False"]
    seen, again = killed.notes("errors", "again")
    assert seen[1:] == again[1:]
    args = "('none left', {'unit': 'calls'})"
    assert again[1:] == [
        args,
        "0",
        "['seen by the tool']",
        "ConnectionResetError",
        "(104, 'reset')",
    ]
    assert result.results["a"].output == "bought"


def test_a_retry_is_one_more_attempt_with_a_key_of_its_own(killed):
    """The person's answer runs the tool once more, and only that."""
    killed.answered("again", "again")

    calls = killed.notes("calls", "again")
    assert [line[1] for line in calls] == ["1", "2"]
    assert calls[0][2] != calls[1][2]


def test_another_answer_leaves_the_call_failed(killed):
    """Control: the same question with another answer runs nothing; the model is told of the error."""
    result = killed.answer("enough", "no")

    assert result.results["a"].output.startswith("Error: QuotaError - ")
    assert len(killed.notes("calls", "enough")) == 1
    assert len(killed.notes("looks", "enough")) == 2


def test_an_error_of_a_local_class_keeps_its_name_and_nearest_base(killed):
    """Control: where no process can import the class, its name, base and arguments are what is left."""
    result = killed.answer("local", "no")

    first, second = killed.notes("looks", "local")
    assert first[1:] == ["QuotaError", "False", "True", "False"]
    assert second[1:] == ["QuotaError", "False", "True", "True"]
    assert result.results["a"].output.startswith("Error: QuotaError - ")
