"""The contract of runs: starts, claims, results, joins, loops, retries, holds, sessions, stops and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.definition.model import AFTER_GRAPH, MapSpec, Topology
from runner.records.checkpoints import Saved, Session, SessionUpdate
from runner.records.run import EventKind, RunRecord, Status
from runner.scheduler import RELEASE_BUDGET
from runner.scheduler.changes import CALLBACK_NODE
from runner.store.interface import Claim, Doorbell, Reply, Settlement, Start, Store, Token
from runner.store.requests import (
    AskQuestions,
    CancelRun,
    ClaimVisit,
    DrainRun,
    ExpandMap,
    HoldVisit,
    Intervene,
    LeaveVisit,
    ParkVisit,
    ReportEnd,
    RetryVisit,
    SaveCheckpoint,
    SettleVisit,
    StartRun,
)
from tests.contract.store.manual_worker import (
    ManualWorker,
    failure,
    rung,
    saved,
    shape,
    word_of,
)
from tests.contract.store.stories import Story, stories, tell

TASK = "shop.done"

INNER = shape("x", name="inner")


STORIES = {
    "a retry is a new attempt when its delay is over; its error can be read meanwhile": (
        "a",
        """
        claim a
        retry a 2000
        error a broken
        sweep
        sweep 2 = a.1.2
        claim a.1.2
        """,
    ),
    "a visit is claimed once; a claim of another visit, attempt or run is refused": (
        "a",
        """
        claim none/a = unknown
        claim a.2 = stale
        claim a.1.2 = stale
        claim a.0.0 = stale
        claim a
        claim a = stale
        """,
    ),
    "a run that wants more executions than it may fails, with the reason": (
        shape("a>a", max_node_executions=2),
        """
        run a a.2
        stands = failed: a pending
        reason = max_node_executions (2) reached before "a"
        """,
    ),
    "a visit that is put back without an error keeps its attempt": (
        "a",
        """
        claim a
        put_back a
        sweep = a.1.1
        entries
        """,
    ),
    "a retry whose reply was lost can be repeated, and counts once": (
        "a",
        """
        claim a
        retry a
        retry a
        sweep = a.1.2
        """,
    ),
    "the doorbell, the retry and sweeps don't start a ready node that is held": (
        "a b",
        """
        claim b
        retry b 10
        hold a
        hold b
        claim a = stale
        sweep 400
        stands = needs_migration: a waiting, b waiting
        release a
        rings = a.1.1
        release b
        rings = b.1.2
        """,
    ),
    "a node at work, one that has ended, an item and what is none of the graph is not held": (
        shape("a>m m>b", maps={"m": MapSpec("function")}),
        """
        claim a
        hold a = busy
        hold m[] = unknown
        hold m[0] = unknown
        hold x = unknown
        hold = unknown
        hold none/b = stale
        settle a
        claim m
        expand m x y
        hold a = ended
        hold m = busy
        hold m[0] = unknown
        cancel
        hold b = ended
        """,
    ),
    "a leave can be repeated; after another worker's claim it does nothing": (
        "a",
        """
        claim a
        leave a
        rings = a.1.1
        leave a
        rings
        claim a as later
        leave a = stale
        stands = executing: a running
        """,
    ),
    "a node that is left while its run stops is not begun again, and ends the run": (
        "a",
        """
        claim a
        cancel
        leave a = cancelled
        leave a = cancelled
        stands = cancelled: a cancelled
        """,
    ),
    "a node at work when its run stops may finish; the run ends with it, and starts nothing": (
        "a b>c",
        """
        claim b
        claim a
        fail a
        stands = executing: a failed, b running
        settle b
        stands = failed: a failed, b completed
        outputs = b.1=b
        """,
    ),
    "a node of a stopping run that asks or would wait is cancelled, and its question is withdrawn": (
        "a b",
        """
        claim b
        claim a
        fail a
        ask b one = stopping
        park b one two = cancelled
        park b one two = cancelled
        stands = failed: a failed, b cancelled
        statuses one two = withdrawn withdrawn
        open
        """,
    ),
    "the renewal of a lease says that the run is cancelled; what its nodes do then ends it": (
        "a b",
        """
        claim a
        claim b
        cancel
        renew a b = cancelled cancelled
        retry a = cancelled
        stands = executing: a cancelled, b running
        settle b
        stands = cancelled: a cancelled, b completed
        """,
    ),
    "the loss of the last running node ends a run that stops": (
        "a b",
        """
        claim b
        claim a
        fail a
        sweep 31
        stands = failed: a failed, b cancelled
        """,
    ),
    "a failed node has no output, and does not count in the order of execution": (
        shape("a", policy="continue"),
        """
        claim a
        fail a
        stands = failed: a failed
        outputs
        order
        """,
    ),
    "a held node that is released is ready in the same visit and attempt, with its answers": (
        "a b",
        """
        claim a
        park a
        answer a
        claim a
        hold_visit a
        hold_visit a
        run b
        stands = needs_migration: a waiting, b completed
        release_visit b a a
        rings = a.1.1
        release_visit a = stale
        release_visit none/a = stale
        claim a
        answers a = a answered
        count node.released a = 1
        """,
    ),
    "a dead path skips a held node": (
        "a>b b>c",
        """
        hold c
        run a
        claim b
        settle b 0
        stands = completed: a completed, b completed, c skipped
        held_by c
        """,
    ),
    "a held run can be cancelled, and keeps the hold for a retry": (
        "a",
        """
        hold a
        cancel
        stands = cancelled: a cancelled
        held_by a = human:|ana
        """,
    ),
    "under fail_fast a failed node cancels what is ready, retries and waits; its error is kept": (
        "a b c d",
        """
        claim b
        park b
        claim c
        retry c 5000
        claim a
        fail a
        stands = failed: a failed, b cancelled, c cancelled, d cancelled
        statuses b = withdrawn
        error a broken
        reason = node "a" failed
        count interrupt.withdrawn b = 1
        """,
    ),
}


class Ending(Story):
    """A run at whose end a task is called."""

    def __init__(self, worker: ManualWorker, graph: Topology | str) -> None:
        super().__init__(worker)
        self.runs[""] = worker.start(graph, on_end=TASK)

    def end_reported(self, number: str) -> str:
        return self.do(ReportEnd(self.runs[""], int(number)))

    def ends(self) -> str:
        """Count the run's ends; the record is the same in both ways of reading."""
        record = self.store.peek(self.runs[""])
        assert self.worker.read(self.runs[""]).record == record
        return f"{record.ends}, {record.unreported} unreported"


