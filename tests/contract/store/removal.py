"""The contract of removal: an ended run is removed before it expires."""

from __future__ import annotations

import pytest

from runner.records.listings import RunQuery
from runner.records.run import Status
from runner.store.interface import Start
from runner.store.requests import RemoveRun, ReportEnd, StartRun
from tests.contract.store.manual_worker import shape

INNER = shape("x", name="inner")


class RemovalContract:
    """What removing a run removes."""

    @pytest.mark.routed
    @pytest.mark.scripts
    def test_a_removed_run_is_gone(self, worker, store):
        """Nothing finds it any more: not its id, no listing, no question's id."""
        run_id = worker.start("a", tags={"team": "red"})
        (question,) = worker.park(run_id, "a")
        worker.answer(question)
        worker.run(run_id, "a")

        assert store.do(RemoveRun(run_id)).word == "removed"
        assert (store.read(run_id), store.peek(run_id)) == (None, None)
        assert store.interrupts([question.id]) == [None]
        assert list(store.events(run_id)) == []
        for query in (
            RunQuery(),
            RunQuery(Status.COMPLETED),
            RunQuery(graph="g"),
            RunQuery(tags={"team": "red"}),
        ):
            assert list(store.runs(query)) == []
        assert store.do(RemoveRun(run_id)).word == "unknown"

    def test_a_removed_run_leaves_its_idempotency_key(self, worker, store):
        """A start with the key of a run that was removed begins a new one."""
        run_id = worker.start("a", idempotency_key="k")
        worker.run(run_id, "a")
        store.do(RemoveRun(run_id))

        again = store.do(StartRun(Start("00later", "g", None, "task", idempotency_key="k")))
        assert (again.word, again.run_id) == ("started", "00later")

    def test_a_run_that_goes_on_is_not_removed(self, worker, store):
        """A run that executes, waits or has an end to report is kept."""
        executing, waiting = worker.start("a"), worker.start("a")
        worker.park(waiting, "a")
        unreported = worker.start("a", on_end="shop.done")
        worker.run(unreported, "a")

        assert {
            store.do(RemoveRun(run_id)).word for run_id in (executing, waiting, unreported)
        } == {"goes_on"}
        assert all(store.peek(run_id) for run_id in (executing, waiting, unreported))
        store.do(ReportEnd(unreported, 1))
        assert store.do(RemoveRun(unreported)).word == "removed"

    def test_the_runs_inside_go_with_the_outermost(self, worker, store):
        """A run inside another is removed with it, by the sweep, and never alone."""
        parent = worker.start("a")
        child = worker.start(INNER, parent=worker.token(parent, "a"))
        inmost = worker.start(INNER, parent=worker.token(child, "x"))
        for run_id, node in ((inmost, "x"), (child, "x"), (parent, "a")):
            worker.run(run_id, node)

        assert store.do(RemoveRun(child)).word == "inside"
        assert store.do(RemoveRun(parent)).word == "removed"
        worker.sweep()
        assert [store.peek(run_id) for run_id in (parent, child, inmost)] == [None, None, None]
        assert list(store.runs()) == []
