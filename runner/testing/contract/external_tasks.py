"""The contract of external tasks: another system does the work, and the node waits without a worker."""

from __future__ import annotations

from runner.definition.model import MapSpec, item_id
from runner.store.interface import Claim, Store
from runner.testing.contract.manual_worker import ManualWorker, rung, shape, word_of

WORK = "work.1"


class ExternalTaskContract:
    """External tasks that are sent, reported, late or revoked."""

    def _hand(self, worker: ManualWorker, run_id: str, timeout_ms: int = 0, node: str = "a") -> Claim:
        """Claim a visit, hand its work out and note that it was sent."""
        claim = worker.claim(run_id, node)
        assert worker.store.hand(claim.token, WORK).word == "handed"
        assert worker.store.sent(claim.token, WORK, timeout_ms).word == "sent"
        return claim

    def test_a_node_waits_for_another_system_and_its_run_executes(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """No time rings a node whose work was sent without a timeout; the report does, and comes with it."""
        run_id = worker.start("a")
        self._hand(worker, run_id)
        assert worker.statuses(run_id) == "executing: a waiting"
        worker.clock.advance(100_000)
        assert store.sweep().word == "0"

        reply = store.report(run_id, "a", 1, WORK, {"result": [1]})
        assert (reply.word, rung(reply)) == ("reported", ["a.1.1"])

        claim = worker.claim(run_id, "a")
        assert claim.report == {"result": [1]}
        assert (claim.record.handed, claim.record.late) == (WORK, False)
        assert worker.settle(claim.token, "done") == "settled"
        assert worker.statuses(run_id) == "completed: a completed"

    def test_only_the_first_report_counts(self, worker: ManualWorker, store: Store) -> None:
        """A repeated report changes nothing; one of other work, another visit or another run is refused."""
        run_id = worker.start("a")
        self._hand(worker, run_id)
        assert store.report(run_id, "a", 1, "other", 1).word == "stale"
        assert store.report(run_id, "a", 2, WORK, 1).word == "stale"
        assert store.report(run_id, "b", 1, WORK, 1).word == "stale"
        assert store.report("00none", "a", 1, WORK, 1).word == "unknown"
        assert worker.statuses(run_id) == "executing: a waiting"

        assert store.report(run_id, "a", 1, WORK, "first").word == "reported"
        again = store.report(run_id, "a", 1, WORK, "second")
        assert (again.word, rung(again)) == ("reported", [])
        assert worker.claim(run_id, "a").report == "first"

    def test_a_large_report_comes_whole(self, worker: ManualWorker, store: Store) -> None:
        """What another system reports may be as large as any other value."""
        run_id = worker.start("a")
        self._hand(worker, run_id)
        large = {"result": "x" * 100_000}
        store.report(run_id, "a", 1, WORK, large)
        assert worker.claim(run_id, "a").report == large

    def test_work_that_may_not_have_been_sent_is_sent_again(self, worker: ManualWorker, store: Store) -> None:
        """A worker that is lost between waiting and sending leaves a node that is rung after a lease."""
        run_id = worker.start("a")
        first = worker.claim(run_id, "a")
        store.hand(first.token, WORK)
        assert store.hand(first.token, WORK).word == "handed"
        assert store.hand(first.token, "other").word == "stale"
        assert worker.sweep(after=30) == ["a.1.1"]

        claim = worker.claim(run_id, "a")
        assert (claim.record.handed, claim.record.late, claim.report) == (WORK, False, None)
        assert store.sent(first.token, WORK, 0).word == "stale"
        assert store.hand(claim.token, WORK).word == "handed"

    def test_a_report_that_comes_while_its_node_is_claimed_is_not_lost(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A node that would wait for what was reported meanwhile goes on at once."""
        run_id = worker.start("a")
        store.hand(worker.claim(run_id, "a").token, WORK)
        worker.sweep(after=30)
        claim = worker.claim(run_id, "a")
        reply = store.report(run_id, "a", 1, WORK, "done")
        assert (reply.word, rung(reply)) == ("reported", [])

        ready = store.hand(claim.token, WORK)
        assert (ready.word, rung(ready)) == ("ready", ["a.1.1"])
        assert store.hand(claim.token, WORK).word == "ready"
        assert worker.claim(run_id, "a").report == "done"

    def test_work_that_takes_too_long_rings_its_node(self, worker: ManualWorker, store: Store) -> None:
        """After the timeout the node learns that the work is late; its next attempt knows nothing of it."""
        run_id = worker.start("a")
        self._hand(worker, run_id, timeout_ms=50_000)
        worker.clock.advance(49)
        assert store.sweep().word == "0"
        assert worker.sweep(after=1) == ["a.1.1"]

        claim = worker.claim(run_id, "a")
        assert claim.record.late
        assert store.retry(claim.token, 0, {"v": 1}, None).word == "retrying"
        assert store.report(run_id, "a", 1, WORK, "too late").word == "stale"
        worker.sweep()
        again = worker.claim(run_id, "a", attempt=2)
        assert (again.record.handed, again.record.late, again.report) == ("", False, None)

    def test_a_cancelled_run_rings_for_who_can_revoke(self, worker: ManualWorker, store: Store) -> None:
        """The node ends with its run; its doorbell names the work that may stop."""
        run_id = worker.start("a b")
        self._hand(worker, run_id)
        reply = store.cancel(run_id, "enough")
        assert "a.1.1" in rung(reply)
        assert worker.statuses(run_id) == "cancelled: a cancelled, b cancelled"

        claim = store.claim(run_id, "a", 1, 1, worker.nonce())
        assert not isinstance(claim, Claim)
        assert (claim.word, claim.reference) == ("revoked", WORK)
        assert word_of(store.claim(run_id, "b", 1, 1, worker.nonce())) == "stale"
        assert store.report(run_id, "a", 1, WORK, "late").word == "stale"

    def test_a_stopping_run_hands_nothing_out(self, worker: ManualWorker, store: Store) -> None:
        """A node of a run that was stopped is cancelled where it would wait."""
        run_id = worker.start("a")
        claim = worker.claim(run_id, "a")
        store.cancel(run_id, "enough")
        assert store.hand(claim.token, WORK).word == "cancelled"
        assert store.hand(claim.token, WORK).word == "stale"
        assert worker.statuses(run_id) == "cancelled: a cancelled"

    def test_an_item_of_a_map_may_wait_for_another_system(self, worker: ManualWorker, store: Store) -> None:
        """Its place in the map stays its own until it has ended."""
        spec = MapSpec("function", None, 1, stops=True)
        run_id = worker.start(shape("m", maps={"m": spec}))
        store.expand(worker.claim(run_id, "m").token, ["x", "y"])
        first, second = item_id("m", 0), item_id("m", 1)
        self._hand(worker, run_id, node=first)
        assert worker.statuses(run_id) == "executing: m waiting, m[0] waiting"

        store.report(run_id, first, 1, WORK, "done")
        worker.settle(worker.claim(run_id, first).token, "done")
        worker.run(run_id, second)
        assert worker.claim(run_id, "m").map is not None
