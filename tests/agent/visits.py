"""A node that runs an agent, kept as bytes between executions: nothing unstored survives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from runner.agent import Agent
from runner.agent.models.scripted import ScriptedModel
from runner.approvals.ballots import Use
from runner.hooks import HookRegistry
from runner.records import budgets, codec
from runner.records.asking import is_answered
from runner.records.budgets import Spending, Sum, Tagged
from runner.records.checkpoints import Saved, Session
from runner.records.executors import Input
from runner.records.interrupts import Address, Interrupt, InterruptStatus
from runner.records.outcomes import Failed, Interrupted, Outcome, Succeeded
from runner.store.memory.sessions import Sessions


class Killed(BaseException):
    """The process died here."""


class Node:
    """One visit of one node. `make` builds the agent for each execution, as another process would."""

    def __init__(self, make: Callable[[], Agent], task: Any = "go", *, visit: int = 1) -> None:
        self.make = make
        self.task = task
        self.number = visit
        self.inputs: list[Input] = []
        self.invocation_state: dict[str, Any] = {}
        self.document: bytes | None = None
        self.stored: list[bytes] = []
        self.questions: dict[str, bytes] = {}
        self.published: list[str] = []
        self.saves: list[dict[str, Any]] = []
        self.emitted: list[tuple[str, Any]] = []
        self.sessions = Sessions()
        self.tags: dict[str, str] = {}
        self.sums: dict[Tagged | None, dict[str, str]] = {}
        self.spendings: list[Spending] = []
        self.kill_after: int | None = None
        self.outcome: Outcome | None = None
        self.on_emit: Callable[[Any], None] = lambda _: None
        self.on_check: Callable[[], None] = lambda: None
        self.on_save: Callable[[dict[str, Any]], None] = lambda _: None

    # -- one execution ----------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Execute once with a fresh agent and store what comes of it."""
        outcome = self.make().execute(_Visit(self))
        if outcome.saved is not None:
            self.keep(outcome.saved)
        if isinstance(outcome, Succeeded) and outcome.session is not None:
            self.sessions.add(outcome.session, [json.loads(message) for message in self.stored])
        if isinstance(outcome, Interrupted):
            for question in outcome.interrupts:
                self.questions.setdefault(question.id, codec.encode(question))
        self.outcome = outcome
        return outcome

    def answer(self, name: str, response: Any) -> None:
        """Answer the open question of that name."""
        [question] = [question for question in self.open if question.name == name]
        self.answer_id(question.id, response)

    def answer_id(self, key: str, response: Any) -> None:
        """Answer a question by its id."""
        question = codec.decode(Interrupt, self.questions[key])
        self.questions[key] = codec.encode(
            replace(question, response=codec.pack(response, "response"))
        )

    def expire(self, name: str) -> None:
        """Expire the open question of that name."""
        [question] = [question for question in self.open if question.name == name]
        expired = replace(question, status=InterruptStatus.EXPIRED, expires_in=1.0)
        self.questions[question.id] = codec.encode(expired)

    def resume(self, **answers: Any) -> Outcome:
        """Answer by name and execute."""
        for name, response in answers.items():
            self.answer(name, response)
        return self.run()

    def next_visit(self, task: Any) -> None:
        """Enter the node again, as a loop does: the memory stays, the questions don't."""
        self.number += 1
        self.task = task
        self.questions = {}

    # -- what is stored ---------------------------------------------------------------------------

    def keep(self, saved: Saved) -> None:
        """Store a checkpoint as bytes."""
        self.document = json.dumps(saved.document).encode()
        self.stored = [
            *self.stored[: saved.keep],
            *(json.dumps(m).encode() for m in saved.messages),
        ]
        self.saves.append(json.loads(self.document))

    @property
    def open(self) -> list[Interrupt]:
        """The questions that the last execution left open."""
        assert isinstance(self.outcome, Interrupted), self.outcome
        return [q for q in self.outcome.interrupts if self.question(q.id).response is None]

    def question(self, key: str) -> Interrupt:
        """Read a question as it is stored."""
        return codec.decode(Interrupt, self.questions[key])

    @property
    def names(self) -> list[str]:
        """The names of the open questions, in the order in which they were asked."""
        return [question.name for question in self.open]

    @property
    def messages(self) -> list[Any]:
        """The stored conversation."""
        return [codec.unpack(json.loads(message)) for message in self.stored]

    @property
    def results(self) -> list[Any]:
        """All tool results of the conversation, in order."""
        blocks = [block for message in self.messages for block in message["content"]]
        return [block["toolResult"] for block in blocks if "toolResult" in block]

    @property
    def texts(self) -> list[str]:
        """The texts of all tool results; each has one block."""
        return [block["text"] for result in self.results for [block] in [result["content"]]]


