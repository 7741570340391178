"""Whatever happens to random graphs, the stores do what the slow and obvious model says.

The model (`reference_model`, `reference_runs`) was written from the design without the scheduler.
After every step the words, the statuses, the visits, the open questions, the order and the results
are the model's, and the promises hold. At the end everything that can go on does, and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import hypothesis
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runner.definition.cycles import reach
from runner.definition.model import Definition, EdgeSpec, FailurePolicy, Join, NodeSpec, map_of
from runner.definition.topology import topology
from runner.errors import DefinitionError
from runner.operations import recovery
from runner.records.asking import numbered_question
from runner.records.interrupts import Address, Decision
from runner.records.run import FINAL, Status
from runner.store.interface import Claim, Settlement, Start, Token
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    CancelRun,
    ClaimVisit,
    LeaveVisit,
    ParkVisit,
    RetryVisit,
    SettleVisit,
    StartRun,
)
from runner.testing import ManualClock
from tests.properties.machines import play
from tests.properties.reference_model import Map, Overlap
from tests.properties.reference_runs import World

EXAMPLES = hypothesis.settings.default.max_examples
LEASE = 30
STEPS_TO_THE_END = 400


BITS = st.sampled_from([511, 511, 511, 1, 2, 5, 341, 170, 0])
"""Which of a node's edges are taken, the first one in the lowest bit."""

LATER = (511, 511, 1, 2)
"""Those of the first visits when a run is brought to its end; no later one takes any."""

TRICKY = (
    "ab ac bd cd",
    "ab bb bc ca cd",
    "ab bc cb ca cd",
    "ab ac ad be ce de",
    "ab ac bd cd da",
    "ab bb bd ac cd",
)
"""Joins outside of loops and in them, and loops in loops: most graphs that are drawn have none of these."""


