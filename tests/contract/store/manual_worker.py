"""What the tests of a contract do to a store: small graphs, and an engine's calls made by hand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner.definition.model import (
    Definition,
    EdgeSpec,
    FailurePolicy,
    Join,
    MapSpec,
    NodeSpec,
    Topology,
)
from runner.definition.topology import topology
from runner.limits.limit import Limit
from runner.records.asking import numbered_question
from runner.records.checkpoints import Saved
from runner.records.codec import JSON
from runner.records.interrupts import Address, Decision, Interrupt
from runner.records.run import Status, VisitEntry
from runner.store.interface import (
    Claim,
    Doorbell,
    Event,
    Reply,
    RunSnapshot,
    Settlement,
    Start,
    Store,
    Token,
)
from runner.store.memory.store import MemoryStore
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    ClaimVisit,
    ParkVisit,
    SettleVisit,
    StartRun,
)
from runner.testing.in_process import ManualClock


def shape(
    edges: str,
    entries: Sequence[str] = (),
    *,
    name: str = "g",
    policy: str = "fail_fast",
    any_join: Sequence[str] = (),
    resume_each: Sequence[str] = (),
    maps: Mapping[str, MapSpec] | None = None,
    version: str = "",
    limits: Mapping[str, Sequence[Limit]] | None = None,
    **settings: Any,
) -> Topology:
    """Build a graph from text like "a>b b>c d"; it starts at `entries`, or where no edge leads to.

    An edge such as "a~late" is taken when a question of `a` expires.
    """
    pairs = [tuple(re.split("[>~]", part)) for part in edges.split()]
    names = list(dict.fromkeys(node for pair in pairs for node in pair))
    nodes = {
        node: NodeSpec(
            node,
            executor=None,
            kind="function",
            join=Join.ANY if node in any_join else Join.ALL,
            resume="each" if node in resume_each else "all",
            map=(maps or {}).get(node),
            limits=tuple((limits or {}).get(node, ())),
        )
        for node in names
    }
    links = tuple(
        EdgeSpec(pair[0], pair[1], on_expire="~" in part)
        for part, pair in zip(edges.split(), pairs, strict=True)
        if len(pair) == 2
    )
    targets = {link.target for link in links}
    starts = tuple(entries or [node for node in names if node not in targets] or names[:1])
    return topology(
        Definition(
            name, nodes, links, starts, FailurePolicy(policy), version=version, **settings
        )
    )


def failure(message: str = "broken") -> VisitEntry:
    """Make the entry of a node that failed."""
    return {
        "v": 1,
        "kind": "function",
        "ms": 1,
        "error": {"type": "builtins:ValueError", "message": message},
    }


class ManualWorker:
    """Does by hand what an engine does; every request has a nonce of its own."""

    def __init__(self, store: Store, clock: ManualClock | None = None) -> None:
        self.store, self.clock = store, clock or ManualClock()
        self.reply: Any = None  # of the last settle
        self.runs: dict[str, Topology] = {}
        self._count = itertools.count(1)

    def nonce(self) -> str:
        """Make a text that no other request has."""
        return f"nonce{next(self._count)}"

    def start(
        self, graph: Topology | str, task: JSON = "task", *, beside: str = "", **options: Any
    ) -> str:
        """Publish a graph, perhaps of a text that `shape` takes, and begin a run of it.

        It is in the partition of the run `beside`, if there is one, or of its parent.
        """
        return self.begun(graph, task, beside=beside, **options)[0]

    def begun(
        self, graph: Topology | str, task: JSON = "task", *, beside: str = "", **options: Any
    ) -> tuple[str, Sequence[Doorbell]]:
        """Begin a run in the same way; return the doorbells, too."""
        graph = shape(graph) if isinstance(graph, str) else graph
        self.store.publish([graph])
        parent, key = options.get("parent"), options.get("idempotency_key")
        beside = parent.run_id if parent is not None else beside
        partition = beside[:2] or f"{self.store.partition(graph.graph_id, key):02d}"
        start = Start(
            f"{partition}run{next(self._count):04d}",
            graph.graph_id,
            graph.fingerprint,
            task,
            **options,
        )
        reply = self.store.do(StartRun(start))
        assert reply.word == "started", reply
        self.runs[start.run_id] = graph
        return start.run_id, reply.doorbells

    def claim(self, run_id: str, node: str, visit: int = 1, attempt: int = 1) -> Claim:
        """Claim a visit that is ready."""
        claim = self.store.do(ClaimVisit(run_id, node, visit, attempt, self.nonce()))
        assert isinstance(claim, Claim), claim
        return claim

    def token(self, run_id: str, node: str, visit: int = 1, attempt: int = 1) -> Token:
        """Claim a visit that is ready, for its token alone."""
        return self.claim(run_id, node, visit, attempt).token

    def begin(
        self, graph: Topology | str, *, node: str = "a", **options: Any
    ) -> tuple[str, Token]:
        """Begin a run, and claim a node of it."""
        run_id = self.start(graph, **options)
        return run_id, self.token(run_id, node)

    def sweep(self, *, after: float = 0) -> list[str]:
        """Advance the clock, sweep, and name the visits that are rung."""
        self.clock.advance(after)
        return rung(self.store.sweep())

    def limited(self, run_id: str, node: str, attempt: int = 1) -> Reply:
        """Try to claim a visit that a limit delays."""
        reply = self.store.do(ClaimVisit(run_id, node, 1, attempt, self.nonce()))
        assert isinstance(reply, Reply), reply
        assert reply.word == "limited"
        return reply

    def know(self, run_id: str, graph: Topology) -> None:
        """Take note of a run that was begun in another way."""
        self.runs[run_id] = graph

    def settle(
        self,
        token: Token,
        output: JSON = None,
        edges: str | None = None,
        note: VisitEntry | None = None,
        **options: Any,
    ) -> str:
        """Complete a visit; all its edges are taken unless `edges` has bits. `note` goes into its entry."""
        graph = self.runs[token.run_id]
        bits = "1" * len(graph.outgoing.get(token.node, ())) if edges is None else edges
        in_loop = token.node in graph.nodes and graph.nodes[token.node].loops
        decided: VisitEntry = {"edges": bits} if in_loop else {}
        entry: VisitEntry = {"v": 1, "kind": "function", "ms": 1, **decided, **(note or {})}
        settlement = Settlement(Status.COMPLETED, bits, output, entry, **options)
        self.reply = self.store.do(SettleVisit(token, settlement, self.nonce()))
        return self.reply.word

    def end(self, token: Token) -> list[str]:
        """Complete a visit without an edge, and name the visits that are rung."""
        settlement = Settlement(Status.COMPLETED, "", None, {"v": 1})
        return rung(self.store.do(SettleVisit(token, settlement, self.nonce())))

    def fail(self, token: Token) -> str:
        """Fail a visit."""
        settlement = Settlement(Status.FAILED, "", None, failure())
        return self.store.do(SettleVisit(token, settlement, self.nonce())).word

    def run(self, run_id: str, *nodes: str, edges: str | None = None) -> None:
        """Claim and complete first visits, one after another; the output of each is its name."""
        for node in nodes:
            assert self.settle(self.token(run_id, node), node, edges) == "settled"

    def question(self, token: Token, name: str = "ok?", **options: Any) -> Interrupt:
        """Build a question of a visit, which may lead to the node `late` when it expires."""
        address = Address(token.run_id, token.node, token.visit, routes=("late",))
        return address.ask(name, scope="function", **options)

    def ask(self, token: Token, name: str = "ok?", **options: Any) -> Interrupt:
        """Publish a question of a running visit."""
        question = self.question(token, name, **options)
        assert self.store.do(AskQuestions(token, [question], None)).word == "asked"
        return question

    def numbered_question(self, claim: Claim, name: str = "ok?", **options: Any) -> Interrupt:
        """Build a question as a node's code does, which knows those that are closed."""
        token = claim.token
        address = Address(token.run_id, token.node, token.visit, routes=("late",))
        closed = {answer.id: answer for answer in claim.answers}
        return numbered_question(address, closed, name, scope="function", **options)

    def park(
        self,
        run_id: str,
        node: str,
        *names: str,
        visit: int = 1,
        attempt: int = 1,
        **options: Any,
    ) -> list[Interrupt]:
        """Claim a visit, and park it until some questions are answered."""
        claim = self.claim(run_id, node, visit, attempt)
        questions = [
            self.numbered_question(claim, name, **options) for name in names or ("ok?",)
        ]
        assert self.store.do(ParkVisit(claim.token, questions, None)).word == "waiting"
        return questions

    def asking(
        self, graph: Topology | str, *, node: str = "a", **options: Any
    ) -> tuple[str, Interrupt]:
        """Begin a run, and park a node of it until one question is answered."""
        run_id = self.start(graph)
        return run_id, self.park(run_id, node, **options)[0]

    def answer(
        self, *questions: Interrupt, response: JSON = "yes", **options: Any
    ) -> list[str]:
        """Answer questions as one set, and name the status of each receipt."""
        answers = [Decision(question.id, response, **options) for question in questions]
        return [
            str(receipt.status)
            for receipt in self.store.do(AnswerQuestions(answers, self.nonce())).receipts
        ]

    def read(self, run_id: str) -> RunSnapshot:
        """Read a run that exists."""
        snapshot = self.store.read(run_id, messages=True)
        assert snapshot is not None
        return snapshot

    def open(self) -> list[Interrupt]:
        """List the open questions of all runs, oldest first; a store that lists them agrees."""
        asked = [question for run_id in self.runs for question in self.read(run_id).interrupts]
        questions = [question for question in asked if question.is_open]
        if not isinstance(self.store, MemoryStore):
            listed = {question.id for question in self.store.open_interrupts(limit=1000)}
            assert listed == {question.id for question in questions}
        return sorted(questions, key=lambda question: question.asked_at)

    def statuses(self, run_id: str) -> str:
        """Return the status of the run and of its nodes, as "executing: a completed, b ready"."""
        snapshot = self.read(run_id)
        nodes = ", ".join(
            f"{name} {snapshot.nodes[name].status}" for name in sorted(snapshot.nodes)
        )
        return f"{snapshot.record.status}: {nodes}"

    def events(self, run_id: str, kind: str) -> list[Event]:
        """List the events of a run that have this kind."""
        return [event for event in self.store.events(run_id) if event.kind == kind]

    def kinds(self, run_id: str) -> list[str]:
        """List what happened in a run, as "node.completed a"."""
        return [f"{event.kind} {event.node}".strip() for event in self.store.events(run_id)]


def rung(reply: Reply | Claim) -> list[str]:
    """Name the visits that a reply asks to ring, as "a.1.1"."""
    assert isinstance(reply, Reply)
    return [re.sub(r"^[^.]*\.", "", bell.task_id) for bell in reply.doorbells]


def word_of(reply: Reply | Claim) -> str:
    """Name what became of a request; a claim that was given is "claimed"."""
    return reply.word if isinstance(reply, Reply) else "claimed"


def saved(step: int, *messages: JSON, keep: int = 0) -> Saved:
    """Make what a node keeps."""
    return Saved({"v": 1, "step": step}, keep, list(messages))
