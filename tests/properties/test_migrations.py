"""Random graphs migrated to other random graphs: what is stored fits the history, and the run ends."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
import redis
from hypothesis import strategies as st

from runner.definition.topology import topology
from runner.errors import DefinitionError, RunnerError
from runner.operations import recovery
from runner.operations.migration_plan import MigrationPlanner, MigrationRequest
from runner.records.asking import numbered_question
from runner.records.interrupts import Address, Decision
from runner.records.run import ACTIVE, FINAL, Status, status_of
from runner.store.interface import Claim, Settlement, Start
from runner.store.redis.store import RedisStore
from runner.store.requests import (
    AnswerQuestions,
    ClaimVisit,
    HoldVisit,
    MigrateRuns,
    ParkVisit,
    ReleaseNodes,
    SettleVisit,
    StartRun,
)
from runner.testing import ManualClock
from tests.properties.test_graph_against_model import BITS, LEASE, definitions, seen

EXAMPLES = hypothesis.settings.default.max_examples // 2
STEPS_TO_THE_END = 100
RUN = "00run"

HOW = st.sampled_from(["settle", "settle", "settle", "park", "park", "hold", "fail"])


@st.composite
def shapes(draw):
    """Draw a graph's shape."""
    try:
        return topology(draw(definitions("first")))
    except DefinitionError:
        hypothesis.reject()


class Moving:
    """A run on a real Redis, whose graph changes while it waits."""

    def __init__(self, url, data, *versions):
        self.clock, self.data, self.versions = ManualClock(), data, versions
        self.store = RedisStore(url, clock=self.clock, lease=LEASE, push=False)
        self.bells, self.count = [], 0
        self.store.publish(versions[:1])
        self.do(StartRun(Start(RUN, "first", None, "t")))

    def do(self, request):
        """Make a request, and keep its doorbells."""
        reply = self.store.do(request)
        self.bells += [bell for bell in reply.doorbells if bell.run_id == RUN]
        return reply

    def nonce(self):
        self.count += 1
        return f"nonce{self.count}"

    @property
    def shape(self):
        fingerprint = self.store.peek(RUN).fingerprint
        return next(shape for shape in self.versions if shape.fingerprint == fingerprint)

    def claims(self, most):
        """Claim what is rung for, one after another."""
        for _ in range(most):
            if not self.bells:
                return
            bell = self.bells.pop(0)
            visit = (bell.run_id, bell.node, bell.visit, bell.attempt)
            claim = self.do(ClaimVisit(*visit, self.nonce()))
            if isinstance(claim, Claim):
                yield claim

    def settle(self, token, bits, *, failed=False):
        edges = f"{bits:09b}"[::-1][: len(self.shape.outgoing.get(token.node, ()))]
        error = {"error": {"type": "builtins:ValueError", "message": "no"}} if failed else {}
        status = Status.FAILED if failed else Status.COMPLETED
        settlement = Settlement(status, edges, "out", {"v": 1, "edges": edges, **error})
        self.do(SettleVisit(token, settlement, self.nonce()))

    def work(self, steps):
        """End visits, ask, or hold them."""
        for claim in self.claims(steps):
            how, token = self.data.draw(HOW), claim.token
            if how == "park":
                address = Address(token.run_id, token.node, token.visit)
                closed = {answer.id: answer for answer in claim.answers}
                asks = numbered_question(address, closed, "x", scope="function")
                self.do(ParkVisit(token, [asks], None))
            elif how == "hold":
                self.do(HoldVisit(token))
            else:
                self.settle(token, self.data.draw(BITS), failed=how == "fail")

    def answer(self):
        """Answer all open questions."""
        questions = self.store.open_interrupts(limit=1000)
        if questions:
            answers = [Decision(question.id, 1, "ann") for question in questions]
            self.do(AnswerQuestions(answers, self.nonce()))

    def migrate(self):
        """Move the run to another version if it waits and can be moved; return whether it was."""
        snapshot, old = self.store.read(RUN), self.shape
        if snapshot.record.status not in {Status.INTERRUPTED, Status.NEEDS_MIGRATION}:
            return False
        new = self.data.draw(st.sampled_from(self.versions))
        there, here = sorted(old.nodes), sorted(new.nodes)
        names = st.dictionaries(st.sampled_from(there), st.sampled_from(here), max_size=2)
        renames = self.data.draw(names)
        drops = [name for name in there if name not in renames and name not in here]
        held = [name for name, record in snapshot.nodes.items() if record.held]
        for request in (MigrationRequest(renames, drops), MigrationRequest({}, there)):
            documents = self.store.documents(RUN)
            planner = MigrationPlanner(
                snapshot, old, new, request, held, lambda *_: "1", documents
            )
            try:
                moved = planner.migration("", "")
            except RunnerError:
                continue
            self.store.publish([new])
            assert self.do(MigrateRuns([moved], self.nonce())).word == "migrated"
            return True
        return False

    def check(self):
        """What is stored is what a recount and a replay of the history give."""
        snapshot = self.store.read(RUN)
        record, nodes = snapshot.record, snapshot.nodes.values()
        waiting = [node for node in nodes if node.status is Status.WAITING]
        assert record.active == sum(node.status in ACTIVE for node in nodes)
        assert record.waiting == sum(not node.held for node in waiting)
        assert record.held == sum(node.held for node in nodes)
        assert record.status is status_of(record)
        if not record.stopping:
            replayed = recovery.Replay(self.shape, recovery.history(snapshot)).records()
            assert seen(replayed.nodes) == seen(snapshot.nodes)

    def end(self):
        """Let the run go on until it has ended."""
        for _ in range(STEPS_TO_THE_END):
            snapshot = self.store.read(RUN)
            if snapshot.record.status in FINAL:
                return
            held = [name for name, node in snapshot.nodes.items() if node.held]
            if held:
                self.do(ReleaseNodes(RUN, held))
            self.answer()
            for claim in self.claims(len(self.bells)):
                self.settle(claim.token, 511 if claim.token.visit == 1 else 0)
            self.clock.advance(LEASE + 1)
            self.do_sweep()
        raise AssertionError(f"the run never ends: {snapshot}")

    def do_sweep(self):
        """Do what is due."""
        self.bells += [bell for bell in self.store.sweep().doorbells if bell.run_id == RUN]