ENDINGS = {
    "an execution timeout that ends a run rings for its end": (
        shape("a", execution_timeout=5.0),
        """
        claim a
        park a
        sweep 6 = @end.1.1
        stands = failed: a cancelled
        ends = 1, 1 unreported
        """,
    ),
    "a cancel that ends a run rings for its end": (
        "a",
        """
        cancel
        rings = @end.1.1
        """,
    ),
    "a graph's own last node runs before the end": (
        shape(f"a {AFTER_GRAPH}", entries=["a"]),
        """
        claim a
        fail a
        rings = @after.1.1
        claim @after
        settle @after
        rings = @end.1.1
        """,
    ),
    "a lost doorbell or worker of an end costs a lease; each further one comes after twice the time": (
        "a",
        """
        claim a
        fail a
        sweep 29
        sweep 1 = @end.1.1
        sweep 59
        sweep 1 = @end.1.1
        sweep 119
        sweep 1 = @end.1.1
        ends = 1, 4 unreported
        """,
    ),
    "an end that was reported is rung for no more; a repeated report changes nothing": (
        "a",
        """
        claim a
        fail a
        end_reported 1 = end_reported
        end_reported 1 = end_reported
        wait 3600
        count_due
        sweep
        ends = 1, 0 unreported
        """,
    ),
}


def _hold(store: Store, run_id: str, node: str) -> str:
    return store.do(Intervene(run_id, node, EventKind.NODE_HELD, "human:|ana", "audit")).word


def _release(store: Store, run_id: str, node: str) -> list[str]:
    return rung(store.do(Intervene(run_id, node, EventKind.NODE_RELEASED, "human:|bo")))


