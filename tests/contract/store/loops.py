"""The contract of loops: what a round forgets, and what loops around and inside one another wait for."""

from __future__ import annotations

from tests.contract.store.manual_worker import ManualWorker


class LoopContract:
    """Which nodes run again, and what leaves a loop."""

    def test_a_round_forgets_the_arrivals_of_the_round_before(
        self, worker: ManualWorker
    ) -> None:
        """In each round a join of all waits for all of its edges, whatever came in the last one."""
        run_id = worker.start("a>b a>c b>d c>d d>a d>e")
        worker.run(run_id, "a", "b", "c")
        worker.run(run_id, "d", edges="10")
        worker.visit(run_id, "a", 2)
        worker.visit(run_id, "b", 2)
        assert worker.read(run_id).nodes["d"].next_visit == 2

        worker.visit(run_id, "c", 2)
        assert worker.visit(run_id, "d", 2, edges="01") == ["e.1.1"]

    def test_an_outer_loop_that_is_asked_wins(self, worker: ManualWorker) -> None:
        """An inner loop begins no round of its own when the loop around it begins one."""
        run_id = worker.start("a>b b>b b>a b>c")
        worker.run(run_id, "a")

        assert worker.visit(run_id, "b", edges="110") == ["a.2.1"]
        assert worker.visit(run_id, "a", 2) == ["b.2.1"]
        assert worker.visit(run_id, "b", 2, edges="001") == ["c.1.1"]

    def test_an_exit_that_was_taken_arrives_once(self, worker: ManualWorker) -> None:
        """A loop that ends later adds no dead arrival: a join behind it still waits for its other edge."""
        run_id = worker.start("s>a s>x a>b b>a b>d x>d")
        worker.run(run_id, "s", "a")
        worker.run(run_id, "b", edges="11")
        worker.visit(run_id, "a", 2)
        assert worker.visit(run_id, "b", 2, edges="00") == []

        assert worker.visit(run_id, "x") == ["d.1.1"]

    def test_an_outer_loop_waits_for_an_inner_one(self, worker: ManualWorker) -> None:
        """Rounds of an inner loop count once for the loop around it, which ends after its last node."""
        run_id = worker.start("a>b b>b b>c c>a c>d")
        worker.run(run_id, "a")
        assert worker.visit(run_id, "b", edges="10") == ["b.2.1"]
        assert worker.visit(run_id, "b", 2, edges="01") == ["c.1.1"]
        assert "d" not in worker.read(run_id).nodes

        assert worker.visit(run_id, "c", edges="10") == ["a.2.1"]
