"""What every adapter must do: a test suite to run over an adapter of your own.

Subclass `AdapterContract` in a test module and build the six nodes it asks for:

    class TestMyAdapter(AdapterContract):
        def succeeds(self):
            return MyAdapter(...)

Executors are built again for every execution, and all they keep between two is JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

import pytest

from runner.errors import ApprovalMismatch, CorruptDocument, LeaseLost
from runner.records import codec, failures
from runner.records.asking import numbered_question
from runner.records.checkpoints import Session
from runner.records.codec import JSON
from runner.records.executors import ExternalTaskState, as_text
from runner.records.interrupts import Address, Interrupt
from runner.records.outcomes import Failed, Interrupted, Succeeded
from runner.testing.in_process import answer

__all__ = ["AdapterContract", "StoredNode"]

MODULE = "tests.integrations.adapter_contract"
PROCESS_WITHIN = 120  # seconds; frameworks take their time to be imported


class AdapterContract:
    """The promises of `runner.records.executors.Executor`, one test each.

    `output` is what `succeeds` gives to the next node, `usage` the tokens that one whole visit of
    `asks_once` costs, its pause included.
    """

    output: Any = "done"
    usage: dict[str, int] = {}  # noqa: RUF012 - subclasses replace it
    failed = False

    # -- what a subclass gives ----------------------------------------------------------------------

    def succeeds(self):
        """Build a node that ends with `output`."""
        raise NotImplementedError

    def fails(self):
        """Build a node whose code raises `ValueError("broken")`."""
        raise NotImplementedError

    def asks_once(self):
        """Build a node that asks one question; its output holds the answer."""
        raise NotImplementedError

    def asks_twice(self):
        """Build a node that asks a second question when it has the first answer, in the same way.

        Where the framework numbers its calls, both get the same number. The output holds both
        answers.
        """
        raise NotImplementedError

    def asks_both(self):
        """Build a node that asks two questions at once; its output holds both answers."""
        raise NotImplementedError

    def asks_then_fails(self):
        """Build a node that asks one question; its code is `failing_once` when it has the answer."""
        raise NotImplementedError

    def failing_once(self, code):
        """Have code raise the first time that a test calls it."""

        def call(given):
            if not self.failed:
                self.failed = True
                raise ConnectionError
            return code(given)

        return call

    def response(self, question, text):
        """Make a response to the question that carries this text."""
        del question
        return text

    # -- ends ---------------------------------------------------------------------------------------

    def test_it_says_what_it_is(self):
        """An adapter's kind is a short name of its own, the same for every object."""
        kinds = {self.succeeds().kind, self.asks_once().kind}
        assert len(kinds) == 1, kinds
        assert not kinds & {"", "function", "graph", "agent"}, kinds

    def test_it_succeeds(self):
        """A node's result and output are JSON data that survive the store."""
        ended = done(StoredNode(self.succeeds).execute())
        assert codec.load_json(codec.dump_json(ended.output)) == self.output
        assert codec.load_json(codec.dump_json(ended.result)) == ended.result

    def test_it_fails(self):
        """An error of the node's own code is a value with its type and message, and isn't raised."""
        ended = StoredNode(self.fails).execute()
        assert isinstance(ended, Failed), ended
        error = failures.restore(ended.error)
        assert isinstance(error, ValueError), ended.error
        assert "broken" in str(error)

    def test_a_lost_lease_is_no_failure(self):
        """Once another worker owns the node, LeaseLost comes out and nothing is stored."""
        for make in (self.succeeds, self.asks_once):
            node = StoredNode(make)
            node.lost = True
            before = node.text
            raised = _raised(node)
            assert isinstance(raised, LeaseLost), (
                f"execute must check its visit, but ended with {raised!r}"
            )
            assert node.text == before

    # -- questions ----------------------------------------------------------------------------------

    def test_it_asks_twice(self):
        """Two questions one after the other are two, even where the framework names them alike."""
        node = StoredNode(self.asks_twice)
        first, second = self._answered(node, "blue-1"), self._answered(node, "red-2")
        assert first.id != second.id
        _holds(node, "blue-1", "red-2")

    def test_it_asks_several_at_once(self):
        """All questions that are open are listed together, in the same order in every process."""
        node, twin = StoredNode(self.asks_both), StoredNode(self.asks_both)
        questions = waits(node.execute())
        ids = [question.id for question in questions]
        assert [question.id for question in waits(twin.execute())] == ids
        assert len(set(ids)) == 2, questions
        for question, text in zip(questions, ("blue-1", "red-2"), strict=True):
            self._answer(node, question, text)
        _holds(node, "blue-1", "red-2")

    def test_answers_may_come_one_by_one(self):
        """With some answers missing, exactly the missing ones are open, under the same ids."""
        for swapped in (False, True):
            node = StoredNode(self.asks_both)
            first, second = (
                reversed(waits(node.execute())) if swapped else waits(node.execute())
            )
            self._answer(node, first, "blue-1")
            assert [question.id for question in waits(node.execute())] == [second.id]
            self._answer(node, second, "red-2")
            _holds(node, "blue-1", "red-2")

    def test_a_withdrawn_question_is_asked_under_a_new_id(self):
        """After a retry an answer to the old id says nothing of what is asked now."""
        node = StoredNode(self.asks_once)
        ids = set()
        for _ in range(3):
            [question] = waits(node.execute())
            ids.add(question.id)
            node.withdraw(question)
        assert len(ids) == 3, ids
        [question] = waits(node.execute())
        self._answer(node, question, "blue-1")
        assert "blue-1" in as_text(done(node.execute()).output)

    def test_some_withdrawn_and_some_answered(self):
        """The answer is kept, and only the withdrawn question is asked again."""
        for swapped in (False, True):
            node = StoredNode(self.asks_both)
            first, second = (
                reversed(waits(node.execute())) if swapped else waits(node.execute())
            )
            self._answer(node, first, "blue-1")
            node.withdraw(second)
            [again] = waits(node.execute())
            assert again.id not in {first.id, second.id}
            self._answer(node, again, "red-2")
            output = as_text(done(node.execute()).output)
            assert "blue-1" in output, output
            assert "red-2" in output, output

    def test_no_two_nodes_share_a_question(self):
        """The same code in another node, run or visit asks under other ids."""
        nodes = [
            StoredNode(self.asks_once),
            StoredNode(self.asks_once, node_id="other"),
            StoredNode(self.asks_once, run_id="another"),
        ]
        questions = [self._answered(node, "blue-1") for node in nodes]
        assert [question.node_id for question in questions] == [node.node_id for node in nodes]
        done(nodes[0].execute())
        nodes[0].next_visit("again")
        ids = {question.id for question in [*questions, *waits(nodes[0].execute())]}
        assert len(ids) == 4, ids

    def test_each_visit_asks(self):
        """The answer reaches the code that asked; a loop's next visit asks again and takes its own answer."""
        node = StoredNode(self.asks_once)
        for text in ("blue-1", "red-2"):
            assert self._answered(node, text).is_open
            _holds(node, text)
            node.next_visit("again")

    # -- crashes and other processes ----------------------------------------------------------------

    def test_no_crash_asks_again(self):
        """Wherever its worker dies, a node asks the same questions, none twice, and ends in the same way."""
        for make in (self.asks_twice, self.asks_both):
            undisturbed = StoredNode(make)
            end = self._played(undisturbed)
            for write in range(1, undisturbed.writes + 1):
                node = StoredNode(make)
                node.dies_at = write
                assert self._played(node) == end, f"the worker died before write {write}"

    def _played(self, node):
        """Execute a node to its end, one answer at a time; return its questions' ids and its output."""
        while True:
            try:
                outcome = node.execute()
                assert not node.lost, "the worker went on when it was dead"
            except LeaseLost:
                node.lost = False
                continue
            if isinstance(outcome, Succeeded):
                return sorted(node.questions), outcome.output
            question = next(each for each in node.questions.values() if each.is_open)
            self._answer(node, question, question.id)

    def test_no_failure_asks_again(self):
        """A node that fails after it took an answer takes the same answer when it is tried again."""
        node = StoredNode(self.asks_then_fails)
        self._answered(node, "blue-1")
        assert isinstance(node.execute(), Failed)
        _holds(node, "blue-1")

    def test_an_answer_outlives_a_retry(self):
        """A node that is tried again from its start is given the answers it had, and doesn't ask again."""
        node = StoredNode(self.asks_once)
        self._answered(node, "blue-1")
        node.forget_document()
        _holds(node, "blue-1")

    @pytest.mark.slow
    def test_another_process_goes_on(self):
        """What is stored is enough for a process that has seen nothing of the first one."""
        node = StoredNode(self.asks_twice)
        self._answered(node, "blue-1")
        node.text = self._elsewhere(node)
        [second] = [question for question in node.questions.values() if question.is_open]
        self._answer(node, second, "red-2")
        _holds(node, "blue-1", "red-2")

    def _elsewhere(self, node):
        command = [
            sys.executable,
            "-m",
            MODULE,
            inspect.getfile(type(self)),
            type(self).__qualname__,
        ]
        work = json.dumps({"scenario": node.make.__name__, "text": node.text})
        done = subprocess.run(
            command,
            input=work,
            capture_output=True,
            text=True,
            timeout=PROCESS_WITHIN,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout.splitlines()[-1])["text"])

    # -- what is stored -----------------------------------------------------------------------------

    def test_an_unknown_document_is_refused(self):
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

    def test_it_is_a_node_of_a_graph(self):
        """In a graph the run waits for the answer, ends with it, and counts the tokens of both executions."""
        from runner.authoring.builder import GraphBuilder

        builder = GraphBuilder()
        builder.add_node(self.asks_once(), "node")
        graph = builder.build()
        waiting = graph("go")
        assert [str(waiting.status), len(waiting.interrupts)] == ["interrupted", 1], waiting
        [question] = waiting.interrupts
        ended = graph(answer(question, self.response(question, "blue-1")))
        assert str(ended.status) == "completed", ended
        assert "blue-1" in as_text(ended.results["node"].output)
        assert ended.usage == self.usage

    def _answered(self, node, text):
        """Execute a node that asks one question, and answer it."""
        [question] = waits(node.execute())
        self._answer(node, question, text)
        return question

    def _answer(self, node, question, text):
        node.answer(question, self.response(question, text))


