"""The contract of `remove`: an ended run goes before its time, whole, and no other does."""

from __future__ import annotations

from runner.listings import RunQuery
from runner.ports import Start, Store
from runner.run import Status
from runner.testing.contract.worker import Worker, shape

INNER = shape("x", name="inner")


class RemovingContract:
    """What a store promises of runs that somebody removes."""

    def test_a_removed_run_is_gone(self, worker: Worker, store: Store) -> None:
        """Nothing finds it any more: not its id, no listing, no question's id."""
        run_id = worker.start(shape("a"), tags={"team": "red"})
        (question,) = worker.park(run_id, "a")
        worker.answer(question)
        worker.run(run_id, "a")

        assert store.remove(run_id).word == "removed"
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
        assert store.remove(run_id).word == "unknown"

    def test_a_removed_run_leaves_its_idempotency_key(self, worker: Worker, store: Store) -> None:
        """A start with the key of a run that was removed begins a new one."""
        run_id = worker.start(shape("a"), idempotency_key="k")
        worker.run(run_id, "a")
        store.remove(run_id)

        again = store.start(Start("00later", "g", None, "task", idempotency_key="k"), worker.nonce())
        assert (again.word, again.run_id) == ("started", "00later")

    def test_a_run_that_goes_on_is_not_removed(self, worker: Worker, store: Store) -> None:
        """While a run executes, waits or has somebody to tell of its end, it stays."""
        executing, waiting = worker.start(shape("a")), worker.start(shape("a"))
        worker.park(waiting, "a")
        untold = worker.start(shape("a"), on_end="shop.done")
        worker.run(untold, "a")

        assert {store.remove(each).word for each in (executing, waiting, untold)} == {"goes_on"}
        assert all(store.peek(each) for each in (executing, waiting, untold))
        store.told(untold, 1)
        assert store.remove(untold).word == "removed"

    def test_the_runs_inside_go_with_the_outermost(self, worker: Worker, store: Store) -> None:
        """A run inside another is removed with it, by the sweep, and never alone."""
        parent = worker.start(shape("a"))
        child = worker.start(INNER, parent=worker.claim(parent, "a").token)
        inmost = worker.start(INNER, parent=worker.claim(child, "x").token)
        for run_id, node in ((inmost, "x"), (child, "x"), (parent, "a")):
            worker.run(run_id, node)

        assert store.remove(child).word == "inside"
        assert store.remove(parent).word == "removed"
        store.sweep()
        assert [store.peek(each) for each in (parent, child, inmost)] == [None, None, None]
        assert list(store.runs()) == []
