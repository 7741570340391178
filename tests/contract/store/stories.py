"""Stories of one run: in each line a deed and, after "=", what must come of it, if that is not as usual.

    claim a
    claim b = limited
    settle a
    rings = b.1.1

An address is "node", "node.visit" or "node.visit.attempt", or "a/x" for node x of the run inside node a.
A claim has the name after "as", or its address; a question the name that is given where it is asked, or
that of its claim. "none/a" is a node of no run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from runner.definition.model import Topology
from runner.errors import ConflictError
from runner.operations.recovery import write_retry
from runner.records.interrupts import Decision, Interrupt
from runner.records.run import EventKind, Status
from runner.store.interface import Claim, Settlement, Start
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    CancelRun,
    ClaimVisit,
    ConfirmHandOver,
    ExpandMap,
    HandOver,
    HoldVisit,
    Intervene,
    LeaveVisit,
    ParkVisit,
    ReleaseNodes,
    ReportResult,
    RetryVisit,
    SettleVisit,
    StartRun,
    WithdrawQuestion,
)
from tests.contract.store.manual_worker import ManualWorker, failure, rung, shape, word_of

INNER = shape("x", name="inner")

WORK = "work.1"

USUAL = {
    "agree": "counted",
    "answer": "accepted",
    "approve": "counted",
    "ask": "asked",
    "begin": "started",
    "cancel": "cancelled",
    "claim": "claimed",
    "count_due": "0",
    "delegate": "accepted",
    "edit": "counted",
    "expand": "expanded",
    "expand_again": "expanded",
    "fail": "settled",
    "hand": "handed",
    "hold": "done",
    "hold_visit": "held",
    "leave": "left",
    "park": "waiting",
    "put_back": "retrying",
    "reject": "counted",
    "release": "done",
    "release_visit": "released",
    "report": "reported",
    "retry": "retrying",
    "sent": "sent",
    "settle": "settled",
    "take_back": "withdrawn_vote",
    "withdraw": "withdrawn",
}
"""What a deed returns where its line does not say; all others return nothing then."""


def stories(told: Mapping[str, tuple[object, str]]) -> pytest.MarkDecorator:
    """Give a test each graph, or rule, with its story, named by the promise that it shows."""
    return pytest.mark.parametrize(("graph", "story"), told.values(), ids=list(told))


def tell(told: Story, story: str) -> None:
    """Do what the story says."""
    for line in story.strip().splitlines():
        deed, _, expected = line.strip().partition(" = ")
        verb, *words = deed.split()
        assert getattr(told, verb)(*words) == (expected or USUAL.get(verb, "")), line


class Story:
    """A run, what is inside it, and who works on it. Each method is a deed, and returns what came of it."""

    def __init__(self, worker: ManualWorker, graph: Topology | str = "") -> None:
        """Begin a run of a graph, if one is given."""
        self.worker, self.store = worker, worker.store
        self.runs = {"none/": "00none"}
        self.graph = graph
        if graph:
            self.runs[""] = worker.start(graph)
        self.claims: dict[str, Claim] = {}
        self.questions: dict[str, Interrupt] = {}
        self.fences: dict[tuple[str, str], int] = {}

    def another(self, name: str) -> str:
        """Begin another run of the graph, with this name before its nodes."""
        self.runs[f"{name}/"] = self.worker.start(self.graph)
        return ""

    def at(self, address: str) -> tuple[str, str, int, int]:
        """Return run, node, visit and attempt."""
        way, slash, name = address.rpartition("/")
        node, *numbers = name.split(".")
        visit, attempt, *_ = [*map(int, numbers), 1, 1]
        return self.runs[way + slash], node, visit, attempt

    def do(self, request: Any) -> str:
        """Make a request; keep its reply."""
        self.worker.reply = self.store.do(request)
        return word_of(self.worker.reply)

    # -- of workers --------------------------------------------------------------------------------

    def claim(self, address: str, _: str = "as", name: str = "") -> str:
        word = self.do(ClaimVisit(*self.at(address), self.worker.nonce()))
        if word == "claimed":
            self.claims[name or address] = claim = self.worker.reply
            visit = claim.token.run_id, claim.token.node
            assert claim.token.fence > self.fences.get(visit, 0), (
                "a fence is above those before"
            )
            self.fences[visit] = claim.token.fence
        return word

    def settle(self, claimed: str, edges: str | None = None) -> str:
        token = self.claims[claimed].token
        return self.worker.settle(token, token.node, edges)

    def run(self, *addresses: str) -> str:
        for address in addresses:
            assert (self.claim(address), self.settle(address)) == ("claimed", "settled")
        return ""

    def fail(self, claimed: str) -> str:
        settlement = Settlement(Status.FAILED, "", "ignored", failure())
        token = self.claims[claimed].token
        return self.do(SettleVisit(token, settlement, self.worker.nonce()))

    def retry(self, claimed: str, delay_ms: str = "0") -> str:
        return self.do(RetryVisit(self.claims[claimed].token, int(delay_ms), failure(), None))

    def put_back(self, claimed: str) -> str:
        return self.do(RetryVisit(self.claims[claimed].token, 0, None, None))

    def leave(self, claimed: str) -> str:
        return self.do(LeaveVisit(self.claims[claimed].token))

    def hold_visit(self, claimed: str) -> str:
        return self.do(HoldVisit(self.claims[claimed].token))

    def renew(self, *claimed: str) -> str:
        return " ".join(self.store.renew([self.claims[name].token for name in claimed]))

    def expand(self, claimed: str, *values: str) -> str:
        return self.do(ExpandMap(self.claims[claimed].token, list(values)))

    def expand_again(self, claimed: str) -> str:
        return self.do(ExpandMap(self.claims[claimed].token, None))

    def begin(self, claimed: str) -> str:
        """Begin a run inside, whose nodes have the claim's name before theirs."""
        self.store.publish([INNER])
        token = self.claims[claimed].token
        run_id = f"{token.run_id}{len(self.runs)}"
        word = self.do(StartRun(Start(run_id, "inner", None, "task", parent=token)))
        assert (self.store.peek(run_id) is None) == (word != "started")
        self.runs[f"{claimed}/"] = run_id
        self.worker.know(run_id, INNER)
        return word

    def hand(self, claimed: str, reference: str = WORK) -> str:
        return self.do(HandOver(self.claims[claimed].token, reference))

    def sent(self, claimed: str, timeout_ms: str = "0") -> str:
        return self.do(ConfirmHandOver(self.claims[claimed].token, WORK, int(timeout_ms)))

    def report(self, address: str, reference: str = WORK, value: str = "done") -> str:
        return self.do(ReportResult(*self.at(address)[:3], reference, value))

    # -- of people and time ------------------------------------------------------------------------

    def asked(self, claimed: str, words: Sequence[str]) -> list[Interrupt]:
        """Build questions with these names, and with options as "expires_in=60"."""
        options: dict[str, Any] = {}
        for word in words:
            option, is_option, value = word.partition("=")
            if is_option:
                options[option] = float(value) if value.isdecimal() else value
        if options.get("on_expire", "fail") != "fail":
            options["on_expire"] = {"route": options["on_expire"]}
        claim = self.claims[claimed]
        questions = []
        for name in [word for word in words if "=" not in word] or [claimed]:
            question = self.worker.numbered_question(claim, name, **options)
            if name not in self.questions or self.questions[name].id != question.id:
                self.questions[name] = question
            questions.append(self.questions[name])
        return questions

    def ask(self, claimed: str, *words: str) -> str:
        questions = self.asked(claimed, words)
        return self.do(AskQuestions(self.claims[claimed].token, questions, None))

    def park(self, claimed: str, *words: str) -> str:
        questions = [] if words == ("nothing",) else self.asked(claimed, words)
        return self.do(ParkVisit(self.claims[claimed].token, questions, None))

    def answer(self, *names: str) -> str:
        decisions = [Decision(self.questions[name].id, "yes") for name in names]
        self.do(AnswerQuestions(decisions, self.worker.nonce()))
        return " ".join(str(receipt.status) for receipt in self.worker.reply.receipts)

    def withdraw(self, name: str) -> str:
        return self.do(WithdrawQuestion(self.questions[name].id, "", reask=True))

    def hold(self, address: str = "") -> str:
        return self.do(
            Intervene(*self.at(address)[:2], EventKind.NODE_HELD, "human:|ana", "audit")
        )

    def release(self, address: str) -> str:
        return self.do(Intervene(*self.at(address)[:2], EventKind.NODE_RELEASED, "human:|bo"))

    def release_visit(self, *addresses: str) -> str:
        runs, nodes, *_ = zip(*map(self.at, addresses), strict=True)
        return self.do(ReleaseNodes(runs[0], list(nodes)))

    def cancel(self, way: str = "") -> str:
        return self.do(CancelRun(self.runs[way], "enough"))

    def reopen(self, node: str | None = None) -> str:
        """Retry the run after its end."""
        _, self.worker.reply = write_retry(self.store, self.runs[""], node)
        return self.rings()

    def not_reopened(self, *words: str) -> str:
        with pytest.raises(ConflictError, match=" ".join(words)):
            write_retry(self.store, self.runs[""])
        return ""

    def wait(self, seconds: str) -> str:
        self.worker.clock.advance(float(seconds))
        return ""

    def sweep(self, seconds: str = "0") -> str:
        """Name the visits that a sweep rings for, in no order."""
        return " ".join(sorted(self.worker.sweep(after=float(seconds))))

    # -- what is seen then -------------------------------------------------------------------------

    def rings(self) -> str:
        """Name the doorbells of the last reply."""
        return " ".join(rung(self.worker.reply))

    def begins(self) -> str:
        """Say in which runs the last reply rings for nodes."""
        ways = {run_id: way for way, run_id in self.runs.items()}
        return " ".join(ways[bell.run_id] for bell in self.worker.reply.doorbells)

    def delay(self) -> str:
        return str(self.worker.reply.delay_ms)

    def stands(self, way: str = "") -> str:
        return self.worker.statuses(self.runs[way]).strip()

    def reason(self, way: str = "") -> str:
        return self.worker.read(self.runs[way]).record.reason

    def order(self) -> str:
        return " ".join(self.worker.read(self.runs[""]).order)

    def outputs(self) -> str:
        outputs = self.worker.read(self.runs[""]).outputs.items()
        return " ".join(f"{node}.{visit}={output}" for (node, visit), output in outputs)

    def entries(self) -> str:
        return " ".join(node for node, _ in self.worker.read(self.runs[""]).entries)

    def error(self, address: str, *words: str) -> str:
        """Look for words in the error of a visit."""
        run_id, node, visit, _ = self.at(address)
        assert (
            " ".join(words) in self.worker.read(run_id).entries[node, visit]["error"]["message"]
        )
        return ""

    def held_by(self, node: str) -> str:
        return self.worker.read(self.runs[""]).nodes[node].hold

    def items(self, node: str) -> str:
        """Return what is counted of a map's items, without its zeros."""
        counts = dataclasses.asdict(self.worker.read(self.runs[""]).maps[node])
        return " ".join(f"{name}={count}" for name, count in counts.items() if count)

    def statuses(self, *names: str) -> str:
        """Return what became of questions."""
        found = self.store.interrupts([self.questions[name].id for name in names])
        return " ".join(str(question.status) for question in found if question)

    def open(self) -> str:
        return " ".join(question.name for question in self.worker.open())

    def count(self, kind: str, node: str) -> str:
        """Count the events of a kind at a node."""
        return str(self.worker.kinds(self.runs[""]).count(f"{kind} {node}"))

    def count_due(self) -> str:
        """Sweep, and count what was due."""
        return str(self.store.sweep().count)

    def inputs(self, claimed: str) -> str:
        return " ".join(f"{node}.{visit}" for node, visit, _ in self.claims[claimed].inputs)

    def task(self, claimed: str) -> str:
        return str(self.claims[claimed].task)

    def answers(self, claimed: str) -> str:
        answers = self.claims[claimed].answers
        return ", ".join(f"{answer.name} {answer.status}" for answer in answers)

    def child(self, claimed: str) -> str:
        child = self.claims[claimed].child
        return str(child and child.record.status)

    def children(self) -> str:
        return str(len(self.store.children(self.runs[""])))

    def handed(self, claimed: str) -> str:
        """Return the reference of external work, whether it is late, and what was reported."""
        claim = self.claims[claimed]
        late = " late" if claim.record.late else ""
        return f"{claim.record.handed}{late}: {claim.report}"
