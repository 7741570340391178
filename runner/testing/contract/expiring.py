"""The contract of questions that time acts on: an expiry that ends the node, and reminders."""

from __future__ import annotations

from typing import Any

import pytest

from runner.graph import Definition, EdgeSpec, NodeSpec, Topology, topology
from runner.interrupts import Address, Interrupt, InterruptStatus, ReceiptStatus
from runner.maps import MapSpec
from runner.ports import Store, Token
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, rung, shape

LEASE = 30
FAIL: dict[str, Any] = {"expires_in": 60, "on_expire": "fail"}


def routed(*edges: str, policy: str = "fail_fast") -> Topology:
    """Build a graph from edges like "a>b", and "a~c" for one that is taken when nobody answers."""
    pairs = [(*edge.replace("~", ">").split(">"), "~" in edge) for edge in edges]
    names = dict.fromkeys(str(name) for pair in pairs for name in pair[:2])
    nodes = {name: NodeSpec(name, None, "function") for name in names}
    found = tuple(EdgeSpec(str(a), str(b), on_expire=bool(late)) for a, b, late in pairs)
    return topology(Definition("g", nodes, found, (next(iter(names)),), policy))  # type: ignore[arg-type] # as users write it


def question(token: Token, name: str = "ok?", **said: object) -> Interrupt:
    """Build a question that may lead to the node `late` when nobody answers."""
    address = Address(token.run_id, token.node, token.visit, routes=("late",))
    return address.ask(name, {"sum": 5}, scope="function", **said)  # type: ignore[arg-type] # options


def route(token: Token, name: str = "ok?") -> Interrupt:
    """Build a question that leads to the node `late` when nobody answers within a minute."""
    return question(token, name, expires_in=60, on_expire={"route": "late"})


