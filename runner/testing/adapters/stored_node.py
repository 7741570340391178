"""One node without a store: what it keeps between two executions is one text of JSON.

So nothing survives that a store would not keep, and the text can be carried to another process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from runner.errors import CorruptDocument, LeaseLost
from runner.records import codec
from runner.records.codec import JSON
from runner.records.interrupts import Address, Interrupt
from runner.records.outcomes import Executor, ExternalTaskState, Input, Interrupted, Outcome, Saved, Session


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
        self, make: Callable[[], Executor], task: object = "go", *, run_id: str = "run", node_id: str = "node"
    ) -> None:
        self.make = make
        self.run_id, self.node_id = run_id, node_id
        self.invocation_state: dict[str, Any] = {}
        self.inputs: list[Input] = []
        self.lost = False
        self._text = json.dumps(asdict(_Stored(codec.pack(task, "task"))))

    # -- what is stored ---------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """All that is stored, as JSON; setting it puts the node back to that point."""
        return self._text

    @text.setter
    def text(self, text: str) -> None:
        self._text = text

    @property
    def document(self) -> JSON:
        """The executor's document, as it is stored; None before the first."""
        return self._read().document

    @property
    def messages(self) -> list[JSON]:
        """The stored conversation, unpacked."""
        messages: list[JSON] = codec.unpack(self._read().messages)
        return messages

    def _read(self) -> _Stored:
        return _Stored(**json.loads(self._text))

    def _write(self, record: _Stored) -> None:
        self._text = json.dumps(asdict(record), allow_nan=False)

    def keep(self, saved: Saved) -> None:
        """Store a document and the new messages.

        Raises:
            CorruptDocument: the document has no version.
        """
        if not isinstance(saved.document.get("v"), int):
            raise CorruptDocument("an executor's document needs a whole number `v`: the version of its form.")
        record = self._read()
        messages = [*record.messages[: saved.keep], *saved.messages]
        self._write(replace(record, document=saved.document, messages=messages))

    def add_questions(self, questions: Sequence[Interrupt]) -> None:
        """Store questions; one that is known stays as it is."""
        record = self._read()
        new = {question.id: codec.load_json(codec.encode(question)) for question in questions}
        self._write(replace(record, questions={**new, **record.questions}))

    def forget_document(self) -> None:
        """Forget all but the questions, as if the node had failed before its first checkpoint."""
        self._write(replace(self._read(), document=None, messages=[]))

    @property
    def questions(self) -> dict[str, Interrupt]:
        """Every question of this visit, by its id."""
        stored = self._read().questions
        return {key: codec.decode(Interrupt, codec.dump_json(value)) for key, value in stored.items()}

    # -- one step ---------------------------------------------------------------------------------

    def execute(self, *, crash: bool = False) -> Outcome:
        """Execute once with a fresh executor; with `crash` its outcome is lost, its checkpoints are not."""
        outcome = self.make().execute(_StoredVisit(self, self._read()))
        if crash:
            return outcome
        saved = getattr(outcome, "saved", None)
        if saved is not None:
            self.keep(saved)
        if isinstance(outcome, Interrupted):
            self.add_questions(outcome.interrupts)
        return outcome

    def answer(self, question: Interrupt, response: object) -> None:
        """Answer a question."""
        record = self._read()
        stored = {**record.questions[question.id], "response": codec.pack(response, "response")}
        self._write(
            replace(record, questions={**record.questions, question.id: {**stored, "status": "answered"}})
        )

    def next_visit(self, task: object) -> None:
        """Enter the node again, as a loop does: its memory stays, its questions don't."""
        record = self._read()
        packed = codec.pack(task, "task")
        self._write(replace(record, task=packed, visit=record.visit + 1, questions={}))


class _StoredVisit:
    """The Visit that one execution sees."""

    graph_id = "contract"
    attempt = 1
    external_task: ExternalTaskState | None = None

    def __init__(self, node: StoredNode, record: _Stored) -> None:
        self._node = node
        self.address = Address(node.run_id, node.node_id, record.visit)
        self.task = codec.unpack(record.task)
        self.inputs: Sequence[Input] = list(node.inputs)
        self.invocation_state = node.invocation_state
        self.document = record.document
        self.messages = record.messages
        questions = node.questions.values()
        self.answers: Mapping[str, Interrupt] = {
            question.id: question for question in questions if not question.is_open
        }

    @property
    def idempotency_key(self) -> str:
        return f"{self.address.run_id}.{self.address.node_id}.{self.address.visit}"

    def save(self, saved: Saved) -> None:
        self.check()
        self._node.keep(saved)

    def ask(self, interrupts: Sequence[Interrupt], saved: Saved) -> None:
        self.save(saved)
        self._node.add_questions(interrupts)

    def recall(self, session_id: str) -> Session:
        self.check()
        del session_id  # none was written
        return Session()

    def emit(self, kind: str, data: Mapping[str, JSON]) -> None:
        self.check()
        codec.pack(data, f"the data of a {kind} event")

    def check(self) -> None:
        if self._node.lost:
            raise LeaseLost("the contract took this node away from its worker.")
