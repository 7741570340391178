"""The contract of sessions: what runs leave for later runs, written as their nodes complete."""

from __future__ import annotations

from runner.outcomes import Remembered, Session
from runner.ports import Settlement, Store
from runner.run import Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, failure, saved, shape


class RememberingContract:
    """What outlives a run because its nodes said so."""

    def test_a_session_that_nobody_wrote_is_empty(self, store: Store) -> None:
        """Reading it is no error, and makes nothing."""
        assert store.session("ann") == Session()
        assert not store.forget_session("ann")

    def test_a_completed_node_adds_to_its_session(self, worker: Worker, store: Store) -> None:
        """The messages after the first few are appended, values are set and deleted; then both stay."""
        run_id = worker.start(shape("a>b"))
        first = Remembered("ann", 1, {"n": 1, "gone": True, "": None})
        kept = saved(1, "old", "one", {"two": 2})
        assert worker.settle(worker.claim(run_id, "a").token, saved=kept, session=first) == "settled"
        token = worker.claim(run_id, "b").token
        store.save(token, saved(1, "three"))
        second = Remembered("ann", 0, {"n": {"deep": [1]}}, ["gone", "never"])
        assert worker.settle(token, session=second) == "settled"

        found = store.session("ann")
        assert found == Session(["one", {"two": 2}, "three"], {"n": {"deep": [1]}, "": None})
        assert store.session("bob") == Session()

    def test_a_settle_that_is_repeated_adds_once(self, worker: Worker, store: Store) -> None:
        """The network may double the request: the session has the exchange once."""
        token = worker.claim(worker.start(shape("a")), "a").token
        kept, more = saved(1, "one"), Remembered("ann", 0, {"n": 1})
        settlement = Settlement(Status.COMPLETED, "", None, {"v": 1}, kept, session=more)
        for _ in range(2):
            assert store.settle(token, settlement, "nonce").word == "settled"

        assert store.session("ann") == Session(["one"], {"n": 1})

    def test_a_stale_worker_adds_nothing(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """Only the worker that holds the node writes its session."""
        run_id = worker.start(shape("a"))
        old = worker.claim(run_id, "a").token
        clock.advance(31)
        store.sweep()
        worker.claim(run_id, "a", attempt=2)

        assert worker.settle(old, saved=saved(1, "one"), session=Remembered("ann", 0)) == "stale"
        assert store.session("ann") == Session()

    def test_conditions_that_must_be_asked_again_add_nothing_yet(self, worker: Worker, store: Store) -> None:
        """A settle that is refused leaves the session alone; the one that counts writes it once."""
        run_id = worker.start(shape("a b", entries="ab"))
        token = worker.claim(run_id, "a").token
        more = Remembered("ann", 0)
        reads = [("b", 1, "completed")]

        assert worker.settle(token, saved=saved(1, "one"), session=more, reads=reads) == "changed"
        assert store.session("ann") == Session()
        worker.run(run_id, "b")
        assert worker.settle(token, saved=saved(1, "one"), session=more, reads=reads) == "settled"
        assert store.session("ann").messages == ["one"]

    def test_a_failed_node_adds_nothing(self, worker: Worker, store: Store) -> None:
        """A node that fails has no exchange to add."""
        token = worker.claim(worker.start(shape("a")), "a").token
        store.settle(token, Settlement(Status.FAILED, "", None, failure(), saved(1, "one")), "nonce")

        assert store.session("ann") == Session()

    def test_a_session_is_forgotten_whole(self, worker: Worker, store: Store) -> None:
        """Forgetting deletes messages and state; whoever writes it again begins it anew."""
        run_id = worker.start(shape("a>b"))
        token = worker.claim(run_id, "a").token
        worker.settle(token, saved=saved(1, "one"), session=Remembered("ann", 0, {"n": 1}))

        assert store.forget_session("ann")
        assert store.session("ann") == Session()
        more = Remembered("ann", 0)
        worker.settle(worker.claim(run_id, "b").token, saved=saved(1, "two"), session=more)
        assert store.session("ann") == Session(["two"])