@st.composite
def definitions(draw, name: str, shapes: Sequence[str | None] = (None, *TRICKY)) -> Definition:
    """Draw a graph: any edges, so joins, dead paths and loops in every shape."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=9, unique=True
        )
    )
    if draw(st.booleans()):
        # Most of any edges are in loops; joins outside of loops have a way of their own in the scripts.
        pairs = [(low, high) for low, high in (sorted(pair) for pair in pairs) if low != high]
        pairs = list(dict.fromkeys(pairs))
    entries = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    if tricky := draw(st.sampled_from(shapes)):
        names, entries, pairs = "abcde", ["a"], [tuple(ends) for ends in tricky.split()]
    onward = {node: [target for source, target in pairs if source == node] for node in names}
    joins, resumes = (
        st.sampled_from([Join.ALL, Join.ALL, Join.ANY]),
        st.sampled_from(["all", "each"]),
    )
    nodes = [
        NodeSpec(node, executor=None, kind="function", join=draw(joins), resume=draw(resumes))
        for node in sorted(reach(entries, onward))
    ]
    return Definition(
        id=name,
        nodes={spec.id: spec for spec in nodes},
        edges=tuple(
            EdgeSpec(source, target, on_expire=draw(st.sampled_from([False, False, True])))
            for source, target in pairs
            if source in reach(entries, onward)
        ),
        entries=tuple(entries),
        policy=draw(st.sampled_from(["continue", "continue", "fail_fast"]).map(FailurePolicy)),
        max_node_executions=draw(st.sampled_from([None, None, None, 3, 9])),
        execution_timeout=draw(st.sampled_from([None, None, None, 90.0])),
    )


class Against(RuleBasedStateMachine):
    """Does everything to a store and to the model, and compares."""

    world = World

    def open_store(self):
        return MemoryStore(clock=self.clock, lease=LEASE)

    def timers(self):
        return {"|".join(timer) for timer in self.store._database.timers}

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.store = self.open_store()
        self.model = self.world(self.clock.now)
        self.shapes, self.definitions = [], []
        self.bells: list = []
        self.claims: list[Claim] = []
        self.questions: list[str] = []
        self.committed, self.answered = Counter(), Counter()
        self.final: dict = {}
        self.count = 0

    def nonce(self):
        self.count += 1
        return f"nonce{self.count}"

    @initialize(first=definitions("first"), second=definitions("second"))
    def publish(self, first, second):
        self.publish_both(first, second)

    def publish_both(self, first, second):
        for definition in (first, second):
            try:
                shape = Map(definition)
            except Overlap:
                with pytest.raises(DefinitionError):
                    topology(definition)
                hypothesis.reject()
            self.definitions.append((shape, definition))
            self.shapes.append(topology(definition))
        self.store.publish(self.shapes)
        self.start(0)

    # -- what engines do ---------------------------------------------------------------------------

    def begin(self, which, held):
        """Start a run, for a claim as that node's child."""
        (shape, definition), run_id = self.definitions[which], f"00run{len(self.model.runs)}"
        start = Start(run_id, definition.id, None, "t", parent=held.token if held else None)
        reply = self.store.do(StartRun(start))
        assert reply.word == self.model.start(
            run_id, shape, definition, key(held) if held else None
        )
        self.bells += reply.doorbells

    @rule(which=st.integers(0, 1))
    def start(self, which):
        if len(self.model.runs) < 3:
            self.begin(which, None)

    @rule(data=st.data(), which=st.integers(0, 1))
    def delegate(self, data, which):
        if self.claims and len(self.model.runs) < 6:
            self.begin(which, self.pick(data, self.claims))

    @rule(data=st.data())
    def claim(self, data):
        if self.bells:
            self.take(self.pick(data, self.bells))

    def take(self, bell):
        claim = self.store.do(
            ClaimVisit(bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce())
        )
        token = claim.token if isinstance(claim, Claim) else None
        expected = self.model.claim(bell.run_id, bell.node, bell.visit, bell.attempt, token)
        if isinstance(expected, str):
            assert not isinstance(claim, Claim)
            assert claim.word == expected
            return None
        assert isinstance(claim, Claim), claim
        run = self.model.runs[bell.run_id]
        assert [(node, visit) for node, visit, _ in claim.inputs] == run.picture().inputs(
            bell.node
        )
        assert all(
            output == f"{node}{visit}" or output["expired"]["name"] in "xyz"
            for node, visit, output in claim.inputs
        )
        assert {answer.id for answer in claim.answers} >= {
            question.id
            for question in expected.questions.values()
            if question.status == "answered"
        }
        self.claims.append(claim)
        return claim

    @rule(data=st.data(), bits=BITS, fails=st.sampled_from([False] * 4 + [True]))
    def claim_and_settle(self, data, bits, fails):
        if self.bells:
            claim = self.take(self.pick(data, self.bells))
            if claim is not None:
                self.settle_with(claim, bits, fails)

    @rule(data=st.data(), bits=BITS, fails=st.sampled_from([False] * 4 + [True]))
    def settle(self, data, bits, fails):
        if self.claims:
            self.settle_with(self.pick(data, self.claims), bits, fails)

    def settle_with(self, claim, bits, fails):
        token = claim.token
        shape, _ = self.definition(token)
        leaving = [
            number for number, edge in enumerate(shape.edges) if edge.source == token.node
        ]
        text = f"{bits:09b}"[::-1][: len(leaving)]
        took = frozenset(
            number for number, bit in zip(leaving, text, strict=True) if bit == "1"
        )
        status = Status.FAILED if fails else Status.COMPLETED
        error = {"error": {"type": "builtins:ValueError", "message": "no"}} if fails else {}
        edges = "" if fails else text
        entry = {"v": 1, "edges": edges, **error}
        settlement = Settlement(status, edges, f"{token.node}{token.visit}", entry)
        nonce = self.nonce()
        reply = self.store.do(SettleVisit(token, settlement, nonce))
        assert reply.word == self.model.settle(key(claim), completed=not fails, took=took)
        self.bells += reply.doorbells
        # An item that failed may end once more, if its map is tried again; what completed may not.
        self.committed[token.run_id, token.node, token.visit] += (
            reply.word == "settled" and not fails
        )
        # The network may double it: that changes nothing and gets the same word.
        assert self.store.do(SettleVisit(token, settlement, nonce)).word == reply.word

    @rule(
        data=st.data(),
        how=st.sampled_from(["park", "park", "ask"]),
        names=st.sampled_from(["x", "xy", "xy", "yz"]),
        lasts=st.sampled_from([None, None, 20.0]),
    )
    def wait(self, data, how, names, lasts):
        if self.claims:
            claim = self.pick(data, self.claims)
            self.ask(claim, how, names, lasts, self.ending(data, claim) if lasts else "")

    def ending(self, data, claim):
        """Choose what an expiry does to a node."""
        leaving = [
            edge
            for edge in self.definition(claim.token)[0].edges
            if edge.source == claim.token.node
        ]
        return data.draw(
            st.sampled_from(["", "fail", *(edge.target for edge in leaving if edge.on_expire)])
        )

    @rule(
        data=st.data(),
        how=st.sampled_from(["park", "park", "ask"]),
        names=st.sampled_from(["x", "xy"]),
    )
    def claim_and_let_expire(self, data, how, names):
        """The question of a node expires while it waits or is still at work."""
        claim = self.take(self.pick(data, self.bells)) if self.bells else None
        if claim is not None:
            self.ask(claim, how, names, 20.0, self.ending(data, claim))
            self.pass_time(20)

    @rule(data=st.data())
    def claim_and_wait(self, data):
        """A node asks two questions, and one is answered."""
        claim = self.take(self.pick(data, self.bells)) if self.bells else None
        if claim is not None:
            self.ask(claim, "park", "xy", None, "")
            self.respond(sorted(self.model.open_questions())[:1])

    def ask(self, claim, how, names, lasts, ends):
        """Ask, in the store and in the model."""
        token = claim.token
        address = Address(token.run_id, token.node, token.visit, routes=(ends,))
        on_expire = ends if ends in ("", "fail") else {"route": ends}
        options = {"expires_in": lasts, "on_expire": on_expire or None}
        closed = {answer.id: answer for answer in claim.answers}
        questions = [
            numbered_question(address, closed, name, scope="function", **options)
            for name in names
        ]
        before = self.others(token)
        described = [(question.id, lasts, ends) for question in questions]
        request = {"ask": AskQuestions, "park": ParkVisit}[how]
        reply = self.store.do(request(token, questions, None))
        if how == "ask":
            assert reply.word == self.model.ask(key(claim), described)
        else:
            definition = self.definition(token)[1]
            at_each_answer = definition.nodes[map_of(token.node) or token.node].resume == "each"
            assert reply.word == self.model.park(key(claim), described, each=at_each_answer)
        self.bells += reply.doorbells
        self.questions += [
            question.id
            for question in questions
            if question.id not in self.questions and self.was_asked(question.id)
        ]
        if reply.word in ("asked", "waiting", "ready"):
            assert self.others(token) == before, "a question stopped another branch"

    @rule(data=st.data(), delay=st.sampled_from([0, 700]), counts=st.booleans())
    def retry(self, data, delay, counts):
        if self.claims:
            self.retry_with(self.pick(data, self.claims), delay, counts)

    def retry_with(self, claim, delay, counts):
        reply = self.store.do(
            RetryVisit(claim.token, delay, {"v": 1} if counts else None, None)
        )
        assert reply.word == self.model.retry(key(claim), delay, counts=counts)
        self.bells += reply.doorbells

    @rule(data=st.data())
    def leave(self, data):
        if self.claims:
            claim = self.pick(data, self.claims)
            reply = self.store.do(LeaveVisit(claim.token))
            assert reply.word == self.model.leave(key(claim))
            self.bells += reply.doorbells

    # -- what people and time do -------------------------------------------------------------------

    @rule(data=st.data(), many=st.booleans())
    def answer(self, data, many):
        if self.questions:
            self.respond([self.pick(data, self.questions) for _ in range(1 + many)])

    @rule(data=st.data())
    def answer_what_is_open(self, data):
        questions = sorted(self.model.open_questions())
        if questions:
            self.respond([data.draw(st.sampled_from(questions))])

    def was_asked(self, question_id):
        """Whether a question was ever asked: one that came too late was not."""
        return any(
            question_id in visit.questions
            for run in self.model.runs.values()
            for visit in run.visits.values()
        )

    def respond(self, ids):
        if not ids:
            return
        reply = self.store.do(
            AnswerQuestions(
                [Decision(question_id, f"to {question_id}") for question_id in ids],
                self.nonce(),
            )
        )
        receipts = reply.receipts
        assert [str(receipt.status) for receipt in receipts] == self.model.answer(ids)
        self.bells += reply.doorbells
        self.answered.update(
            receipt.interrupt_id for receipt in receipts if receipt.status == "accepted"
        )

    @rule(data=st.data(), really=st.sampled_from([False, False, False, True]))
    def cancel(self, data, really):
        if really:
            run_id = data.draw(st.sampled_from(sorted(self.model.runs)))
            reply = self.store.do(CancelRun(run_id, "enough"))
            assert reply.word == self.model.cancel(run_id, "enough")

    @rule(
        data=st.data(),
        seconds=st.sampled_from([0.7, 20, LEASE, LEASE, 31]),
        renews=st.booleans(),
    )
    def let_time_pass(self, data, seconds, renews):
        if renews and self.claims:
            claim = self.pick(data, self.claims)
            assert self.store.renew([claim.token]) == [self.model.renew(key(claim))]
        self.pass_time(seconds)

    @rule(data=st.data(), bits=BITS)
    def come_back_late(self, data, bits):
        """A worker is frozen; another one takes its node; then it goes on."""
        if self.claims:
            late = self.pick(data, self.claims)
            self.pass_time(31)
            self.take_again(late.token)
            self.settle_with(late, bits, fails=False)

    @rule(data=st.data())
    def lose_a_worker_often(self, data):
        """A node that kills every worker that takes it."""
        if not self.claims:
            return
        token = self.pick(data, self.claims).token
        for _ in range(4):
            self.pass_time(31)
            self.take_again(token)
        self.pass_time(31)

    def take_again(self, token):
        """Claim a visit in the attempt that its node is in now."""
        record = self.store.read(token.run_id).nodes.get(token.node)
        attempt = record.attempt if record else 1
        self.bells.append(bell := Bell(token.run_id, token.node, token.visit, attempt))
        self.take(bell)

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.model.now = self.clock.now
        reply = self.store.sweep()
        self.bells += reply.doorbells
        self.model.sweep()

    # -- what must hold ----------------------------------------------------------------------------

    def pick(self, data, items):
        """Prefer what is new, so that runs get on; older ones are late requests."""
        return items[
            -1 - min(data.draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8])), len(items) - 1)
        ]

    def definition(self, token: Token):
        run = self.model.runs[token.run_id]
        return run.shape, run.definition

    def others(self, token):
        """Where the other nodes of a run stand."""
        nodes = self.store.read(token.run_id).nodes
        return {name: record for name, record in nodes.items() if name != token.node}

    @invariant()
    def all_is_as_the_model_says(self):
        snapshots = self.look()
        self.runs_stand_where_the_model_says(snapshots)
        self.questions_are_the_models(snapshots)
        self.promises_hold(snapshots)

    def look(self):
        """Read every run, once for all that is compared: most of a slice's time is spent here."""
        return {run_id: self.store.read(run_id) for run_id in self.model.runs}

    def runs_stand_where_the_model_says(self, runs):
        for run in self.model.runs.values():
            snapshot = runs[run.id]
            assert snapshot.record.status == self.model.status(run)
            for node, (status, visits) in self.model.nodes(run).items():
                record = snapshot.nodes.get(node)
                position = (str(record.status), record.visit) if record else ("pending", 0)
                self.compare(run, node, position, (status, visits))
            assert list(snapshot.order) == run.order
            assert set(snapshot.outputs) == {
                (visit.node, visit.number)
                for visit in run.visits.values()
                if visit.status == "completed"
            }
            attempts = {name: record.attempt for name, record in snapshot.nodes.items()}
            for visit in run.open():
                assert attempts[visit.node] == visit.attempt
            if run.reason:
                assert snapshot.record.reason.startswith(run.reason)

    def compare(self, run, node, position, expected):
        status, visits = expected
        if node in run.unsure and position[0] in ("pending", "cancelled", "skipped", status):
            return
        last = run.visits.get((node, visits))
        if (
            status == "pending"
            and visits
            and position in {(last.status, visits), ("skipped", visits)}
        ):
            return  # it waits for its next round, and shows the last one until then
        assert position == expected, (run.id, node, position, expected)

    def questions_are_the_models(self, runs):
        questions = [question for snapshot in runs.values() for question in snapshot.interrupts]
        assert {
            question.id for question in questions if question.is_open
        } == self.model.open_questions()

    def promises_hold(self, runs):
        assert all(count == 1 for count in self.committed.values() if count)
        assert all(count == 1 for count in self.answered.values())
        timers = self.timers()
        for run_id, snapshot in runs.items():
            if snapshot.record.status in FINAL:
                assert self.final.setdefault(run_id, snapshot) == snapshot
            for name, record in snapshot.nodes.items():
                if record.status in (Status.READY, Status.RUNNING, Status.RETRYING):
                    assert f"node|{run_id}|{name}" in timers, "nothing would ever ring for it"

    def a_replay_of_everything_gives_what_is_there(self):
        """The history of a run, replayed, gives its nodes."""
        for run_id in self.model.runs:
            snapshot = self.store.read(run_id)
            if not snapshot.record.stopping:
                graph = self.store.topology(
                    snapshot.record.graph_id, snapshot.record.fingerprint
                )
                replayed = recovery.Replay(graph, recovery.history(snapshot)).records()
                nodes = {name: own for name, own in snapshot.nodes.items() if not map_of(name)}
                assert seen(replayed.nodes) == seen(nodes)

    def teardown(self):
        """Let everything go on that can: each run ends, and as the model says."""
        self.a_replay_of_everything_gives_what_is_there()
        for _ in range(STEPS_TO_THE_END):
            open_runs = [
                run for run in self.model.runs.values() if self.model.status(run) not in FINAL
            ]
            if not open_runs:
                self.a_replay_of_everything_gives_what_is_there()
                return
            for run in open_runs:
                for visit in run.open():
                    self.push(run, visit)
                    self.runs_stand_where_the_model_says(self.look())
            self.pass_time(1)
            self.all_is_as_the_model_says()
        raise AssertionError("a run never ends")

    def push(self, run, visit):
        """Bring one visit on: claim it, end it, answer its questions."""
        if visit.status == "ready":
            self.take(Bell(run.id, visit.node, visit.number, visit.attempt))
        if visit.status == "running":
            claim = next(claim for claim in self.claims if claim.token is visit.claim)
            self.settle_with(
                claim, 0 if visit.number > len(LATER) else LATER[visit.number - 1], fails=False
            )
        for question in visit.open():
            if self.model.fate(question.id) == "accepted":
                self.respond([question.id])


