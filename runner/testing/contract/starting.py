"""The contract of `publish`, `graphs`, `start` and `claim`."""

from __future__ import annotations

from runner.ports import Claim, Doorbell, Start, Store
from runner.run import Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, rung, shape, word_of


class StartingContract:
    """How runs begin and visits are handed out."""

    def test_a_start_rings_every_entry_point(self, store: Store) -> None:
        """A new run's entry points are ready, and their doorbells say which queue to ring."""
        graph = shape("a>c b>c", entries=["a", "b"])
        store.publish([graph])

        reply = store.start(Start("00run", "g", None, "task"), "n")

        assert reply.word == "started"
        assert reply.run_id == "00run"
        assert list(reply.doorbells) == [
            Doorbell("00run", "a", 1, 1, "runner", 5, "g"),
            Doorbell("00run", "b", 1, 1, "runner", 5, "g"),
        ]

    def test_an_unknown_graph_starts_nothing(self, store: Store) -> None:
        """A run of a graph, or of a shape, that nobody published is refused."""
        assert store.start(Start("00run", "g", None, None), "n").word == "unknown_graph"
        store.publish([shape("a")])
        assert store.start(Start("00run", "g", "other", None), "n").word == "unknown_graph"
        assert store.read("00run") is None

    def test_an_idempotency_key_starts_one_run(self, store: Store) -> None:
        """The same key for the same graph gives the first run, and rings nothing."""
        store.publish([shape("a"), shape("a", name="other")])
        store.start(Start("00one", "g", None, None, idempotency_key="k"), "n1")

        second = store.start(Start("00two", "g", None, None, idempotency_key="k"), "n2")
        assert (second.word, second.run_id, rung(second)) == ("exists", "00one", [])
        assert store.start(Start("00two", "other", None, None, idempotency_key="k"), "n3").word == "started"

    def test_an_idempotency_key_is_of_one_graph(self, store: Store) -> None:
        """However graphs and keys are named, a key of one graph never gives the run of another."""
        store.publish([shape("a", name="g:h"), shape("a", name="g")])
        store.start(Start("00one", "g:h", None, None, idempotency_key="k"), "n1")

        assert store.start(Start("00two", "g", None, None, idempotency_key="h:k"), "n2").word == "started"
        assert store.start(Start("00new", "g:h", None, None, idempotency_key="k"), "n3").run_id == "00one"

    def test_a_repeated_start_begins_once(self, store: Store) -> None:
        """A start that is sent twice gets the same word and begins one run."""
        store.publish([shape("a")])
        start = Start("00run", "g", None, None)

        replies = [store.start(start, "n") for _ in range(2)]
        assert [(each.word, each.run_id) for each in replies] == [("started", "00run")] * 2
        assert [rung(each) for each in replies] == [["a.1.1"], []]
        assert len(store.runs()) == 1

    def test_the_last_published_shape_is_current(self, store: Store) -> None:
        """A start without a fingerprint takes the shape published last; one with it takes that."""
        old, new = shape("a>b"), shape("a>c")
        store.publish([old])
        store.publish([new])
        store.publish([new])

        assert store.graphs() == {"g": new.fingerprint}
        store.start(Start("00new", "g", None, None), "n1")
        store.start(Start("00old", "g", old.fingerprint, None), "n2")
        claims = [store.claim(run, "a", 1, 1, run) for run in ("00new", "00old")]
        assert [(each.fingerprint, each.current) for each in claims if isinstance(each, Claim)] == [
            (new.fingerprint, new.fingerprint),
            (old.fingerprint, new.fingerprint),
        ]

    def test_a_claim_carries_all_that_the_node_needs(self, worker: Worker) -> None:
        """A claim has task, state, shape and a fence; the visit then counts as running."""
        graph = shape("a")
        run_id = worker.start(graph, {"say": "ü"}, given={"who": "me"})

        claim = worker.claim(run_id, "a")

        assert (claim.task, claim.given) == ({"say": "ü"}, {"who": "me"})
        assert (claim.graph_id, claim.fingerprint) == ("g", graph.fingerprint)
        assert claim.signature == graph.nodes["a"].signature
        assert (claim.token.visit, claim.record.attempt) == (1, 1)
        assert claim.token.fence > 0
        assert (list(claim.inputs), list(claim.answers), claim.document) == ([], [], None)
        assert (list(claim.messages), claim.child) == ([], None)
        assert claim.record.status is Status.RUNNING
        assert worker.statuses(run_id) == "executing: a running"

    def test_inputs_come_in_the_order_of_the_edges(self, worker: Worker) -> None:
        """A claim lists the outputs of its live edges in the order in which the edges were declared."""
        run_id = worker.start(shape("b>d a>d c>d", entries=["a", "b", "c"]))
        worker.run(run_id, "c")
        worker.run(run_id, "a", edges="0")
        worker.run(run_id, "b")

        assert list(worker.claim(run_id, "d").inputs) == [("b", 1, "b"), ("c", 1, "c")]

    def test_a_visit_is_claimed_once(self, worker: Worker, store: Store) -> None:
        """A second claim, or one for another visit or attempt, is stale."""
        run_id = worker.start(shape("a"))

        for visit, attempt in ((2, 1), (1, 2), (0, 0)):
            assert word_of(store.claim(run_id, "a", visit, attempt, "early")) == "stale"
        worker.claim(run_id, "a")
        assert word_of(store.claim(run_id, "a", 1, 1, "late")) == "stale"

    def test_a_repeated_claim_gets_the_same_claim(self, worker: Worker, store: Store) -> None:
        """A claim whose reply was lost can be repeated with its nonce."""
        run_id = worker.start(shape("a"))

        assert store.claim(run_id, "a", 1, 1, "same") == store.claim(run_id, "a", 1, 1, "same")

    def test_a_doorbell_of_an_unknown_run_is_dropped(self, store: Store) -> None:
        """A claim for a run that does not exist says so."""
        assert word_of(store.claim("00none", "a", 1, 1, "n")) == "unknown"

    def test_a_run_remembers_when_it_began(self, worker: Worker, clock: ManualClock) -> None:
        """A run has the time of the store's clock at which it was started, and its tags."""
        began = clock.now
        run_id = worker.start(shape("a"), tags={"team": "a"})
        clock.advance(5)

        found = worker.read(run_id)

        assert (found.created_at, found.ended_at, found.tags) == (began, 0, {"team": "a"})

    def test_a_node_without_successors_ends_the_run(self, worker: Worker, store: Store) -> None:
        """The last settle of a run ends it, and rings nothing."""
        run_id = worker.start(shape("a>b"))
        worker.run(run_id, "a")
        reply = store.claim(run_id, "b", 1, 1, "n")
        assert isinstance(reply, Claim)

        assert worker.settle(reply.token, {"done": True}) == "settled"
        assert worker.read(run_id).record.status is Status.COMPLETED
        assert rung(store.sweep()) == []
