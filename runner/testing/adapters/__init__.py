"""What every adapter must do: a test suite to run over an adapter of your own.

Subclass `AdapterContract` in a test module and build the five nodes it asks for:

    class TestMyAdapter(AdapterContract):
        def succeeds(self):
            return MyAdapter(...)

Executors are built again for every execution, and all they keep between two is JSON.
"""

# ruff: noqa: S101 - a contract speaks in asserts

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from runner.errors import CorruptDocument, LeaseLost
from runner.local import Graph
from runner.records import codec, failures
from runner.records.inputs import as_text
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Executor, Failed, Interrupted, Outcome, Succeeded
from runner.testing.adapters.stored_node import StoredNode

__all__ = ["AdapterContract", "StoredNode"]

MODULE = "runner.testing.adapters"
PROCESS_WITHIN = 120  # seconds; frameworks take their time to be imported


class AdapterContract:
    """The promises of `runner.records.outcomes.Executor`, one test each.

    `output` is what `succeeds` gives to the next node, `usage` the tokens that one whole visit of
    `asks_once` costs, its pause included.
    """

    output: Any = "done"
    usage: dict[str, int] = {}  # noqa: RUF012 - subclasses replace it

    # -- what a subclass gives ----------------------------------------------------------------------

    def succeeds(self) -> Executor:
        """Build a node that ends with `output`."""
        raise NotImplementedError

    def fails(self) -> Executor:
        """Build a node whose code raises `ValueError("broken")`."""
        raise NotImplementedError

    def asks_once(self) -> Executor:
        """Build a node that asks one question; its output holds the answer."""
        raise NotImplementedError

    def asks_twice(self) -> Executor:
        """Build a node that asks a second question when it has the first answer, in the same way.

        Where the framework numbers its calls, let both have the same number. The output holds both
        answers.
        """
        raise NotImplementedError

    def asks_both(self) -> Executor:
        """Build a node that asks two questions at once; its output holds both answers."""
        raise NotImplementedError

    def response(self, question: Interrupt, text: str) -> Any:
        """Make a response to the question that carries this text."""
        del question
        return text

    # -- ends ---------------------------------------------------------------------------------------

    def test_it_says_what_it_is(self) -> None:
        """An adapter's kind is a short name of its own, the same for every object."""
        kinds = {self.succeeds().kind, self.asks_once().kind}
        assert len(kinds) == 1, kinds
        assert not kinds & {"", "function", "graph", "agent"}, kinds

    def test_it_succeeds(self) -> None:
        """A node's result and output are JSON data that survive the store."""
        ended = done(StoredNode(self.succeeds).execute())
        assert codec.load_json(codec.dump_json(ended.output)) == self.output
        assert codec.load_json(codec.dump_json(ended.result)) == ended.result

    def test_it_fails(self) -> None:
        """An error of the node's own code is a value with its type and message, and isn't raised."""
        ended = StoredNode(self.fails).execute()
        assert isinstance(ended, Failed), ended
        error = failures.restore(ended.error)
        assert isinstance(error, ValueError), ended.error
        assert "broken" in str(error)

    def test_a_lost_lease_is_no_failure(self) -> None:
        """Once another worker owns the node, LeaseLost comes out and nothing is stored."""
        for make in (self.succeeds, self.asks_once):
            node = StoredNode(make)
            node.lost = True
            before = node.text
            raised = _raised(node)
            assert isinstance(raised, LeaseLost), f"execute must check its visit, but ended with {raised!r}"
            assert node.text == before

    # -- questions ----------------------------------------------------------------------------------

    def test_it_asks_and_goes_on(self) -> None:
        """A question ends the execution; the answer reaches the code that asked."""
        node = StoredNode(self.asks_once)
        [question] = waits(node.execute())
        assert question.node_id == node.node_id
        assert question.is_open
        self._answer(node, question, "blue-1")
        assert "blue-1" in as_text(done(node.execute()).output)

    def test_it_asks_twice(self) -> None:
        """Two questions one after the other are two, even where the framework names them alike."""
        node = StoredNode(self.asks_twice)
        [first] = waits(node.execute())
        self._answer(node, first, "blue-1")
        [second] = waits(node.execute())
        assert first.id != second.id
        self._answer(node, second, "red-2")
        output = as_text(done(node.execute()).output)
        assert "blue-1" in output, output
        assert "red-2" in output, output

    def test_it_asks_several_at_once(self) -> None:
        """All questions that are open are listed together, in the same order in every process."""
        node = StoredNode(self.asks_both)
        before = node.text
        questions = waits(node.execute())
        after, node.text = node.text, before
        assert [interrupt.id for interrupt in waits(node.execute())] == [
            open_question.id for open_question in questions
        ]
        assert len({question.id for question in questions}) == 2, questions
        node.text = after
        for question, text in zip(questions, ("blue-1", "red-2"), strict=True):
            self._answer(node, question, text)
        output = as_text(done(node.execute()).output)
        assert "blue-1" in output, output
        assert "red-2" in output, output

    def test_answers_may_come_one_by_one(self) -> None:
        """With some answers missing, exactly the missing ones are open, under the same ids."""
        for swapped in (False, True):
            node = StoredNode(self.asks_both)
            first, second = reversed(waits(node.execute())) if swapped else waits(node.execute())
            self._answer(node, first, "blue-1")
            assert [question.id for question in waits(node.execute())] == [second.id]
            self._answer(node, second, "red-2")
            output = as_text(done(node.execute()).output)
            assert "blue-1" in output, output
            assert "red-2" in output, output

    def test_no_two_nodes_share_a_question(self) -> None:
        """The same code in another node, run or visit asks under other ids."""
        here, there = StoredNode(self.asks_once), StoredNode(self.asks_once, node_id="other")
        elsewhere = StoredNode(self.asks_once, run_id="another")
        ids = {waits(node.execute())[0].id for node in (here, there, elsewhere)}
        self._answer(here, next(iter(here.questions.values())), "blue-1")
        done(here.execute())
        here.next_visit("again")
        ids.add(waits(here.execute())[0].id)
        assert len(ids) == 4, ids

    def test_a_second_visit_asks_anew(self) -> None:
        """A loop's next visit starts with its own input, asks again and takes its own answer."""
        node = StoredNode(self.asks_once)
        for text in ("blue-1", "red-2"):
            [question] = waits(node.execute())
            self._answer(node, question, text)
            assert text in as_text(done(node.execute()).output)
            node.next_visit("again")

    # -- crashes and other processes ----------------------------------------------------------------

    def test_a_crash_asks_the_same_question(self) -> None:
        """A node that dies while it asks asks under the same id when it runs again."""
        node = StoredNode(self.asks_once)
        lost = waits(node.execute(crash=True))
        [question] = waits(node.execute())
        assert [run.id for run in lost] == [question.id]

    def test_a_crash_loses_no_answer(self) -> None:
        """A node that dies after it took an answer takes the same answer when it runs again."""
        node = StoredNode(self.asks_twice)
        [first] = waits(node.execute())
        self._answer(node, first, "blue-1")
        lost = waits(node.execute(crash=True))
        [second] = waits(node.execute())
        assert [run.id for run in lost] == [second.id]
        self._answer(node, second, "red-2")
        done(node.execute(crash=True))
        output = as_text(done(node.execute()).output)
        assert "blue-1" in output, output
        assert "red-2" in output, output

    def test_an_answer_outlives_a_retry(self) -> None:
        """A node that is tried again from its start is given the answers it had, and doesn't ask again."""
        node = StoredNode(self.asks_once)
        [question] = waits(node.execute())
        self._answer(node, question, "blue-1")
        node.forget_document()
        assert "blue-1" in as_text(done(node.execute()).output)

    def test_another_process_goes_on(self) -> None:
        """What is stored is enough for a process that has seen nothing of the first one."""
        node = StoredNode(self.asks_twice)
        [first] = waits(node.execute())
        self._answer(node, first, "blue-1")
        node.text = self._elsewhere(node)
        [second] = [question for question in node.questions.values() if question.is_open]
        self._answer(node, second, "red-2")
        output = as_text(done(node.execute()).output)
        assert "blue-1" in output, output
        assert "red-2" in output, output

    def _elsewhere(self, node: StoredNode) -> str:
        command = [sys.executable, "-m", MODULE, inspect.getfile(type(self)), type(self).__qualname__]
        work = json.dumps({"scenario": node.make.__name__, "text": node.text})
        done = subprocess.run(
            command, input=work, capture_output=True, text=True, timeout=PROCESS_WITHIN, check=False
        )
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout.splitlines()[-1])["text"])

    # -- what is stored -----------------------------------------------------------------------------

    def test_an_unknown_document_is_refused(self) -> None:
        """A document of another version is left untouched, with an error that says so."""
        node = StoredNode(self.asks_once)
        waits(node.execute())
        document = json.loads(node.text)
        if document["document"] is None:
            return
        document["document"]["v"] = 999
        node.text = json.dumps(document)
        before = node.text
        ended = node.execute()
        assert isinstance(ended, Failed), ended
        assert isinstance(failures.restore(ended.error), CorruptDocument), ended.error
        assert node.text == before

    def test_usage_is_counted_once(self) -> None:
        """The tokens of a visit are those of all its executions, none twice and none lost."""
        node = StoredNode(self.asks_once)
        [question] = waits(node.execute())
        self._answer(node, question, "blue-1")
        assert done(node.execute()).usage == self.usage

    def test_it_is_a_node_of_a_graph(self) -> None:
        """In a graph the run waits for the answer and ends with it."""
        graph = self._graph(self.asks_once())
        waiting = graph("go")
        assert [str(waiting.status), len(waiting.interrupts)] == ["interrupted", 1], waiting
        response = self.response(waiting.interrupts[0], "blue-1")
        ended = graph(
            [{"interruptResponse": {"interruptId": waiting.interrupts[0].id, "response": response}}]
        )
        assert str(ended.status) == "completed", ended
        assert "blue-1" in as_text(ended.results["node"].output)
        assert ended.usage == self.usage

    def _graph(self, executor: Executor) -> Graph:
        from runner.authoring.builder import GraphBuilder  # noqa: PLC0415 - only this test needs a graph

        builder = GraphBuilder()
        builder.add_node(executor, "node")
        return builder.build()

    def _answer(self, node: StoredNode, question: Interrupt, text: str) -> None:
        node.answer(question, self.response(question, text))


def waits(outcome: Outcome) -> Sequence[Interrupt]:
    """Expect that an execution ended with questions."""
    assert isinstance(outcome, Interrupted), outcome
    return outcome.interrupts


def done(outcome: Outcome) -> Succeeded:
    """Expect that an execution succeeded."""
    assert isinstance(outcome, Succeeded), outcome
    return outcome


def _raised(node: StoredNode) -> object:
    try:
        return node.execute()
    except BaseException as error:  # noqa: BLE001 - the contract tells which one it must be
        return error
