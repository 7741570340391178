"""The contract of `save`, `settle`, `retry` and `hold`: joins, dead paths, loops, failures."""

from __future__ import annotations

from runner.outcomes import Saved
from runner.ports import Settlement, Store, Token
from runner.run import Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, failure, rung, saved, shape, word_of


class RunningContract:
    """What becomes of a claimed visit."""

    def test_what_a_node_keeps_comes_back_with_its_next_claim(self, worker: Worker, store: Store) -> None:
        """A document replaces the older one; messages are kept as deltas."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token

        assert store.save(token, saved(1, "one", "two", "three")).word == "saved"
        assert store.save(token, saved(2, "zwei", keep=1)).word == "saved"
        assert store.save(token, saved(3, {"n": 3}, keep=9)).word == "saved"
        store.retry(token, 0, failure(), None)
        store.sweep()
        claim = worker.claim(run_id, "a", attempt=2)

        assert claim.document == {"v": 1, "step": 3}
        assert list(claim.messages) == ["one", "zwei", {"n": 3}]
        assert worker.read(run_id).messages == {"a": ["one", "zwei", {"n": 3}]}

    def test_messages_can_be_cut_to_none(self, worker: Worker, store: Store) -> None:
        """A node that keeps no message any more has an empty list."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token
        store.save(token, saved(1, "one"))

        store.save(token, Saved({"v": 1}))

        assert worker.read(run_id).messages == {"a": []}

    def test_a_stale_worker_writes_nothing(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """Whoever lost the lease is refused at every door, and leaves no trace."""
        run_id = worker.start(shape("a>b"))
        old = worker.claim(run_id, "a").token
        clock.advance(31)
        store.sweep()
        worker.claim(run_id, "a", attempt=2)
        before = worker.read(run_id)

        assert store.save(old, saved(1)).word == "stale"
        assert store.ask(old, [worker.asked(old)], saved(1)).word == "stale"
        assert store.park(old, [worker.asked(old)], saved(1)).word == "stale"
        assert worker.settle(old) == "stale"
        assert store.retry(old, 0, failure(), saved(1)).word == "stale"
        assert store.hold(old).word == "stale"
        assert store.leave(old).word == "stale"
        assert worker.read(run_id) == before

    def test_a_node_that_the_graph_does_not_have_is_stale(self, worker: Worker, store: Store) -> None:
        """A late doorbell or worker may name a node that a run had before it was moved."""
        run_id = worker.start(shape("a"))
        for node in ("gone", "gone[3]"):
            token = Token(run_id, node, 1, 1)
            assert word_of(store.claim(run_id, node, 1, 1, worker.nonce())) == "stale"
            assert store.renew([token]) == ["stale"]
            assert store.save(token, saved(1)).word == "stale"
            assert store.park(token, [worker.asked(token)], None).word == "stale"
            assert store.retry(token, 0, failure(), None).word == "stale"
            assert store.leave(token).word == "stale"
            assert store.settle(token, Settlement(Status.COMPLETED, "", 1, {"v": 1}), "n").word == "stale"

        assert worker.statuses(run_id) == "executing: a ready"

    def test_a_settled_node_rings_the_next(self, worker: Worker, store: Store) -> None:
        """The transition that ends a visit makes its successors ready and names their doorbells."""
        run_id = worker.start(shape("a>b a>c"))
        token = worker.claim(run_id, "a").token
        settlement = Settlement(Status.COMPLETED, "11", [1, 2.5, None], {"v": 1})

        reply = store.settle(token, settlement, "n")

        assert (reply.word, rung(reply)) == ("settled", ["b.1.1", "c.1.1"])
        assert list(worker.claim(run_id, "b").inputs) == [("a", 1, [1, 2.5, None])]
        assert worker.read(run_id).outputs == {("a", 1): [1, 2.5, None]}
        assert worker.read(run_id).entries == {("a", 1): {"v": 1}}

    def test_a_repeated_settle_changes_nothing(self, worker: Worker, store: Store) -> None:
        """A settle whose reply was lost can be repeated with its nonce; another one is stale."""
        run_id = worker.start(shape("a>b"))
        token = worker.claim(run_id, "a").token
        settlement = Settlement(Status.COMPLETED, "1", "out", {"v": 1})
        store.settle(token, settlement, "same")
        before = worker.read(run_id)

        assert store.settle(token, settlement, "same").word == "settled"
        assert store.settle(token, settlement, "other").word == "stale"
        assert worker.read(run_id) == before

    def test_join_all_waits_for_every_edge(self, worker: Worker) -> None:
        """A node with join "all" is ready when each edge has arrived and one of them is live."""
        run_id = worker.start(shape("a>c b>c", entries=["a", "b"]))
        worker.run(run_id, "a", edges="0")
        assert worker.statuses(run_id) == "executing: a completed, b ready"
        worker.run(run_id, "b")
        assert worker.statuses(run_id) == "executing: a completed, b completed, c ready"

    def test_join_any_is_ready_once(self, worker: Worker) -> None:
        """A node with join "any" is ready at its first live edge, and later ones change nothing."""
        run_id = worker.start(shape("a>c b>c", entries=["a", "b"], any_join=["c"]))
        worker.run(run_id, "a", "c", "b")
        assert worker.statuses(run_id) == "completed: a completed, b completed, c completed"
        assert list(worker.read(run_id).order) == ["a", "c", "b"]

    def test_a_dead_path_is_skipped_to_its_end(self, worker: Worker) -> None:
        """A node all of whose edges are dead is skipped, and so is what only it leads to."""
        run_id = worker.start(shape("a>b a>x b>c x>c c>d"))
        worker.run(run_id, "a", edges="00")
        assert worker.statuses(run_id) == "completed: a completed, b skipped, c skipped, d skipped, x skipped"

    def test_conditions_that_read_what_changed_are_asked_again(self, worker: Worker, store: Store) -> None:
        """A settle is refused when a result that its conditions read, or missed, is another now."""
        run_id = worker.start(shape("a>c b", entries=["a", "b"]))
        token = worker.claim(run_id, "a").token
        seen = [record.ended for record, _, _ in store.fetch(run_id, ["b", "c"])]
        assert seen == [(0, ""), (0, "")]

        worker.run(run_id, "b")
        stale = Settlement(Status.COMPLETED, "0", None, {}, None, [("b", 0, "")])
        assert store.settle(token, stale, "n1").word == "changed"
        reads = [("b", 1, "completed"), ("c", 0, "")]
        assert worker.settle(token, edges="1", reads=reads) == "settled"

    def test_conditions_refused_too_often_make_others_wait(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """A node that insists locks the run's settles for a second, so that its next try is not refused."""
        run_id = worker.start(shape("a b c d", entries=["a", "b", "c", "d"]))
        first, other, dead, last = (worker.claim(run_id, node).token for node in "abcd")
        stale = Settlement(Status.COMPLETED, "", None, {}, None, [("b", 9, "completed")], insist=True)

        assert store.settle(first, stale, "n1").word == "changed"
        assert worker.settle(other) == "locked"
        assert worker.settle(first, reads=[("b", 0, "")]) == "settled"
        assert worker.settle(other) == "settled"

        assert store.settle(dead, stale, "n2").word == "changed"
        clock.advance(1)
        assert worker.settle(last) == "settled"

    def test_fetch_gives_the_latest_results(self, worker: Worker, store: Store) -> None:
        """A condition reads a node's record, output and entry; None where there is none yet."""
        run_id = worker.start(shape("a>b"))
        worker.run(run_id, "a")

        (done, output, entry), (waiting, *nothing) = store.fetch(run_id, ["a", "b"])

        assert (done.status, output, entry) == (Status.COMPLETED, "a", {"v": 1, "kind": "function", "ms": 1})
        assert (waiting.status, nothing) == (Status.READY, [None, None])

    def test_a_loop_runs_again_while_its_back_edge_is_taken(self, worker: Worker, store: Store) -> None:
        """A live back edge gives the header a new visit, which gets the source's output."""
        run_id = worker.start(shape("a>b b>a b>c"))
        worker.run(run_id, "a")
        assert worker.settle(worker.claim(run_id, "b").token, "again", edges="10") == "settled"
        claim = worker.claim(run_id, "a", visit=2)
        assert list(claim.inputs) == [("b", 1, "again")]
        worker.settle(claim.token, "a2")
        second = worker.claim(run_id, "b", visit=2)
        assert list(second.inputs) == [("a", 2, "a2")]
        worker.settle(second.token, "done", edges="01")
        worker.run(run_id, "c")

        assert worker.statuses(run_id) == "completed: a completed, b completed, c completed"
        assert list(worker.read(run_id).order) == ["a", "b", "a", "b", "c"]
        assert worker.read(run_id).outputs["b", 1] == "again"
        assert store.fetch(run_id, ["b"])[0][1] == "done"

    def test_a_node_may_loop_on_itself(self, worker: Worker) -> None:
        """A visit's result is its own, even when its end begins the next visit in the same step."""
        run_id = worker.start(shape("a>a"))
        worker.settle(worker.claim(run_id, "a").token, "one")
        worker.settle(worker.claim(run_id, "a", visit=2).token, "two", edges="0")

        found = worker.read(run_id)
        assert found.outputs == {("a", 1): "one", ("a", 2): "two"}
        assert (found.record.status, list(found.order)) == (Status.COMPLETED, ["a", "a"])

    def test_executions_are_limited(self, worker: Worker) -> None:
        """A run that wants more executions than it may fails, and says why."""
        run_id = worker.start(shape("a>a", max_node_executions=2))
        worker.run(run_id, "a")
        worker.settle(worker.claim(run_id, "a", visit=2).token)

        record = worker.read(run_id).record
        assert record.status is Status.FAILED
        assert record.reason == 'max_node_executions (2) reached before "a"'

    def test_a_retry_is_a_new_attempt_later(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A failed attempt runs again when its delay is over, and its error can be read meanwhile."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token

        assert store.retry(token, 2_000, failure("once"), saved(1)).word == "retrying"
        assert worker.read(run_id).entries["a", 1]["error"]["message"] == "once"
        assert rung(store.sweep()) == []
        clock.advance(2)
        assert rung(store.sweep()) == ["a.1.2"]
        assert worker.claim(run_id, "a", attempt=2).document == {"v": 1, "step": 1}

    def test_putting_back_counts_no_attempt(self, worker: Worker, store: Store) -> None:
        """A visit that is put back without an error keeps its attempt."""
        run_id = worker.start(shape("a"))
        store.retry(worker.claim(run_id, "a").token, 0, None, None)

        assert rung(store.sweep()) == ["a.1.1"]
        assert worker.read(run_id).entries == {}

    def test_a_repeated_retry_gets_the_first_word(self, worker: Worker, store: Store) -> None:
        """A retry whose reply was lost can be repeated, and counts once."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token

        assert store.retry(token, 0, failure(), None).word == "retrying"
        assert store.retry(token, 0, failure(), None).word == "retrying"
        assert worker.read(run_id).nodes["a"].attempt == 2

    def test_events_tell_the_beginning_of_a_long_error(self, worker: Worker, store: Store) -> None:
        """However long an error is as JSON, the event of its node says why that failed."""
        for message in ("x" * 2000, "ж" * 2000, "\0" * 2000, '"' * 990):
            run_id = worker.start(shape("a"))
            token = worker.claim(run_id, "a").token
            store.retry(token, 0, failure(message), None)
            store.sweep()
            token = worker.claim(run_id, "a", attempt=2).token
            store.settle(token, Settlement(Status.FAILED, "", None, failure(message)), worker.nonce())

            told = [event.data["error"] for event in store.events(run_id) if event.data]
            assert len(told) == 2
            assert all(f"ValueError: {message}".startswith(each) and len(each) > 100 for each in told)

    def test_a_node_set_aside_makes_its_run_need_migration(self, worker: Worker, store: Store) -> None:
        """A held node keeps its run open, and a repeated hold gets the same word."""
        run_id = worker.start(shape("a"))
        token = worker.claim(run_id, "a").token

        assert [store.hold(token).word, store.hold(token).word] == ["held", "held"]
        assert worker.statuses(run_id) == "needs_migration: a waiting"

    def test_a_node_set_aside_goes_on_when_it_is_released(self, worker: Worker, store: Store) -> None:
        """It is ready in the same visit and attempt, with its answers; a repeat is stale."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        (question,) = worker.park(run_id, "a")
        worker.answer(question)
        token = worker.claim(run_id, "a").token
        store.hold(token)
        worker.run(run_id, "b")
        assert worker.statuses(run_id) == "needs_migration: a waiting, b completed"

        reply = store.release(run_id, ["b", "a", "a"])

        assert (reply.word, rung(reply)) == ("released", ["a.1.1"])
        assert [store.release(run_id, ["a"]).word, store.release("00none", ["a"]).word] == ["stale", "stale"]
        claim = worker.claim(run_id, "a")
        assert [each.response for each in claim.answers] == ["yes"]
        assert claim.token.fence > token.fence
        assert "node.released a" in worker.kinds(run_id)

    def test_users_data_comes_back_as_it_was(self, worker: Worker, store: Store) -> None:
        """Tasks, outputs and messages survive every kind of JSON value and text."""
        odd = {
            "": [],
            "a.b": {},
            "t": '\x00\u2028\U0001f600\\/"',
            "n": [0, -0.5, 1e300, 2**63 - 1, True, None],
        }
        run_id = worker.start(shape("a>b"), odd, given={"odd": odd}, tags={"ü": "|"})
        claim = worker.claim(run_id, "a")
        store.save(claim.token, Saved(odd, 0, [odd, [], "", None]))
        worker.settle(claim.token, odd)

        found, second = worker.read(run_id), worker.claim(run_id, "b")
        assert (claim.task, second.given, found.tags) == (odd, {"odd": odd}, {"ü": "|"})
        assert (list(second.inputs), found.messages) == ([("a", 1, odd)], {"a": [odd, [], "", None]})

    def test_node_names_may_be_any_text(self, worker: Worker, store: Store) -> None:
        """Names with dots, colons, bars, quotes and spaces are names like others."""
        names = ["a.1", "a:b|c", "q\"'\\", "ü ñ", "n:a", "#a"]
        run_id = worker.start(shape(" ".join(f"s>{name.replace(' ', '_')}" for name in names)))
        names = [name.replace(" ", "_") for name in names]
        worker.run(run_id, "s")
        for name in names:
            claim = worker.claim(run_id, name)
            store.save(claim.token, saved(1, name))
            worker.settle(claim.token, name)

        found = worker.read(run_id)
        assert found.record.status is Status.COMPLETED
        assert found.messages == {name: [name] for name in names}
        assert found.outputs == {(name, 1): name for name in ["s", *names]}
