"""The contract of fairness: doorbells that wait for the turn of their key, and the window of the others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from runner.definition.model import Topology
from runner.limits.fairness import Fairness
from runner.limits.limit import Limit
from runner.records.run import Status
from runner.store.interface import Claim, Doorbell, Settlement
from runner.store.requests import CancelRun, ClaimVisit, RemoveRun, SettleVisit, ShareSlots
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.simulation.stride_queue import STAYS_MS

SLOTS = 4


def fair(
    edges: str = "a", weights: dict[str, float] | None = None, **options: object
) -> Topology:
    """Build a graph whose nodes take turns by tenant."""
    return shape(edges, fairness=Fairness("tag:tenant", weights or {}), **options)


class Line:
    """Doorbells as a queue has them, and a worker that takes them in order."""

    def __init__(self, worker: ManualWorker, graph: Topology, slots: int = SLOTS) -> None:
        """Let a queue have so many slots."""
        self.worker, self.graph, self.bells = worker, graph, list[str]()
        worker.store.do(ShareSlots({"g": slots}))
        self.tenants: dict[str, str] = {}

    def start(self, tenant: str, count: int = 1) -> list[str]:
        """Begin runs of a tenant, without a tag for ""; return their ids."""
        tags = {"tenant": tenant} if tenant else {}
        runs = []
        for _ in range(count):
            run_id, doorbells = self.worker.begun(self.graph, tags=tags)
            self.tenants[run_id] = tenant
            runs.append(run_id)
            self.ring(doorbells)
        return runs

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Put what a reply asks to ring behind the others."""
        self.bells += [bell.task_id for bell in doorbells]

    def take(self) -> Claim:
        """Claim the visit of the first doorbell."""
        run_id, node, visit, attempt = re.split(r"\.", self.bells.pop(0))
        claim = self.worker.claim(run_id, node, int(visit), int(attempt))
        self.ring(claim.doorbells)
        return claim

    def order(self, count: int) -> str:
        """Take so many visits, and name their tenants."""
        return " ".join(self.tenants[self.take().token.run_id] for _ in range(count))