def moved(url, data, first, later):
    """Play a run, move it up to three times, and let it end; return how often it was moved."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
    run, count = Moving(url, data, first, later), 0
    try:
        run.work(12)
        for _ in range(3):
            run.check()
            count += run.migrate()
            run.check()
            run.work(6)
        run.check()
        run.end()
        run.check()
    finally:
        run.store.close()
    return count


def play(url, examples=EXAMPLES, **options):
    """Draw runs and play them; return how often each was moved."""
    counts = []

    @hypothesis.settings(max_examples=examples, deadline=None, **options)
    @hypothesis.given(st.data(), shapes(), shapes())
    def draw(data, first, later):
        counts.append(moved(url, data, first, later))

    draw()
    return counts


@pytest.mark.full
def test_moved_runs_fit_their_history(store_server):
    """Whatever the two shapes and the request are, a replay gives what is stored, and the run ends."""
    counts = play(store_server.url)
    assert sum(counts) > len(counts) / 4


@pytest.mark.full
def test_a_move_that_forgets_results_is_found(store_server, monkeypatch):
    """The control: where results aren't moved with their nodes, some run doesn't fit its history."""
    migration = MigrationPlanner.migration

    def forgetful(planner, *place):
        return replace(migration(planner, *place), visits=(), undone={})

    monkeypatch.setattr(MigrationPlanner, "migration", forgetful)
    with pytest.raises((AssertionError, KeyError)):  # the next move may not find a node
        play(store_server.url, 500, phases=[hypothesis.Phase.generate])
