"""One node without a store: what it keeps between two executions is one text of JSON.

So nothing survives that a store would not keep, and the text can be carried to another process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from runner import codec
from runner.errors import CorruptDocument, LeaseLost
from runner.interrupts import Address, Interrupt
from runner.outcomes import Executor, Input, Interrupted, Outcome, Saved, Session, Work

JSON = Any


@dataclass
class _Kept:
    """Everything that is stored of the node."""

    task: JSON
    visit: int = 1
    document: JSON = None
    messages: list[JSON] = field(default_factory=list)
    questions: dict[str, JSON] = field(default_factory=dict)


class StoredNode:
    """A node whose executor is made anew by `make` for each execution."""

    def __init__(
        self, make: Callable[[], Executor], task: object = "go", *, run_id: str = "run", node_id: str = "node"
    ) -> None:
        self.make = make
        self.run_id, self.node_id = run_id, node_id
        self.invocation_state: dict[str, Any] = {}
        self.inputs: list[Input] = []
        self.lost = False
        self.saves = 0
        self._text = json.dumps(asdict(_Kept(codec.pack(task, "task"))))

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
        found: list[JSON] = codec.unpack(self._read().messages)
        return found

    def _read(self) -> _Kept:
        return _Kept(**json.loads(self._text))

    def _write(self, kept: _Kept) -> None:
        self._text = json.dumps(asdict(kept), allow_nan=False)

    def keep(self, saved: Saved) -> None:
        """Store a document and the new messages.

        Raises:
            CorruptDocument: the document has no version.
        """
        if not isinstance(saved.document.get("v"), int):
            raise CorruptDocument("an executor's document needs a whole number `v`: the version of its form.")
        kept = self._read()
        messages = [*kept.messages[: saved.keep], *saved.messages]
        self._write(replace(kept, document=saved.document, messages=messages))

    def asked(self, questions: Sequence[Interrupt]) -> None:
        """Store questions; one that is known stays as it is."""
        kept = self._read()
        new = {each.id: codec.load_json(codec.encode(each)) for each in questions}
        self._write(replace(kept, questions={**new, **kept.questions}))

    def forget_document(self) -> None:
        """Forget all but the questions, as if the node had failed before its first checkpoint."""
        self._write(replace(self._read(), document=None, messages=[]))

    @property
    def questions(self) -> dict[str, Interrupt]:
        """Every question of this visit, by its id."""
        stored = self._read().questions
        return {key: codec.decode(Interrupt, codec.dump_json(each)) for key, each in stored.items()}

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
            self.asked(outcome.interrupts)
        return outcome

    def answer(self, question: Interrupt, response: object) -> None:
        """Answer a question."""
        kept = self._read()
        stored = {**kept.questions[question.id], "response": codec.pack(response, "response")}
        self._write(
            replace(kept, questions={**kept.questions, question.id: {**stored, "status": "answered"}})
        )

    def next_visit(self, task: object) -> None:
        """Enter the node again, as a loop does: its memory stays, its questions don't."""
        kept = self._read()
        packed = codec.pack(task, "task")
        self._write(replace(kept, task=packed, visit=kept.visit + 1, questions={}))


class _StoredVisit:
    """The Visit that one execution sees."""

    graph_id = "contract"
    attempt = 1
    work: Work | None = None

    def __init__(self, node: StoredNode, kept: _Kept) -> None:
        self._node = node
        self.address = Address(node.run_id, node.node_id, kept.visit)
        self.task = codec.unpack(kept.task)
        self.inputs: Sequence[Input] = list(node.inputs)
        self.invocation_state = node.invocation_state
        self.document = kept.document
        self.messages = kept.messages
        every = node.questions.items()
        self.answers: Mapping[str, Interrupt] = {key: each for key, each in every if not each.is_open}

    @property
    def idempotency_key(self) -> str:
        return f"{self.address.run_id}.{self.address.node_id}.{self.address.visit}"

    def save(self, saved: Saved) -> None:
        self.check()
        self._node.saves += 1
        self._node.keep(saved)

    def ask(self, interrupts: Sequence[Interrupt], saved: Saved) -> None:
        self.save(saved)
        self._node.asked(interrupts)

    def recall(self, session_id: str) -> Session:
        self.check()
        del session_id  # nobody wrote one
        return Session()

    def emit(self, kind: str, data: Mapping[str, JSON]) -> None:
        self.check()
        codec.pack(data, f"the data of a {kind} event")

    def check(self) -> None:
        if self._node.lost:
            raise LeaseLost("the contract took this node away from its worker.")