class ExpiringContract:
    """What becomes of a node and of people while nobody answers."""

    def test_an_expiry_can_fail_the_node(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """With "fail" the node fails without running again, with an error that says why; its run stops."""
        run_id = worker.start(shape("a>b"))
        worker.park(run_id, "a", **FAIL)
        clock.advance(60)

        assert rung(store.sweep()) == []
        assert worker.statuses(run_id) == "failed: a failed"
        found = worker.read(run_id)
        error = found.entries["a", 1]["error"]
        assert error["type"] == "runner.errors:InterruptExpired"
        assert "nobody answered 'ok?' within 60 s" in error["message"]
        assert found.interrupts[0].status is InterruptStatus.EXPIRED
        assert worker.kinds(run_id)[-3:] == ["node.failed a", "run.stopping", "run.ended"]
        assert store.sweep().word == "0"

    def test_under_continue_an_expiry_fails_its_branch_only(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """Other branches go on, as they do beside any failed node."""
        run_id = worker.start(shape("a>c b>d", entries=["a", "b"], policy="continue"))
        worker.park(run_id, "a", **FAIL)
        token = worker.claim(run_id, "b").token
        clock.advance(29)
        store.renew([token])
        clock.advance(29)
        store.renew([token])
        clock.advance(2)
        store.sweep()
        worker.settle(token)
        worker.run(run_id, "d")

        assert worker.statuses(run_id) == "failed: a failed, b completed, c skipped, d completed"

    def test_an_item_whose_question_expires_fails_in_its_map(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """A map that goes on without failed items collects the others."""
        graph = shape("m", maps={"m": MapSpec("function", None, None, stops=False)})
        run_id = worker.start(graph)
        store.expand(worker.claim(run_id, "m").token, ["x", "y"])
        worker.park(run_id, "m[0]", **FAIL)
        worker.run(run_id, "m[1]")
        clock.advance(60)

        assert rung(store.sweep()) == ["m.1.1"]
        assert worker.claim(run_id, "m").map.failed == 1  # type: ignore[union-attr] # it has items

    def test_an_expiry_can_lead_elsewhere(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """With a route the node ends, its other edges die; the node that is next learns what was asked."""
        run_id = worker.start(routed("a>b", "a~late", "a~later", "late>c", "b>c"))
        token = worker.claim(run_id, "a").token
        asked = route(token)
        store.park(token, [asked], None)
        clock.advance(60)

        assert rung(store.sweep()) == ["late.1.1"]
        assert worker.statuses(run_id) == "executing: a completed, b skipped, late ready, later skipped"
        told = {"interrupt_id": asked.id, "name": "ok?", "reason": {"sum": 5}, "assignees": []}
        claim = worker.claim(run_id, "late")
        assert list(claim.inputs) == [("a", 1, {"expired": told})]
        worker.settle(claim.token)
        worker.run(run_id, "c")
        assert worker.statuses(run_id).startswith("completed")
        assert list(worker.read(run_id).order) == ["a", "late", "c"]

    def test_an_answer_in_time_never_takes_that_edge(self, worker: Worker, store: Store) -> None:
        """The edge is dead for a node that completes, whatever its worker says of the others."""
        run_id = worker.start(routed("a>b", "a~late"))
        token = worker.claim(run_id, "a").token
        asked = route(token)
        store.park(token, [asked], None)
        worker.answer(asked)
        worker.settle(worker.claim(run_id, "a").token, edges="10")

        assert worker.statuses(run_id) == "executing: a completed, b ready, late skipped"
        assert store.sweep().word == "0"

    def test_a_route_may_lead_back(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """An edge for expired questions may repeat a loop: whoever is next asks once more."""
        run_id = worker.start(routed("late>a", "a~late", "a>b"))
        worker.run(run_id, "late")
        token = worker.claim(run_id, "a").token
        store.park(token, [route(token)], None)
        clock.advance(60)

        assert rung(store.sweep()) == ["late.2.1"]
        assert next(iter(worker.claim(run_id, "late", visit=2).inputs))[0] == "a"

    @pytest.mark.parametrize("ends", ["fail", {"route": "late"}])
    def test_a_node_at_work_ends_when_it_waits(
        self, worker: Worker, store: Store, clock: ManualClock, ends: object
    ) -> None:
        """A worker is let finish what it does; no answer is taken meanwhile, and none is lost."""
        run_id = worker.start(routed("a>b", "a~late"))
        token = worker.claim(run_id, "a").token
        asked = question(token, expires_in=20, on_expire=ends)
        store.ask(token, [asked], None)
        clock.advance(20)
        assert rung(store.sweep()) == []
        assert worker.statuses(run_id) == "executing: a running"
        assert [each.status for each in worker.answer(asked)] == [ReceiptStatus.EXPIRED]
        assert store.park(token, [asked], None).word == "waiting"
        clock.advance(LEASE)
        store.sweep()

        status = "completed" if ends != "fail" else "failed"
        assert worker.read(run_id).nodes["a"].status == status

    def test_other_questions_end_with_the_node(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """One expiry ends the node: what else it asked is withdrawn, and its workers are refused."""
        run_id = worker.start(shape("a", each=["a"]))
        first, second, third = worker.park(run_id, "a", "x", "y", "z", **FAIL)
        worker.answer(first)
        clock.advance(60)
        store.sweep()

        found = {each.id: each.status for each in worker.read(run_id).interrupts}
        assert sorted([found[second.id], found[third.id]]) == ["expired", "withdrawn"]
        assert found[first.id] is InterruptStatus.ANSWERED
        assert store.claim(run_id, "a", 1, 1, worker.nonce()).word == "stale"  # type: ignore[union-attr] # a reply
        assert not store.open_interrupts()

    def test_a_question_asked_again_says_anew_what_time_does(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """One that was withdrawn with its wait and is asked once more has only what it says now."""
        run_id = worker.start(shape("a", each=["a"]))
        first, _ = worker.park(run_id, "a", "x", "y", remind_every=5, **FAIL)
        worker.answer(first)
        token = worker.claim(run_id, "a").token
        other = worker.asked(token, "z")
        store.park(token, [other], None)
        worker.answer(other)
        token = worker.claim(run_id, "a").token
        store.park(token, [worker.asked(token, "y", expires_in=60)], None)
        clock.advance(60)

        assert rung(store.sweep()) == ["a.1.1"]
        assert store.sweep().word == "0"

    def test_reminders_are_told_until_an_answer(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """Each is an event with its count, shown on the question; an answer ends them."""
        run_id = worker.start(shape("a"))
        (asked,) = worker.park(run_id, "a", remind_every=10)
        for _ in range(3):
            clock.advance(10)
            assert store.sweep().word == "1"
        (found,) = store.open_interrupts()
        assert found.reminded == 3
        told = [event for event in store.events(run_id) if event.kind == "interrupt.reminded"]
        assert [(each.node, each.detail, each.data) for each in told] == [
            ("a", asked.id, {"count": count}) for count in (1, 2, 3)
        ]
        worker.answer(asked)
        assert worker.claim(run_id, "a").answers[0].reminded == 3
        clock.advance(10)
        assert store.sweep().word == "0"

    def test_reminders_come_when_they_should(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """Times count from the question; after an outage one reminder stands for all that were missed."""
        run_id = worker.start(shape("a"))
        worker.park(run_id, "a", remind_after=[5, 20, 25, 40])
        began, seen = clock.now, []
        for seconds in (5, 10, 12, 10, 10):
            clock.advance(seconds)
            if store.sweep().word != "0":
                seen.append((clock.now - began) // 1000)

        assert seen == [5, 27, 47]
        assert store.sweep().word == "0"

    def test_reminders_end(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """One question reminds a hundred times, no more: a run keeps some thousands of events."""
        run_id = worker.start(shape("a"))
        worker.park(run_id, "a", remind_every=1)
        for _ in range(120):
            clock.advance(1)
            store.sweep()

        assert store.open_interrupts()[0].reminded == 100

    @pytest.mark.parametrize("how", ["withdrawn", "cancelled", "expired", "settled"])
    def test_a_closed_question_does_not_remind(
        self, worker: Worker, store: Store, clock: ManualClock, how: str
    ) -> None:
        """Whatever closes a question ends its reminders."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        asked = worker.asked(token, remind_every=15, expires_in=20 if how == "expired" else None)
        store.ask(token, [asked], None)
        if how == "settled":
            worker.settle(token)
        else:
            store.park(token, [asked], None)
        if how == "withdrawn":
            store.withdraw(asked.id, "", reask=False)
        if how == "cancelled":
            store.cancel(run_id, "")
        clock.advance(20)
        store.sweep()
        clock.advance(8)
        store.sweep()

        assert "interrupt.reminded a" not in worker.kinds(run_id)
        assert store.sweep().word == "0"