def waits(outcome):
    """Expect that an execution ended with questions."""
    assert isinstance(outcome, Interrupted), outcome
    return outcome.interrupts


def done(outcome):
    """Expect that an execution succeeded."""
    assert isinstance(outcome, Succeeded), outcome
    return outcome


def _holds(node, *texts):
    """Expect that a node succeeds, and that its output has these answers."""
    output = as_text(done(node.execute()).output)
    assert all(text in output for text in texts), output


def _raised(node):
    try:
        return node.execute()
    except BaseException as error:  # noqa: BLE001 - the contract tells which one it must be
        return error


@dataclass
class _Stored:
    """Everything that is stored of the node."""

    task: JSON
    visit: int = 1
    document: JSON = None
    messages: list[JSON] = field(default_factory=list)
    questions: dict[str, JSON] = field(default_factory=dict)


class StoredNode:
    """A node for whose every execution `make` makes a fresh executor."""

    def __init__(
        self,
        make,
        task="go",
        *,
        run_id="run",
        node_id="node",
    ):
        self.make = make
        self.run_id, self.node_id = run_id, node_id
        self.invocation_state = {}
        self.inputs = []
        self.lost = False
        self.writes = self.dies_at = 0
        # All that is stored, as JSON; setting it puts the node back to that point.
        self.text = json.dumps(asdict(_Stored(codec.pack(task, "task"))))

    # -- what is stored ---------------------------------------------------------------------------

    @property
    def document(self):
        """The executor's document, as it is stored; None before the first."""
        return self._read().document

    @property
    def messages(self):
        """The stored conversation, unpacked."""
        return codec.unpack(self._read().messages)

    def _read(self):
        return _Stored(**json.loads(self.text))

    def _write(self, record):
        self.text = json.dumps(asdict(record), allow_nan=False)

    def keep(self, saved):
        """Store a document and the new messages.

        Raises:
            CorruptDocument: the document has no version. LeaseLost: the worker dies before this write.
        """
        self.writes += 1
        if self.writes == self.dies_at:
            self.lost = True
            raise LeaseLost("the worker died here, as the test wants.")
        if not isinstance(saved.document.get("v"), int):
            raise CorruptDocument(
                "an executor's document needs a whole number `v`: the version of its form."
            )
        record = self._read()
        messages = [*record.messages[: saved.keep], *saved.messages]
        self._write(replace(record, document=saved.document, messages=messages))

    def add_questions(self, questions):
        """Store questions; one that is known stays as it is."""
        record = self._read()
        new = {question.id: codec.load_json(codec.encode(question)) for question in questions}
        self._write(replace(record, questions={**new, **record.questions}))

    def forget_document(self):
        """Forget all but the questions, as if the node had failed before its first checkpoint."""
        self._write(replace(self._read(), document=None, messages=[]))

    @property
    def questions(self):
        """Every question of this visit, by its id."""
        stored = self._read().questions
        return {
            key: codec.decode(Interrupt, codec.dump_json(value))
            for key, value in stored.items()
        }

    # -- one step ---------------------------------------------------------------------------------

    def execute(self):
        """Execute once with a fresh executor."""
        outcome = self.make().execute(_StoredVisit(self, self._read()))
        saved = getattr(outcome, "saved", None)
        if saved is not None:
            self.keep(saved)
        if isinstance(outcome, Interrupted):
            self.add_questions(outcome.interrupts)
        return outcome

    def answer(self, question, response):
        """Answer a question."""
        record = self._read()
        stored = {**record.questions[question.id], "response": codec.pack(response, "response")}
        self._write(
            replace(
                record,
                questions={**record.questions, question.id: {**stored, "status": "answered"}},
            )
        )

    def withdraw(self, question):
        """Withdraw a question, as a failure elsewhere in the run does; the node runs again after a retry."""
        record = self._read()
        stored = {**record.questions[question.id], "status": "withdrawn"}
        self._write(replace(record, questions={**record.questions, question.id: stored}))

    def next_visit(self, task):
        """Enter the node again, as a loop does: its memory stays, its questions don't."""
        record = self._read()
        packed = codec.pack(task, "task")
        self._write(replace(record, task=packed, visit=record.visit + 1, questions={}))


