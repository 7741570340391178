"""The contract of open runs: how many of a graph there may be."""

from __future__ import annotations

from runner.limits.concurrency import Admission
from runner.operations.recovery import ForkOptions, plan_fork, write_retry
from runner.records.run import Status
from runner.store.interface import Reply, Start, Store
from runner.store.requests import ForkRun, StartRun
from tests.contract.store.manual_worker import ManualWorker, shape

TWO = shape("a", admission=Admission(max_open_runs=2))


def start(worker: ManualWorker, graph: str, run_id: str) -> Reply:
    """Start a run, which may be refused."""
    return worker.store.do(StartRun(Start(run_id, graph, None, "task")))


class OpenRunsContract:
    """Bounds of open runs."""

    def test_a_start_over_the_bound_is_refused(self, worker: ManualWorker, store: Store) -> None:
        """It says how many runs are open, and leaves nothing; a run that ends makes room for one."""
        one, _ = worker.start(TWO), worker.start(TWO)
        refused = start(worker, "g", "00three")
        assert refused.word == "full"
        assert "graph 'g' has 2 open runs, and its max_open_runs allows 2" in refused.detail
        assert not refused.doorbells
        assert store.peek("00three") is None

        worker.run(one, "a")
        assert [start(worker, "g", f"00{name}").word for name in ("three", "four")] == [
            "started",
            "full",
        ]

    def test_a_run_that_waits_is_open_and_one_inside_another_does_not_count(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A run counts until it has ended, and a graph without a bound has any number."""
        run_id, _ = worker.asking(TWO)
        assert worker.statuses(run_id) == "interrupted: a waiting"
        for _ in range(3):
            _, token = worker.begin(shape("a", name="outer"))
            worker.start(shape("a", admission=Admission(max_open_runs=2), name="g"), parent=token)

        assert start(worker, "g", "00two").word == "full"
        assert start(worker, "outer", "00more").word == "started"

    def test_a_fork_is_a_start_and_a_retry_is_none(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A fork over the bound is refused; a retry continues a run that was admitted, and counts again."""
        graph = shape("a", admission=Admission(max_open_runs=1))
        run_id, token = worker.begin(graph)
        worker.fail(token)
        second = worker.start(graph)
        planned = plan_fork(store, run_id, "a", None, ForkOptions("00fork"))
        assert store.do(ForkRun(planned)).word == "full"

        write_retry(store, run_id)
        record = store.peek(run_id)
        assert record is not None
        assert record.status is Status.EXECUTING
        worker.run(second, "a")
        assert start(worker, "g", "00three").word == "full"