def seen(nodes):
    """What a replay must reproduce of nodes: all of those that have ended, and the round of the others.

    A visit that was undone leaves a gap in the numbers, which only the next one's end will tell.
    """
    return {
        name: (record.status, record.visit, record.edges, record.stamp, record.via)
        if record.status in {Status.COMPLETED, Status.FAILED}
        else (record.status is Status.SKIPPED, record.stamp)
        for name, record in nodes.items()
        if record.status is not Status.PENDING
    }


class Bell:
    """A doorbell as the machine makes one by itself."""

    def __init__(self, run_id, node, visit, attempt):
        self.run_id, self.node, self.visit, self.attempt = run_id, node, visit, attempt


def key(claim):
    """Name a claim in the model's words."""
    token = claim.token
    return token.run_id, token.node, token.visit, token


class AgainstRedis(Against):
    """The same on a real Redis."""

    url = ""

    def open_store(self):
        self.server = redis.Redis.from_url(self.url)
        self.server.flushall()
        return RedisStore(self.url, clock=self.clock, lease=LEASE, push=False)

    def timers(self):
        return {name.decode() for name in self.server.zrange("runner:{p00}:timers", 0, -1)}

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.store.close()
            self.server.close()


@pytest.mark.full
def test_memory_does_what_the_model_says():
    """The reference store is the slow model, only faster."""
    play(Against, EXAMPLES // 2)


def test_redis_does_what_the_model_says(store_server):
    """So is a real Redis."""
    play(AgainstRedis, EXAMPLES // 5, url=store_server.url)