class FairnessContract:
    """Turns of keys, weights, and a window that no lost doorbell closes."""

    @pytest.mark.scripts
    def test_keys_take_turns(self, worker):
        """A backlog lets one doorbell a slot be rung; who comes later gets every other turn after those."""
        line = Line(worker, fair())
        line.start("noisy", 10)
        assert len(line.bells) == SLOTS
        line.start("quiet", 3)

        assert line.order(10) == "noisy " * 4 + "quiet noisy quiet noisy quiet noisy"

    def test_a_weight_is_so_many_turns(self, worker):
        """A key of weight 3 has three turns for each of another one."""
        line = Line(worker, fair(weights={"gold": 3}))
        line.start("plain", 20)
        line.start("gold", 20)
        assert line.order(SLOTS) == "plain plain plain plain"

        assert line.order(20).count("gold") == pytest.approx(15, abs=1)

    def test_what_a_settle_makes_ready_waits_for_its_turn(self, worker):
        """The next node of a run is behind those of other keys, also where its worker would stay for it."""
        line = Line(worker, fair("a>b"), slots=1)
        line.start("noisy", 9)
        first = [line.take() for _ in range(4)]
        line.start("quiet")
        settlement = Settlement(Status.COMPLETED, "1", None, {"v": 1}, may_continue=True)
        reply = worker.store.do(SettleVisit(first[0].token, settlement, worker.nonce()))
        assert reply.claim is None
        line.ring(reply.doorbells)

        names = [line.tenants[line.take().token.run_id] for _ in range(6)]
        assert names.index("quiet") == 4

    def test_a_stale_doorbell_leaves_the_window(self, worker):
        """The doorbells of runs that were cancelled make room for others as workers find them stale."""
        line = Line(worker, fair())
        cancelled = line.start("noisy", SLOTS)
        line.start("quiet")
        for run_id in cancelled:
            worker.store.do(CancelRun(run_id, "no", worker.nonce()))
        assert len(line.bells) == SLOTS

        reply = worker.store.do(ClaimVisit(cancelled[0], "a", 1, 1, worker.nonce()))
        assert not isinstance(reply, Claim)
        assert reply.word == "stale"
        assert [line.tenants[bell.run_id] for bell in reply.doorbells] == ["quiet"]

    def test_a_lost_doorbell_has_no_second_turn(self, worker):
        """A sweep rings for what was rung and not claimed, and not for what waits for its turn."""
        line = Line(worker, fair())
        line.start("noisy", SLOTS + 3)
        lost = sorted(line.bells)

        again = {bell.task_id for _ in range(3) for bell in _sweep(worker, after=31)}
        assert sorted(again) == lost

    def test_runs_that_are_gone_take_no_turns(self, worker):
        """A backlog that is cancelled and removed, of which some was rung, keeps no other key waiting."""
        line = Line(worker, fair())
        gone = line.start("noisy", SLOTS + 8)
        for run_id in gone:
            worker.store.do(CancelRun(run_id, "no", worker.nonce()))
            worker.store.do(RemoveRun(run_id))

        line.start("quiet", SLOTS + 1)
        assert [line.tenants[bell.split(".")[0]] for bell in line.bells[SLOTS:]] == [
            "quiet"
        ] * SLOTS

    def test_a_doorbell_that_rings_on_stays_in_the_window(self, worker):
        """Where slots are busy for long, no more is rung than the window has; control: a claim makes room."""
        line = Line(worker, fair())
        line.start("noisy", SLOTS)
        for _ in range(2 * STAYS_MS // 31_000):
            _sweep(worker, after=31)
        line.start("quiet", 2)
        assert len(line.bells) == SLOTS

        line.take()
        assert [line.tenants[bell.split(".")[0]] for bell in line.bells[SLOTS - 1 :]] == [
            "quiet"
        ]

    def test_more_slots_ring_at_once(self, worker):
        """The window grows with the slots, without a claim; control: no more slots, no doorbell."""
        line = Line(worker, fair())
        line.start("noisy", SLOTS + 3)

        assert worker.store.do(ShareSlots({"g": SLOTS})).doorbells == []
        assert len(worker.store.do(ShareSlots({"g": SLOTS + 2})).doorbells) == 2

    def test_a_doorbell_that_is_gone_leaves_the_window(self, worker):
        """What nobody claims for minutes is not counted any more, so that a window never closes."""
        line = Line(worker, fair())
        line.start("noisy", SLOTS)
        line.start("quiet")
        worker.clock.advance(STAYS_MS / 1000 + 1)

        line.start("late")
        assert {line.tenants[bell.split(".")[0]] for bell in line.bells[SLOTS:]} == {
            "quiet",
            "late",
        }

    def test_a_graph_that_gives_up_turns_finishes_those_that_wait(self, worker):
        """Runs of before go on in their turns; control: a new run is rung at once, with a full window."""
        line = Line(worker, fair())
        line.start("noisy", SLOTS + 3)
        assert len(line.bells) == SLOTS
        run_id, doorbells = worker.begun("a", tags={"tenant": "noisy"})
        assert [bell.run_id for bell in doorbells] == [run_id]

        assert line.order(SLOTS + 3) == " ".join(["noisy"] * (SLOTS + 3))

    def test_a_limit_goes_before_the_turn(self, worker):
        """A node for which a limit keeps a place is rung at once, since the place is not kept for ever."""
        line = Line(worker, fair(limits={"a": [Limit("one", concurrency=1)]}))
        first, second, *_ = line.start("noisy", 9)
        claim = line.take()
        worker.limited(second, "a")

        assert worker.end(claim.token)[:1] == ["a.1.1"]
        assert line.worker.token(second, "a").run_id != first


def _sweep(worker: ManualWorker, *, after: float) -> Sequence[Doorbell]:
    worker.clock.advance(after)
    return worker.store.sweep().doorbells
