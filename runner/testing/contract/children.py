"""The contract of child runs: a node that is a graph waits for the run that does its work."""

from __future__ import annotations

from runner.operations.recovery import write_retry
from runner.records.run import Status
from runner.store.interface import Start, Store, Token
from runner.testing.contract.manual_worker import ManualWorker, rung, shape

INNER = shape("x", name="inner")


class ChildContract:
    """Parents and children."""

    def _family(self, worker: ManualWorker) -> tuple[str, str]:
        """Start a run and, for its first node, a child run."""
        parent = worker.start("a")
        return parent, self._child(worker, worker.claim(parent, "a").token)

    def _child(self, worker: ManualWorker, token: Token) -> str:
        return worker.start(INNER, parent=token)

    def test_a_parent_executes_while_its_child_does(self, worker: ManualWorker, store: Store) -> None:
        """The node waits without a worker, and its run counts as executing."""
        parent, child = self._family(worker)

        assert worker.statuses(parent) == "executing: a waiting"
        assert store.children(parent) == [child]
        record = worker.read(child).record
        assert (record.parent, record.parent_node, record.root) == (parent, "a", parent)

    def test_a_child_that_waits_makes_its_parent_wait(self, worker: ManualWorker, store: Store) -> None:
        """A child's question interrupts the parent, and its answer makes it execute again."""
        parent, child = self._family(worker)
        (question,) = worker.park(child, "x")
        assert worker.statuses(parent) == "interrupted: a waiting"
        assert [question.run_id for question in store.open_interrupts()] == [child]
        worker.answer(question)
        assert worker.statuses(parent) == "executing: a waiting"

    def test_a_child_that_needs_migration_makes_its_parent_need_it(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The outermost run shows it, and that it goes on when the child does."""
        parent, child = self._family(worker)
        store.hold(worker.claim(child, "x").token)
        assert worker.statuses(parent) == "needs_migration: a waiting"

        store.release(child, ["x"])

        assert worker.statuses(parent) == "executing: a waiting"
        worker.run(child, "x")
        assert worker.statuses(parent) == "executing: a ready"

    def test_the_end_of_a_child_rings_its_parent(self, worker: ManualWorker) -> None:
        """The parent's node is ready again and gets the whole child run with its claim."""
        parent, child = self._family(worker)
        token = worker.claim(child, "x").token
        assert worker.settle(token, "inner result") == "settled"

        claim = worker.claim(parent, "a")

        assert claim.child == worker.read(child)
        assert claim.child.outputs == {("x", 1): "inner result"}
        assert claim.record.child == child
        worker.settle(claim.token, "outer result")
        assert worker.statuses(parent) == "completed: a completed"

    def test_a_failed_child_is_for_the_parents_node_to_judge(self, worker: ManualWorker) -> None:
        """A child's failure fails nothing by itself: the parent's node is rung and decides."""
        parent, child = self._family(worker)
        worker.fail(worker.claim(child, "x").token)

        claim = worker.claim(parent, "a")
        assert claim.child is not None
        assert claim.child.record.status is Status.FAILED
        assert worker.statuses(parent) == "executing: a running"

    def test_a_cancel_goes_down(self, worker: ManualWorker, store: Store) -> None:
        """Cancelling a run cancels its children, one that executes and one that waits."""
        parent = worker.start("a b")
        waits = self._child(worker, worker.claim(parent, "a").token)
        runs = self._child(worker, worker.claim(parent, "b").token)
        worker.park(waits, "x")
        token = worker.claim(runs, "x").token

        store.cancel(parent, "enough")

        assert worker.statuses(waits) == "cancelled: x cancelled"
        assert worker.statuses(parent) == "executing: a cancelled, b waiting"
        assert worker.read(runs).record.reason == "its parent run stops"
        worker.settle(token)
        assert worker.statuses(parent) == "cancelled: a cancelled, b cancelled"

    def test_changes_reach_all_generations(self, worker: ManualWorker, store: Store) -> None:
        """A grandchild's question and end reach the grandparent, and a cancel the grandchild."""
        top, middle = self._family(worker)
        bottom = self._child(worker, worker.claim(middle, "x").token)
        (question,) = worker.park(bottom, "x")
        assert worker.read(bottom).record.root == top
        assert worker.statuses(top) == "interrupted: a waiting"
        worker.answer(question)
        assert worker.statuses(top) == "executing: a waiting"
        worker.run(bottom, "x")
        assert worker.statuses(middle) == "executing: x ready"

        store.cancel(top, "enough")
        assert [worker.read(run_id).record.status for run_id in (top, middle)] == [Status.CANCELLED] * 2

    def test_the_events_of_a_child_are_among_those_of_its_root(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A child's events are among its root's, numbered there, with the way to their node."""
        top, middle = self._family(worker)
        bottom = self._child(worker, worker.claim(middle, "x").token)
        assert [worker.read(run).record.path for run in (top, middle, bottom)] == ["", "a/", "a/x/"]
        read = store.events(top)[-1].position
        (question,) = worker.park(bottom, "x")
        worker.answer(question)
        store.emit(bottom, "progress", "x", 1, {"fraction": 0.5})
        worker.run(bottom, "x")
        worker.run(middle, "x")
        worker.run(top, "a")

        events = store.events(top, read)
        assert [f"{event.kind} {event.node}".strip() for event in events] == [
            "node.started a/x/x",
            "interrupt.asked a/x/x",
            "node.waiting a/x/x",
            "run.status",
            "interrupt.answered a/x/x",
            "node.resumed a/x/x",
            "run.status",
            "progress a/x/x",
            "node.started a/x/x",
            "node.completed a/x/x",
            "node.started a/x",
            "node.completed a/x",
            "node.started a",
            "node.completed a",
            "run.ended",
        ]
        everything = store.events(top)
        assert [event.position for event in everything] == [str(n + 1) for n in range(len(everything))]
        own = next(event for event in store.events(bottom) if event.kind == "progress")
        assert (own.node, own.data) == ("x", {"fraction": 0.5})
        assert events[7].data == {"fraction": 0.5}
        assert {event.node for event in store.events(middle)} == {"", "x"}

    def test_a_node_with_a_child_waits_for_nothing_else(self, worker: ManualWorker) -> None:
        """A question left open when a node delegates is withdrawn: no answer wakes it beside its child."""
        parent = worker.start("a")
        token = worker.claim(parent, "a").token
        question = worker.ask(token)
        child = self._child(worker, token)

        assert worker.answer(question) == ["superseded"]
        assert worker.statuses(parent) == "executing: a waiting"
        worker.run(child, "x")
        assert worker.statuses(parent) == "executing: a ready"

    def test_a_repeated_delegation_starts_one_child(self, worker: ManualWorker, store: Store) -> None:
        """A child start that is sent twice begins one child, and another worker's is stale."""
        parent = worker.start("a")
        token = worker.claim(parent, "a").token
        start = Start("00child", "inner", None, None, parent=token)
        store.publish([INNER])

        assert rung(store.start(start, "n")) == ["x.1.1"]
        assert (store.start(start, "n").word, store.children(parent)) == ("started", ["00child"])
        other = Start("00other", "inner", None, None, parent=token)
        assert (store.start(other, "n2").word, store.read("00other")) == ("stale", None)

    def test_a_stopping_run_begins_no_child(self, worker: ManualWorker, store: Store) -> None:
        """A node that delegates after its run was stopped is cancelled."""
        parent = worker.start("a")
        token = worker.claim(parent, "a").token
        store.publish([INNER])
        store.cancel(parent, "enough")

        reply = store.start(Start("00child", "inner", None, None, parent=token), "n")

        assert (reply.word, store.read("00child")) == ("cancelled", None)
        assert worker.statuses(parent) == "cancelled: a cancelled"

    def test_events_of_a_retried_family_keep_their_numbers(self, worker: ManualWorker, store: Store) -> None:
        """The events of a retry in all runs inside a root have consecutive numbers at the root."""
        root = worker.start(shape("a b", policy="continue"))
        runs = [root]
        for node in "ab":
            inner = worker.start(shape("m", name="middle"), parent=worker.claim(root, node).token)
            leaf = worker.start(INNER, parent=worker.claim(inner, "m").token)
            for run_id, name in ((leaf, "x"), (inner, "m"), (root, node)):
                worker.fail(worker.claim(run_id, name).token)
            runs += [inner, leaf]
        before = worker.read(root).events

        write_retry(store, root)
        for leaf in runs[2::2]:
            worker.claim(leaf, "x", 1, 2)

        numbers = [int(event.position.partition("-")[0]) for event in store.events(root)]
        assert numbers == list(range(1, worker.read(root).events + 1))
        assert {worker.read(run_id).record.status for run_id in runs} == {Status.EXECUTING}
        events = [(event.kind, event.node) for event in store.events(root)[before:]]
        assert events[-2:] == [("node.started", "a/m/x"), ("node.started", "b/m/x")]

    def test_a_retried_node_forgets_its_child(self, worker: ManualWorker, store: Store) -> None:
        """A retried node starts another child: its former child counts no more."""
        parent, child = self._family(worker)
        worker.fail(worker.claim(child, "x").token)
        token = worker.claim(parent, "a").token
        store.retry(token, 0, {"v": 1}, None)
        worker.sweep()

        claim = worker.claim(parent, "a", attempt=2)
        assert (claim.child, claim.record.child) == (None, "")
        second = self._child(worker, claim.token)
        assert store.children(parent) == [child, second]