SCRIPTS = {
    "a cancelled run ends at once when nothing runs; its reason can be read": (
        "a b",
        """
        claim a
        park a
        cancel
        stands = cancelled: a cancelled, b cancelled
        sweep
        claim b = stale
        reason = enough
        answer a = superseded
        cancel = already
        cancel none/ = unknown
        """,
    ),
    "a loop runs again while its back edge is taken; its header gets the source's output": (
        "a>b b>a b>c",
        """
        run a
        claim b
        settle b 10
        claim a.2
        inputs a.2 = b.1
        settle a.2
        claim b.2
        inputs b.2 = a.2
        settle b.2 01
        run c
        stands = completed: a completed, b completed, c completed
        order = a b a b c
        """,
    ),
}
"""Stories of scripts, and of verbs that partitions route."""


class RunContract:
    """What becomes of a started run and of its claimed visits."""

    @stories(STORIES)
    def test_a_run_goes_on_as_its_story_says(self, worker, graph, story):
        """Claims, retries, holds, releases, stops and failures of single visits."""
        tell(Story(worker, graph), story)

    @pytest.mark.routed
    @pytest.mark.scripts
    @stories(SCRIPTS)
    def test_a_run_goes_on_in_scripts_as_its_story_says(self, worker, graph, story):
        """A cancel, and the rounds of a loop."""
        tell(Story(worker, graph), story)

    def test_an_unknown_graph_starts_nothing(self, store):
        """A run of a graph, or of a shape, that was not published is refused."""
        assert store.do(StartRun(Start("00run", "g", None, None))).word == "unknown_graph"
        store.publish([shape("a")])
        assert store.do(StartRun(Start("00run", "g", "other", None))).word == "unknown_graph"
        assert store.read("00run") is None

    @pytest.mark.routed
    def test_an_idempotency_key_starts_one_run(self, store):
        """The same key for the same graph returns the first run and rings nothing, however both are named."""
        store.publish([shape("a", name="g:h"), shape("a", name="g")])
        store.do(StartRun(Start("00one", "g:h", None, None, idempotency_key="k")))

        second = store.do(StartRun(Start("00two", "g:h", None, None, idempotency_key="k")))
        assert (second.word, second.run_id, rung(second)) == ("exists", "00one", [])
        for key in ("k", "h:k"):
            start = Start(f"00{key[0]}", "g", None, None, idempotency_key=key)
            assert store.do(StartRun(start)).word == "started"

    def test_a_repeated_start_begins_once(self, store):
        """A start that is sent twice gets the same word and begins one run."""
        store.publish([shape("a")])
        start = Start("00run", "g", None, None)

        replies = [store.do(StartRun(start)) for _ in range(2)]
        assert [(reply.word, reply.run_id) for reply in replies] == [("started", "00run")] * 2
        assert [rung(reply) for reply in replies] == [["a.1.1"], []]

    @pytest.mark.routed
    def test_the_last_published_shape_is_current(self, store):
        """A start without a fingerprint takes the shape published last; one with it takes that."""
        old, new = shape("a>b"), shape("a>c")
        store.publish([old])
        store.publish([new])
        store.publish([new])

        assert store.graphs() == {"g": new.fingerprint}
        store.do(StartRun(Start("00new", "g", None, None)))
        store.do(StartRun(Start("00old", "g", old.fingerprint, None)))
        claims = [store.do(ClaimVisit(run, "a", 1, 1, run)) for run in ("00new", "00old")]
        fingerprints = [claim.fingerprint for claim in claims if isinstance(claim, Claim)]
        assert fingerprints == [new.fingerprint, old.fingerprint]

    def test_a_claim_carries_all_that_the_node_needs(self, worker):
        """A claim has task, state, shape and a fence; the visit then counts as running."""
        graph = shape("a")
        run_id = worker.start(graph, {"say": "ü"}, invocation_state={"who": "me"})

        claim = worker.claim(run_id, "a")

        assert (claim.task, claim.invocation_state) == ({"say": "ü"}, {"who": "me"})
        assert (claim.graph_id, claim.fingerprint) == ("g", graph.fingerprint)
        assert claim.signature == graph.nodes["a"].signature
        assert (claim.token.visit, claim.record.attempt) == (1, 1)
        assert claim.token.fence > 0
        assert (list(claim.inputs), list(claim.answers), claim.document) == ([], [], None)
        assert (list(claim.messages), claim.child) == ([], None)
        assert claim.record.status is Status.RUNNING
        assert worker.statuses(run_id) == "executing: a running"

    def test_inputs_come_in_the_order_of_the_edges(self, worker):
        """A claim lists the outputs of its live edges in the order in which the edges were declared."""
        run_id = worker.start(shape("b>d a>d c>d", entries=["a", "b", "c"]))
        worker.run(run_id, "c")
        worker.run(run_id, "a", edges="0")
        worker.run(run_id, "b")

        assert list(worker.claim(run_id, "d").inputs) == [("b", 1, "b"), ("c", 1, "c")]

    def test_a_repeated_claim_gets_the_same_claim(self, worker, store):
        """A claim whose reply was lost can be repeated with its nonce."""
        run_id = worker.start("a")

        assert store.do(ClaimVisit(run_id, "a", 1, 1, "same")) == store.do(
            ClaimVisit(run_id, "a", 1, 1, "same")
        )

    def test_a_node_held_for_an_error_shows_it(self, worker, store):
        """What it was about to do is refused: its entry and its event say why, and a repeat says it once."""
        run_id, token = worker.begin("a")

        assert [store.do(HoldVisit(token, failure("not approved"))).word for _ in range(2)] == [
            "held",
            "held",
        ]
        assert worker.statuses(run_id) == "needs_migration: a waiting"
        assert worker.read(run_id).entries["a", 1]["error"]["message"] == "not approved"
        events = worker.events(run_id, EventKind.NODE_HELD)
        assert [event.data for event in events] == [{"error": "ValueError: not approved"}]

    def test_what_a_node_keeps_comes_back_with_its_next_claim(self, worker, store):
        """A document replaces the older one; messages are kept as deltas."""
        run_id, token = worker.begin("a")

        assert store.do(SaveCheckpoint(token, saved(1, "one", "two", "three"))).word == "saved"
        assert store.do(SaveCheckpoint(token, saved(2, "zwei", keep=1))).word == "saved"
        assert store.do(SaveCheckpoint(token, saved(3, {"n": 3}, keep=9))).word == "saved"
        store.do(RetryVisit(token, 0, failure(), None))
        worker.sweep()
        claim = worker.claim(run_id, "a", attempt=2)

        assert claim.document == {"v": 1, "step": 3}
        assert list(claim.messages) == ["one", "zwei", {"n": 3}]
        assert worker.read(run_id).messages == {"a": ["one", "zwei", {"n": 3}]}
        store.do(SaveCheckpoint(claim.token, Saved({"v": 1})))
        assert worker.read(run_id).messages == {"a": []}

    @pytest.mark.routed
    def test_a_stale_worker_writes_nothing(self, worker, store):
        """A worker that lost the lease is refused by every method, and leaves no trace."""
        run_id, old = worker.begin("a>b")
        worker.sweep(after=31)
        worker.claim(run_id, "a", attempt=2)
        before = worker.read(run_id)

        assert store.do(SaveCheckpoint(old, saved(1))).word == "stale"
        assert store.do(AskQuestions(old, [worker.question(old)], saved(1))).word == "stale"
        assert store.do(ParkVisit(old, [worker.question(old)], saved(1))).word == "stale"
        assert worker.settle(old) == "stale"
        assert store.do(RetryVisit(old, 0, failure(), saved(1))).word == "stale"
        assert store.do(HoldVisit(old)).word == "stale"
        assert store.do(LeaveVisit(old)).word == "stale"
        assert worker.read(run_id) == before

    def test_a_node_that_the_graph_does_not_have_is_stale(self, worker, store):
        """A late doorbell or worker may name a node that a run had before it was moved."""
        run_id = worker.start("a")
        for node in ("gone", "gone[3]"):
            token = Token(run_id, node, 1, 1)
            assert word_of(store.do(ClaimVisit(run_id, node, 1, 1, worker.nonce()))) == "stale"
            assert store.renew([token]) == ["stale"]
            assert store.do(SaveCheckpoint(token, saved(1))).word == "stale"
            assert store.do(ParkVisit(token, [worker.question(token)], None)).word == "stale"
            assert store.do(RetryVisit(token, 0, failure(), None)).word == "stale"
            assert store.do(LeaveVisit(token)).word == "stale"
            assert (
                store.do(
                    SettleVisit(token, Settlement(Status.COMPLETED, "", 1, {"v": 1}), "n")
                ).word
                == "stale"
            )

        assert worker.statuses(run_id) == "executing: a ready"

    @pytest.mark.scripts
    def test_a_repeated_settle_changes_nothing(self, worker, store):
        """A settle whose reply was lost can be repeated with its nonce; another one is stale."""
        run_id, token = worker.begin("a>b")
        settlement = Settlement(Status.COMPLETED, "1", "out", {"v": 1})
        store.do(SettleVisit(token, settlement, "same"))
        before = worker.read(run_id)

        assert store.do(SettleVisit(token, settlement, "same")).word == "settled"
        assert store.do(SettleVisit(token, settlement, "other")).word == "stale"
        assert worker.read(run_id) == before

    def test_conditions_that_read_what_changed_are_asked_again(self, worker):
        """A settle is refused when a result that its conditions read, or missed, is another now."""
        run_id, token = worker.begin("a>c b")
        seen = [record.ended for record, _, _ in worker.store.fetch(run_id, ["b", "c"])]
        assert seen == [(0, ""), (0, "")]

        worker.run(run_id, "b")
        for edges in "01":
            stale = Settlement(Status.COMPLETED, edges, None, {}, None, [("b", 0, "")])
            assert worker.store.do(SettleVisit(token, stale, f"n{edges}")).word == "changed"
        reads = [("b", 1, "completed"), ("c", 0, "")]
        assert worker.settle(token, edges="1", reads=reads) == "settled"

    def test_conditions_refused_too_often_make_others_wait(self, worker, store):
        """A node that insists locks the run's settles for a second, so that its next try is not refused."""
        run_id = worker.start("a b c d")
        first, other, dead, last = (worker.token(run_id, node) for node in "abcd")
        stale = Settlement(
            Status.COMPLETED, "", None, {}, None, [("b", 9, "completed")], insist=True
        )

        assert store.do(SettleVisit(first, stale, "n1")).word == "changed"
        assert worker.settle(other) == "locked"
        assert worker.settle(first, reads=[("b", 0, "")]) == "settled"
        assert worker.settle(other) == "settled"

        assert store.do(SettleVisit(dead, stale, "n2")).word == "changed"
        worker.clock.advance(1)
        assert worker.settle(last) == "settled"

    def test_fetch_gives_the_latest_results(self, worker, store):
        """A condition reads a node's record, output and entry; None where there is none yet."""
        run_id = worker.start("a>b")
        worker.run(run_id, "a")

        (done, output, entry), (waiting, *nothing) = store.fetch(run_id, ["a", "b"])

        assert (done.status, output, entry) == (
            Status.COMPLETED,
            "a",
            {"v": 1, "kind": "function", "ms": 1},
        )
        assert (waiting.status, nothing) == (Status.READY, [None, None])

    def test_events_have_the_beginning_of_a_long_error(self, worker, store):
        """However long an error is as JSON, the event of its node has the beginning of it."""
        for message in ("x" * 2000, "ж" * 2000, "\0" * 2000, '"' * 990):
            run_id, token = worker.begin("a")
            store.do(RetryVisit(token, 0, failure(message), None))
            worker.sweep()
            token = worker.token(run_id, "a", attempt=2)
            store.do(
                SettleVisit(
                    token, Settlement(Status.FAILED, "", None, failure(message)), worker.nonce()
                )
            )

            errors = [event.data["error"] for event in store.events(run_id) if event.data]
            assert len(errors) == 2
            assert all(
                f"ValueError: {message}".startswith(error) and len(error) > 100
                for error in errors
            )

    def test_a_skipped_node_waits_for_a_worker_with_its_output(self, worker, store):
        """The claim has the operator and the output; its question is withdrawn; a repeat is one."""
        run_id, question = worker.asking("a>b")
        _hold(store, run_id, "a")
        skip = Intervene(
            run_id, "a", EventKind.NODE_OVERRIDDEN, "human:|bo", "known", [{"sum": 7}]
        )

        replies = [store.do(skip) for _ in range(2)]

        assert [reply.word for reply in replies] == ["done", "repeated"]
        assert store.do(replace(skip, outputs=["other"])).word == "skipped"
        assert rung(replies[0]) == ["a.1.1"]
        assert worker.answer(question) == ["superseded"]
        claim = worker.claim(run_id, "a")
        assert claim.record.skip == claim.record.handed
        assert claim.report == ["human:|bo", {"sum": 7}]
        worker.settle(claim.token, {"sum": 7})
        assert store.do(skip).word == "repeated"
        worker.run(run_id, "b")
        assert worker.read(run_id).record.status is Status.COMPLETED

    def test_users_data_comes_back_as_it_was(self, worker, store):
        """Tasks, outputs and messages survive every kind of JSON value and text."""
        odd = {
            "": [],
            "a.b": {},
            "t": '\x00\u2028\U0001f600\\/"',
            "n": [0, -0.5, 1e300, 2**63 - 1, True, None],
        }
        run_id = worker.start("a>b", odd, invocation_state={"odd": odd}, tags={"ü": "|"})
        claim = worker.claim(run_id, "a")
        store.do(SaveCheckpoint(claim.token, Saved(odd, 0, [odd, [], "", None])))
        worker.settle(claim.token, odd)

        snapshot, second = worker.read(run_id), worker.claim(run_id, "b")
        assert (claim.task, second.invocation_state, snapshot.tags) == (
            odd,
            {"odd": odd},
            {"ü": "|"},
        )
        assert (list(second.inputs), snapshot.messages) == (
            [("a", 1, odd)],
            {"a": [odd, [], "", None]},
        )

    def test_node_names_may_be_any_text(self, worker, store):
        """Names with dots, colons, bars, quotes and spaces are names like others."""
        names = ["a.1", "a:b|c", "q\"'\\", "ü ñ", "n:a", "#a"]
        run_id = worker.start(shape(" ".join(f"s>{name.replace(' ', '_')}" for name in names)))
        names = [name.replace(" ", "_") for name in names]
        worker.run(run_id, "s")
        for name in names:
            claim = worker.claim(run_id, name)
            store.do(SaveCheckpoint(claim.token, saved(1, name)))
            worker.settle(claim.token, name)

        snapshot = worker.read(run_id)
        assert snapshot.record.status is Status.COMPLETED
        assert snapshot.messages == {name: [name] for name in names}
        assert snapshot.outputs == {(name, 1): name for name in ["s", *names]}

    @pytest.mark.routed
    def test_a_completed_node_adds_to_its_session(self, worker, store):
        """The messages after the first few are appended, values are set and deleted; then both stay."""
        run_id = worker.start("a>b")
        first = SessionUpdate("ann", 1, {"n": 1, "gone": True, "": None})
        document = saved(1, "old", "one", {"two": 2})
        assert (
            worker.settle(worker.token(run_id, "a"), saved=document, session=first) == "settled"
        )
        token = worker.token(run_id, "b")
        store.do(SaveCheckpoint(token, saved(1, "three")))
        second = SessionUpdate("ann", 0, {"n": {"deep": [1]}}, ["gone", "never"])
        assert worker.settle(token, session=second) == "settled"

        session = store.session("ann")
        assert session == Session(["one", {"two": 2}, "three"], {"n": {"deep": [1]}, "": None})
        assert store.session("bob") == Session()

    @pytest.mark.routed
    @pytest.mark.scripts
    def test_only_the_settle_that_counts_adds_to_a_session(self, worker, store):
        """A stale visit adds nothing, nor does a settle that is refused; a repeated one adds once."""
        more = SessionUpdate("ann", 0, {"n": 1})
        run_id, stale = worker.begin("a b")
        worker.sweep(after=31)
        token = worker.token(run_id, "a", attempt=2)
        assert worker.settle(stale, saved=saved(1, "stale"), session=more) == "stale"
        reads = [("b", 1, "completed")]
        assert (
            worker.settle(token, saved=saved(1, "refused"), session=more, reads=reads)
            == "changed"
        )
        assert store.session("ann") == Session()

        settlement = Settlement(
            Status.COMPLETED, "", None, {"v": 1}, saved(1, "one"), session=more
        )
        assert [store.do(SettleVisit(token, settlement, "same")).word for _ in range(2)] == [
            "settled"
        ] * 2
        assert store.session("ann") == Session(["one"], {"n": 1})

    @pytest.mark.routed
    @pytest.mark.scripts
    def test_a_session_is_forgotten_whole(self, worker, store):
        """Forgetting deletes messages and state; a later write begins an empty session."""
        assert not store.forget_session("ann")
        run_id, token = worker.begin("a>b")
        worker.settle(token, saved=saved(1, "one"), session=SessionUpdate("ann", 0, {"n": 1}))

        assert store.forget_session("ann")
        assert store.session("ann") == Session()
        more = SessionUpdate("ann", 0)
        worker.settle(worker.token(run_id, "b"), saved=saved(1, "two"), session=more)
        assert store.session("ann") == Session(["two"])

    @pytest.mark.scripts
    def test_a_visit_left_behind_is_rung_for_at_once(self, worker, store):
        """A worker that leaves releases its visit: the same attempt is rung for, no lost lease is counted."""
        run_id, token = worker.begin("a>b")
        store.do(SaveCheckpoint(token, saved(1)))

        reply = store.do(LeaveVisit(token))

        assert (reply.word, rung(reply)) == ("left", ["a.1.1"])
        assert worker.read(run_id).nodes["a"].crashes == 0
        assert worker.settle(token) == "stale"
        assert worker.claim(run_id, "a").document == {"v": 1, "step": 1}
        assert worker.kinds(run_id)[-2:] == ["node.left a", "node.started a"]

    def test_a_node_that_is_released_again_and_again_fails(self, worker, store):
        """Ten releases in a row of code that stored nothing new fail the node with an error that says why."""
        run_id = worker.start("a")
        words = [
            store.do(LeaveVisit(worker.token(run_id, "a"), stalled=True)).word
            for _ in range(RELEASE_BUDGET)
        ]

        assert words == ["left"] * (RELEASE_BUDGET - 1) + ["dead"]
        assert worker.statuses(run_id) == "failed: a failed"
        assert (
            "RUNNER_SHUTDOWN_GRACE" in worker.read(run_id).entries["a", 1]["error"]["message"]
        )

    def test_a_release_of_a_node_that_stored_something_starts_over(self, worker, store):
        """Control: progress, and releases of nodes whose code did not run, use up nothing."""
        run_id = worker.start("a")
        for stalled in (
            [True] * (RELEASE_BUDGET - 1) + [False, *[True] * (RELEASE_BUDGET - 1)] + [None] * 9
        ):
            assert (
                store.do(LeaveVisit(worker.token(run_id, "a"), stalled=stalled)).word == "left"
            )

        assert worker.statuses(run_id) == "executing: a ready"

    # -- failures and cancels ------------------------------------------------------------------------

    def test_a_node_that_completed_in_one_run_fails_in_another(self, worker):
        """A settle is recorded as it is, whatever the same node did in an earlier run of its graph."""
        graph = shape("a b", policy="continue")
        first, second = worker.start(graph), worker.start(graph)
        for run_id in (first, second):
            worker.token(run_id, "b")

        assert worker.settle(worker.token(first, "a")) == "settled"
        assert worker.fail(worker.token(second, "a")) == "settled"

        assert worker.statuses(first) == "executing: a completed, b running"
        assert worker.statuses(second) == "executing: a failed, b running"

    def test_a_repeated_cancel_gets_its_first_reply(self, worker, store):
        """The same request again is "cancelled" whatever has happened since; another one is "already"."""
        run_id = worker.start("a")
        assert [store.do(CancelRun(run_id, "enough", "one")).word for _ in range(2)] == [
            "cancelled"
        ] * 2
        assert store.do(CancelRun(run_id, "enough", "two")).word == "already"
        assert store.do(CancelRun(run_id, "enough")).word == "already"
        ended = [event.kind for event in store.events(run_id)].count("run.ended")
        assert ended == 1

    @pytest.mark.full
    def test_many_waiting_nodes_are_cancelled_in_steps(self, worker, store):
        """A stop of a run with very many nodes is done by several sweeps, and then complete."""
        names = [f"n{number:04d}" for number in range(1201)]
        run_id = worker.start(shape(" ".join(names)))

        assert store.do(CancelRun(run_id, "enough")).word == "cancelled"
        first = worker.read(run_id)
        cancelled = sorted(
            name for name, record in first.nodes.items() if record.status is Status.CANCELLED
        )
        assert cancelled == names[:500]
        assert first.record.status is Status.EXECUTING
        worker.clock.advance(1)
        assert [store.sweep().count for _ in range(3)] == [1, 1, 0]
        final = worker.read(run_id).record
        assert (final.status, final.active) == (Status.CANCELLED, 0)

    @pytest.mark.full
    def test_the_caller_of_a_stop_may_do_all_its_steps(self, worker, store):
        """Without a sweep; and what it leaves when it dies between two steps is a sweep's a second later."""
        names = [f"n{number:04d}" for number in range(1701)]
        finished, left = (worker.start(shape(" ".join(names))) for _ in "ab")

        for run_id in (finished, left):
            assert store.do(CancelRun(run_id, "enough")).detail == "active"
        reply = store.do(DrainRun(left, ""))
        assert (reply.word, worker.read(left).record.active) == ("after", 701)
        reply = Reply("after")
        while reply.word == "after":
            reply = store.do(DrainRun(finished, reply.detail))
        final = worker.read(finished).record
        assert (final.status, final.active) == (Status.CANCELLED, 0)
        worker.clock.advance(1)
        while store.sweep().count != 0:
            pass
        assert worker.read(left).record.status is Status.CANCELLED

    @pytest.mark.full
    def test_a_stop_in_steps_reaches_items_of_maps(self, worker, store):
        """What waits behind very many items is cancelled, too, and what has ended stays as it is."""
        graph = shape("a m z", maps={"m": MapSpec("function", None, None)})
        run_id = worker.start(graph)
        store.do(ExpandMap(worker.token(run_id, "m"), list(range(700))))
        worker.sweep()
        worker.run(run_id, "a", "m[3]", "m[600]")
        worker.park(run_id, "z")

        store.do(CancelRun(run_id, "enough"))
        worker.clock.advance(1)
        assert [store.sweep().count for _ in range(2)] == [1, 0]
        final = worker.read(run_id)
        others = {
            name
            for name, record in final.nodes.items()
            if record.status is not Status.CANCELLED
        }
        assert (final.record.status, others) == (Status.CANCELLED, {"a", "m[3]", "m[600]"})

    @stories(ENDINGS)
    def test_a_run_ends_as_its_story_says(self, worker, graph, story):
        """What rings for the end of a run, and how often."""
        tell(Ending(worker, graph), story)

    # -- ended runs: the task that is called then, and removal ---------------------------------------

    def last_of(
        self, worker: ManualWorker, run_id: str, node: str, attempt: int = 1
    ) -> list[str]:
        """Fail the last node of a run, and name what that rings."""
        token = worker.token(run_id, node, 1, attempt)
        return rung(
            worker.store.do(
                SettleVisit(
                    token, Settlement(Status.FAILED, "", None, failure()), worker.nonce()
                )
            )
        )

    def record(self, worker: ManualWorker, run_id: str) -> RunRecord:
        """Read a run's record, which is the same in both ways of reading."""
        record = worker.store.peek(run_id)
        assert record is not None
        assert worker.read(run_id).record == record
        return record

    def test_a_run_that_ends_rings_for_its_end(self, worker, store):
        """The step that ends a run rings its first node's queue for the node @end, and counts the end."""
        run_id, token = worker.begin("a", on_end=TASK)
        before = self.record(worker, run_id)
        reply = store.do(SettleVisit(token, Settlement(Status.COMPLETED, "", 1, {"v": 1}), "n"))

        assert (before.on_end, before.ends, before.unreported) == (TASK, 0, 0)
        assert list(reply.doorbells) == [Doorbell(run_id, CALLBACK_NODE, 1, 1, "g", 5, "g")]
        after = self.record(worker, run_id)
        assert (after.status, after.on_end, after.ends, after.unreported) == (
            Status.COMPLETED,
            TASK,
            1,
            1,
        )

    @pytest.mark.routed
    def test_only_an_end_that_was_can_be_told(self, worker, store):
        """An end that has not come, or of a run that is not there, is stale."""
        run_id = worker.start("a", on_end=TASK)
        assert store.do(ReportEnd(run_id, 1)).word == "stale"
        self.last_of(worker, run_id, "a")

        assert [
            store.do(ReportEnd(*which)).word
            for which in ((run_id, 2), (run_id, 0), ("00no", 1))
        ] == ["stale"] * 3
        assert self.record(worker, run_id).unreported == 1

    def test_the_first_start_of_a_key_says_whom_to_tell(self, worker, store):
        """A start that meets an existing run changes nothing of it."""
        run_id = worker.start("a", on_end=TASK, idempotency_key="k")
        again = store.do(
            StartRun(Start("00two", "g", None, None, idempotency_key="k", on_end="other"))
        )

        assert (again.word, again.run_id) == ("exists", run_id)
        assert self.record(worker, run_id).on_end == TASK