class _Visit:
    """The Visit that one execution sees."""

    graph_id = "tests"
    attempt = 1

    def __init__(self, node: Node) -> None:
        self._node = node
        self.address = Address("run", "node", node.number)
        self.task = node.task
        self.inputs = node.inputs
        self.invocation_state = dict(node.invocation_state)
        self.document = None if node.document is None else json.loads(node.document)
        self.messages = [json.loads(message) for message in node.stored]
        every = [codec.decode(Interrupt, question) for question in node.questions.values()]
        self.answers = {question.id: question for question in every if is_answered(question)}

    @property
    def idempotency_key(self) -> str:
        return f"run.node.{self.address.visit}"

    def save(self, saved: Saved) -> None:
        if self._node.kill_after == 0:
            raise Killed
        self._node.keep(saved)
        self._node.on_save(saved.document)
        if self._node.kill_after is not None:
            self._node.kill_after -= 1

    def ask(self, interrupts: Iterable[Interrupt], saved: Saved) -> None:
        for question in interrupts:
            self._node.questions.setdefault(question.id, codec.encode(question))
            self._node.published.append(question.name)
        self.save(saved)

    def use(self, use: Use, saved: Saved) -> None:
        """Store the checkpoint from which a decision is used."""
        del use
        self.save(saved)

    def check_effect(self, tool: str = "") -> None:
        """Let every effect pass."""

    def recall(self, session_id: str) -> Session:
        return self._node.sessions.read(session_id)

    def spend(self, tagged: Tagged | None, spending: Spending) -> str:
        self._node.spendings.append(spending)
        return budgets.add(self._node.sums.setdefault(tagged, {}), spending)

    def open_raise(self, tagged: Tagged | None, counter: str) -> str:
        return budgets.open_raise(self._node.sums.setdefault(tagged, {}), counter, "run 1 node")

    def close_raise(self, tagged: Tagged | None, counter: str, refusal: str = "") -> None:
        sums = self._node.sums.setdefault(tagged, {})
        assert not budgets.close_raise(sums, counter, "run 1 node", refusal)

    def spent(self, tagged: Tagged | None) -> dict[str, Sum]:
        return budgets.sums(self._node.sums.get(tagged, {}))

    def tags(self) -> dict[str, str]:
        return self._node.tags

    def emit(self, kind: str, data: Any) -> None:
        """Write down an event."""
        self._node.emitted.append((str(kind), data))
        self._node.on_emit(data)

    def check(self) -> None:
        self._node.on_check()


class Hooks:
    """A hook provider made of (event type, callback) pairs."""

    def __init__(self, *pairs: Any) -> None:
        self.pairs = pairs

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Add the pairs."""
        for event_type, callback in self.pairs:
            registry.add_callback(event_type, callback)


def scripted(
    replies: list[Any], *tools: Any, hooks: Iterable[Any] = (), **options: Any
) -> Node:
    """A node whose agent follows a script."""
    hooked = [Hooks(*hooks)]
    return Node(
        lambda: Agent("a", ScriptedModel(replies), list(tools), hooks=hooked, **options)
    )


def use(name: str, key: str | None = None, **tool_input: Any) -> dict[str, Any]:
    """A tool use, as a model writes it."""
    block: dict[str, Any] = {"name": name, "input": tool_input}
    if key is not None:
        block["toolUseId"] = key
    return {"toolUse": block}


def done(outcome: Outcome | None) -> Succeeded:
    """Expect that an execution succeeded."""
    assert isinstance(outcome, Succeeded), outcome
    return outcome


def failed(outcome: Outcome | None) -> Failed:
    """Expect that an execution failed."""
    assert isinstance(outcome, Failed), outcome
    return outcome
