"""The contract of listings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.approvals.digests import Action
from runner.approvals.rules import Rule
from runner.errors import UsageError
from runner.records.listings import InterruptQuery, RunQuery, RunSummary
from runner.records.run import Status
from runner.store.interface import Settlement, Store
from runner.store.requests import CancelRun, ClaimVisit, SettleVisit
from tests.contract.store.manual_worker import shape
from tests.contract.store.voting import TWO, voting

INNER = shape("x", name="g/a")


class ListingContract:
    """How runs and questions are found."""

    def _runs(self, store: Store, query: RunQuery, limit: int = 100) -> list[list[str]]:
        """Read a listing of runs to its end, page by page."""
        pages, cursor = [], ""
        while True:
            page = store.runs(query, limit, cursor)
            pages.append([run.run_id for run in page])
            if page.next is None:
                return pages
            cursor = page.next

    @pytest.mark.routed
    @pytest.mark.scripts
    def test_runs_are_found_by_what_is_known_of_them(self, worker, store):
        """Status, graph, tags and time of start each cut the listing, and all of them together."""
        one, other = shape("a", name="one"), shape("a", name="other")
        first = worker.start(one, tags={"team": "red", "n": "1"})
        worker.clock.advance(1)
        began = worker.clock.now
        second = worker.start(other, tags={"team": "red"})
        worker.clock.advance(1)
        asked_by = {"principal": "human:|cora"}
        third = worker.start(one, tags={"team": "blue", "n": "1"}, requester=asked_by)
        worker.clock.advance(5)
        worker.run(third, "a")

        for query, run_id in [
            (RunQuery(graph="one"), [third, first]),
            (RunQuery(tags={"team": "red"}), [second, first]),
            (RunQuery(tags={"team": "red", "n": "1"}), [first]),
            (RunQuery(Status.COMPLETED, "one", {"n": "1"}), [third]),
            (RunQuery(Status.EXECUTING, "one"), [first]),
            (RunQuery(since=began), [third, second]),
            (RunQuery(until=began), [first]),
            (RunQuery(graph="one", since=began + 1), [third]),
            (RunQuery(graph="none"), []),
            (RunQuery(tags={"team": "re"}), []),
            (RunQuery(text="RE"), [second, first]),
            (RunQuery(text="team"), []),
        ]:
            assert self._runs(store, query) == [run_id], query
        (summary,) = store.runs(RunQuery(until=began))
        tags = {"team": "red", "n": "1"}
        assert summary == RunSummary(
            first, "one", Status.EXECUTING, began - 1000, tags, one.fingerprint
        )
        (ended,) = store.runs(RunQuery(Status.COMPLETED))
        assert (ended.ended_at - ended.created_at, ended.requester) == (5000, "human:|cora")

    @pytest.mark.routed
    def test_a_listing_of_runs_goes_on_where_it_was(self, worker, store):
        """Runs that begin, and runs that leave the listing, put nothing twice and leave nothing out."""
        graph = shape("a")
        # Several of one millisecond: the time alone would not say where a page ended.
        runs = sorted(worker.start(graph) for _ in range(5))
        worker.clock.advance(1)
        runs += sorted(worker.start(graph) for _ in range(4))
        runs.reverse()
        query = RunQuery(Status.EXECUTING)
        assert self._runs(store, query, 3) == [runs[:3], runs[3:6], runs[6:]]
        assert self._runs(store, query, 9) == [runs]

        page = store.runs(query, 6)
        worker.start(graph)
        worker.run(runs[5], "a")
        worker.run(runs[7], "a")
        assert page.next is not None
        rest = store.runs(query, 6, page.next)

        assert [run.run_id for run in page] == runs[:6]
        assert ([run.run_id for run in rest], rest.next) == ([runs[6], runs[8]], None)

    @pytest.mark.routed
    @pytest.mark.scripts
    def test_open_questions_are_found_by_what_is_known_of_them(self, worker):
        """Graph, run, name, person and age each cut the listing; what is inside a graph or run is in it."""
        graph = shape("a", name="g")
        run = worker.start(graph)
        (mine,) = worker.park(run, "a", "ok?", assignees=["ann", "ben"])
        worker.clock.advance(1)
        parent = worker.start(graph)
        child = worker.start(INNER, parent=worker.token(parent, "a"))
        (inner,) = worker.park(child, "x", "sum?")
        worker.clock.advance(1)
        other = worker.start(shape("a", name="other"))
        (last,) = worker.park(other, "a", "ok?", assignees=["ben"])

        for query, questions in [
            (InterruptQuery(), [mine, inner, last]),
            (InterruptQuery(graph="g"), [mine, inner]),
            (InterruptQuery(graph="g/a"), [inner]),
            (InterruptQuery(run=parent), [inner]),
            (InterruptQuery(run=child), [inner]),
            (InterruptQuery(run="00none"), []),
            (InterruptQuery(name="ok?"), [mine, last]),
            (InterruptQuery(assignee="ben"), [mine, last]),
            (InterruptQuery(assignee="ann", graph="other"), []),
            (InterruptQuery(until=worker.clock.now - 1000), [mine]),
        ]:
            page = worker.store.open_interrupts(query)
            assert [question.id for question in page] == [
                question.id for question in questions
            ], query
            assert page.next is None

    @pytest.mark.full
    @pytest.mark.routed
    def test_questions_are_listed_by_what_their_rule_and_their_call_are(self, worker, store):
        """By group, tool, risk, tag, text and due time; what expires first comes first, then the oldest."""
        graph, first = shape("a"), worker.clock.now
        rule = Rule(eligible=["ann", "group:finance"], escalate=[(60, ["role:boss"])])
        options: list[dict[str, Any]] = [
            {},
            {
                "rule": rule,
                "action": Action("t", "function", "pay", {"to": "Acme"}),
                "risk": "high",
            },
            {"expires_in": 90.0},
            {"expires_in": 60.0, "assignees": ["ann"]},
        ]
        asked = []
        for number, more in enumerate(options):
            run_id = worker.start(graph, tags={"number": str(number)})
            asked += worker.park(run_id, "a", **more)
            worker.clock.advance(1)
        plain, ruled, late, soon = (question.id for question in asked)

        def listed(**query: Any) -> list[str]:
            every = InterruptQuery(urgent=True, **query)
            pages, cursor = list[str](), ""
            while (
                True
            ):  # a page of one question after the other, so that cursors continue in each part
                page = store.open_interrupts(every, 1, cursor)
                pages += [question.id for question in page]
                if page.next is None:
                    whole = [question.id for question in store.open_interrupts(every)]
                    assert pages == whole
                    assert store.count_questions([every])[0] >= len(whole)
                    return whole
                cursor = page.next

        assert listed() == [soon, late, plain, ruled]
        assert listed(assignee="ann") == [soon, ruled]
        assert listed(selectors=["group:finance", "role:boss"]) == [ruled]
        assert listed(selectors=["group:other"]) == listed(selectors=[]) == []
        assert listed(tool="pay") == listed(risk="high") == listed(text="ACME") == [ruled]
        assert listed(due=first + 80_000) == [soon]
        assert listed(until=first + 2_000) == [plain, ruled]
        assert listed(tag=("number", "2")) == [late]
        assert listed(run=soon.partition(".")[0]) == [soon]
        store.do(CancelRun(soon.partition(".")[0], "enough"))
        store.do(CancelRun(ruled.partition(".")[0], "enough"))
        assert listed() == [late, plain]
        assert (
            listed(tool="pay")
            == listed(assignee="ann")
            == listed(selectors=["role:boss"])
            == []
        )
        queries = [InterruptQuery(tool="pay"), InterruptQuery(assignee="ann"), InterruptQuery()]
        assert store.count_questions(queries) == [0, 0, 2]

    @pytest.mark.full
    @pytest.mark.routed
    def test_closed_questions_are_listed_newest_first(self, worker, store):
        """However one was closed, it is on one page of a listing that no open question is in."""
        answered, withdrawn, expired, still_open, again = (
            worker.park(worker.start("a", tags={"n": str(n)}), "a", **options)[0]
            for n, options in enumerate([{}, {}, {"expires_in": 5.0}, {}, {}])
        )
        child = worker.start(INNER, parent=worker.token(worker.start("a"), "a"))
        (inner,) = worker.park(child, "x")
        for step in (
            lambda: worker.answer(again, responder="ann"),
            lambda: worker.answer(answered, responder="ann"),
            lambda: store.do(CancelRun(withdrawn.run_id, "enough")),
            lambda: worker.answer(inner, responder="ann"),
            lambda: worker.clock.advance(10),
        ):
            step()
            worker.clock.advance(1)
        worker.sweep()

        def listed(limit: int = 1, **query: Any) -> list[str]:
            names, cursor = list[str](), ""
            while True:
                page = store.open_interrupts(
                    InterruptQuery(closed=True, **query), limit, cursor
                )
                names += [question.id for question in page]
                if page.next is None:
                    return names
                cursor = page.next

        closed = [expired.id, inner.id, withdrawn.id, answered.id, again.id]
        assert listed() == listed(2) == listed(graph="g", urgent=True) == closed
        assert listed(tag=("n", "1")) == listed(run=withdrawn.run_id) == [withdrawn.id]
        assert listed(graph="other") == listed(until=0) == []
        assert [question.id for question in store.open_interrupts()] == [still_open.id]
        assert store.count_questions([InterruptQuery()]) == [1]

    @pytest.mark.routed
    def test_a_cursor_that_is_none_is_refused(self, store):
        """Text that no page returned is an error, and not the listing's beginning."""
        for cursor in ("x", "!", "YWI", "a" * 50):
            with pytest.raises(UsageError, match="no cursor"):
                store.runs(RunQuery(), 10, cursor)

    def test_a_delegated_question_is_listed_for_its_new_voter(self, worker, store):
        """Until it is decided, it is among the questions of the person who may vote now."""
        rule = replace(TWO, eligible=["ana", "ben", "group:finance"], delegate="anyone")
        people, query = voting(worker, rule), InterruptQuery(assignee="eve")
        assert people.act("ana", "delegate", to="eve", others=()) == "accepted"
        assert [question.id for question in store.open_interrupts(query)] == [
            people.question.id
        ]
        people.vote("eve", groups=())
        people.vote("ben")
        assert not store.open_interrupts(query)

    @pytest.mark.scripts
    def test_events_name_the_worker_of_a_claim(self, worker, store):
        """Its start and its loss, also of a node that a settle claims; control: a claim without a name."""
        run_id = worker.start("a>b")

        def named() -> list[tuple[str, str, Any]]:
            events = [event for event in store.events(run_id) if event.kind.startswith("node.")]
            return [
                (f"{event.kind} {event.node}", event.detail, event.data) for event in events
            ]

        store.do(ClaimVisit(run_id, "a", 1, 1, "n1:one@host"))
        worker.sweep(after=worker.store.lease_ms / 1000)
        token = store.do(ClaimVisit(run_id, "a", 1, 2, "n2")).token
        followed = Settlement(Status.COMPLETED, "1", None, {"v": 1}, may_continue=True)
        store.do(SettleVisit(token, followed, "n3:two@host"))

        assert named() == [
            ("node.started a", "1", {"worker": "one@host"}),
            ("node.lost a", "1", {"worker": "one@host"}),
            ("node.started a", "2", None),
            ("node.completed a", "", None),
            ("node.started b", "1", {"worker": "two@host"}),
        ]
        assert worker.read(run_id).nodes["b"].worker == "two@host"
