"""What the tests of a contract do to a store: small graphs, and an engine's calls made by hand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner.graph import BATCH, Definition, EdgeSpec, FailurePolicy, Join, NodeSpec, Topology, topology
from runner.interrupts import Address, Answer, Interrupt, Receipt
from runner.limits import Limit
from runner.maps import MapSpec
from runner.outcomes import Saved
from runner.ports import Claim, Reply, RunSnapshot, Settlement, Start, Store, Token
from runner.run import Status

JSON = Any


def shape(
    edges: str,
    entries: Sequence[str] = (),
    *,
    name: str = "g",
    policy: str = "fail_fast",
    any_join: Sequence[str] = (),
    each: Sequence[str] = (),
    maps: Mapping[str, MapSpec] | None = None,
    version: str = "",
    limits: Mapping[str, Sequence[Limit]] | None = None,
    **settings: Any,
) -> Topology:
    """Build a graph from text like "a>b b>c d"; the first node named is the entry unless given."""
    pairs = [tuple(part.split(">")) for part in edges.split()]
    names = list(dict.fromkeys(node for pair in pairs for node in pair))
    nodes = {
        node: NodeSpec(
            node,
            executor=None,
            kind="function",
            join=Join.ANY if node in any_join else Join.ALL,
            resume="each" if node in each else "all",
            map=(maps or {}).get(node),
            limits=tuple((limits or {}).get(node, ())),
        )
        for node in names
    }
    links = tuple(EdgeSpec(pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    if settings.get("compat"):
        nodes[BATCH] = NodeSpec(BATCH, None, "batch")
    starts = tuple(entries) or (names[0],)
    return topology(
        Definition(name, nodes, links, starts, FailurePolicy(policy), version=version, **settings)
    )


def failure(message: str = "broken") -> dict[str, JSON]:
    """Make the entry of a node that failed."""
    return {"v": 1, "kind": "function", "ms": 1, "error": {"type": "builtins:ValueError", "message": message}}


class Worker:
    """Does by hand what an engine does; every request has a nonce of its own."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._shapes: dict[str, Topology] = {}
        self._runs: dict[str, Topology] = {}
        self._count = itertools.count(1)

    def nonce(self) -> str:
        """Make a text that no other request has."""
        return f"nonce{next(self._count)}"

    def start(self, graph: Topology, task: JSON = "task", **said: Any) -> str:
        """Publish a graph and begin a run of it."""
        self.store.publish([graph])
        start = Start(f"00run{next(self._count):04d}", graph.graph_id, graph.fingerprint, task, **said)
        reply = self.store.start(start, self.nonce())
        assert reply.word == "started", reply
        self._runs[start.run_id] = graph
        return start.run_id

    def claim(self, run_id: str, node: str, visit: int = 1, attempt: int = 1) -> Claim:
        """Claim a visit that is ready."""
        claim = self.store.claim(run_id, node, visit, attempt, self.nonce())
        assert isinstance(claim, Claim), claim
        return claim

    def know(self, run_id: str, graph: Topology) -> None:
        """Take note of a run that was begun in another way."""
        self._runs[run_id] = graph

    def settle(
        self,
        token: Token,
        output: JSON = None,
        edges: str | None = None,
        note: dict[str, JSON] | None = None,
        **said: Any,
    ) -> str:
        """Complete a visit; all its edges are taken unless `edges` says else. `note` goes into its entry."""
        graph = self._runs[token.run_id]
        bits = "1" * len(graph.outgoing.get(token.node, ())) if edges is None else edges
        in_loop = token.node in graph.nodes and graph.nodes[token.node].loops
        decided = {"edges": bits} if in_loop else {}
        entry = {"v": 1, "kind": "function", "ms": 1, **decided, **(note or {})}
        settlement = Settlement(Status.COMPLETED, bits, output, entry, **said)
        return self.store.settle(token, settlement, self.nonce()).word

    def fail(self, token: Token, *, alone: bool = False) -> str:
        """Fail a visit; `alone` never stops the run."""
        settlement = Settlement(Status.FAILED, "", None, failure(), alone=alone)
        return self.store.settle(token, settlement, self.nonce()).word

    def run(self, run_id: str, *nodes: str, edges: str | None = None) -> None:
        """Claim and complete first visits, one after another; each gives out its own name."""
        for node in nodes:
            assert self.settle(self.claim(run_id, node).token, node, edges) == "settled"

    def asked(self, token: Token, name: str = "ok?", **said: Any) -> Interrupt:
        """Build a question of a visit."""
        return Address(token.run_id, token.node, token.visit).ask(name, scope="function", **said)

    def park(
        self, run_id: str, node: str, *names: str, visit: int = 1, attempt: int = 1, **said: Any
    ) -> list[Interrupt]:
        """Claim a visit and let it wait for the answers to some questions."""
        token = self.claim(run_id, node, visit, attempt).token
        questions = [self.asked(token, name, **said) for name in names or ("ok?",)]
        assert self.store.park(token, questions, None).word == "waiting"
        return questions

    def answer(self, *questions: Interrupt, response: JSON = "yes", **said: Any) -> list[Receipt]:
        """Answer questions as one set."""
        answers = [Answer(each.id, response, **said) for each in questions]
        return self.store.answer(answers, self.nonce())[0]

    def read(self, run_id: str) -> RunSnapshot:
        """Read a run that exists."""
        found = self.store.read(run_id)
        assert found is not None
        return found

    def statuses(self, run_id: str) -> str:
        """Say where the run and its nodes stand, as "executing: a completed, b ready"."""
        found = self.read(run_id)
        nodes = ", ".join(f"{name} {found.nodes[name].status}" for name in sorted(found.nodes))
        return f"{found.record.status}: {nodes}"

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
