"""The contract of `leave`: a worker that stops gives up what it runs."""

from __future__ import annotations

from runner.ports import Store
from runner.testing.contract.worker import Worker, rung, saved, shape


class LeavingContract:
    """Visits that are left behind, and begin anew at once."""

    def test_a_visit_left_behind_is_rung_for_at_once(self, worker: Worker, store: Store) -> None:
        """A worker that leaves gives a visit up: the same attempt is rung for, no lost lease is counted."""
        run_id = worker.start(shape("a>b"))
        token = worker.claim(run_id, "a").token
        store.save(token, saved(1))

        said = store.leave(token)

        assert (said.word, rung(said)) == ("left", ["a.1.1"])
        assert worker.read(run_id).nodes["a"].crashes == 0
        assert worker.settle(token) == "stale"
        assert worker.claim(run_id, "a").document == {"v": 1, "step": 1}
        assert worker.kinds(run_id)[-2:] == ["node.left a", "node.started a"]

    def test_a_leave_is_refused_or_repeated(self, worker: Worker, store: Store) -> None:
        """A leave whose reply was lost can be repeated; after another worker's claim it does nothing."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token

        assert [store.leave(token).word, store.leave(token).word] == ["left", "left"]
        assert len(rung(store.leave(token))) == 0
        worker.claim(run_id, "a")
        assert store.leave(token).word == "stale"
        assert worker.statuses(run_id) == "executing: a running"

    def test_a_node_left_while_its_run_stops_is_cancelled(self, worker: Worker, store: Store) -> None:
        """What is given up in a run that stops is not begun again, and ends the run."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        store.cancel(run_id, "enough")

        assert [store.leave(token).word, store.leave(token).word] == ["cancelled", "cancelled"]
        assert worker.statuses(run_id) == "cancelled: a cancelled"