class _StoredVisit:
    """The Visit that one execution sees."""

    graph_id = "contract"
    attempt = 1
    external_task: ExternalTaskState | None = None

    def __init__(self, node, record):
        self._node = node
        self.address = Address(node.run_id, node.node_id, record.visit)
        self.task = codec.unpack(record.task)
        self.inputs = list(node.inputs)
        self.invocation_state = node.invocation_state
        self.document = record.document
        self.messages = record.messages
        questions = node.questions.values()
        self.answers = {question.id: question for question in questions if not question.is_open}

    @property
    def idempotency_key(self):
        return f"{self.address.run_id}.{self.address.node_id}.{self.address.visit}"

    def question(self, name, reason=None, *, scope, number=1, **options):
        return numbered_question(
            self.address, self.answers, name, reason, scope=scope, number=number, **options
        )

    def save(self, saved):
        self.check()
        self._node.keep(saved)

    def ask(self, interrupts, saved):
        self.save(saved)
        self._node.add_questions(interrupts)

    def check_effect(self, tool=""):
        """Let every effect pass."""

    def recall(self, session_id):
        self.check()
        del session_id  # none was written
        return Session()

    def use(self, use, saved):
        del use
        self.save(saved)

    def approved(self, name, action, rule, node):
        """Refuse: one visit alone has no earlier node.

        Raises:
            ApprovalMismatch: always.
        """
        del action, rule, node
        raise ApprovalMismatch(f"no one has decided {name!r}: no node came before this one.")

    def spend(self, tagged, spending):
        del tagged, spending  # no bound is reached
        return ""

    def spent(self, tagged):
        del tagged
        return {}

    def tags(self):
        return {}

    def emit(self, kind, data):
        self.check()
        codec.pack(data, f"the data of a {kind} event")

    def check(self):
        if self._node.lost:
            raise LeaseLost("the contract took this node away from its worker.")


# -- another process, which this file is when it is run ------------------------------------------------


def main():
    """Execute a stored node once and print what is then stored.

    Arguments are the file and the name of a contract's subclass; stdin has the scenario and the text.
    """
    spec = importlib.util.spec_from_file_location("contract_elsewhere", sys.argv[1])
    if spec is None or spec.loader is None:
        raise ImportError(f"{sys.argv[1]} can't be imported.")
    module = sys.modules["contract_elsewhere"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    contract = attrgetter(sys.argv[2])(module)()
    work = json.load(sys.stdin)
    node = StoredNode(getattr(contract, work["scenario"]))
    node.text = work["text"]
    node.execute()
    print(json.dumps({"text": node.text}))  # noqa: T201 - this is how the other process hears of it


if __name__ == "__main__":
    main()
