"""The contract of listings: what fits, in which order, and page by page."""

from __future__ import annotations

import pytest

from runner.errors import UsageError
from runner.listings import InterruptQuery, RunQuery
from runner.ports import Store
from runner.run import Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, shape

INNER = shape("x", name="g/a")


class ListingContract:
    """Listings of runs and of open questions."""

    def _runs(self, store: Store, query: RunQuery, limit: int = 100) -> list[list[str]]:
        """Read a listing of runs to its end, page by page."""
        pages, cursor = [], ""
        while True:
            page = store.runs(query, limit, cursor)
            pages.append([run.run_id for run in page])
            if page.next is None:
                return pages
            cursor = page.next

    def test_runs_are_found_by_what_is_known_of_them(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """Status, graph, tags and time of start each cut the listing, and all of them together."""
        one, other = shape("a", name="one"), shape("a", name="other")
        first = worker.start(one, tags={"team": "red", "n": "1"})
        clock.advance(1)
        began = clock.now
        second = worker.start(other, tags={"team": "red"})
        clock.advance(1)
        third = worker.start(one, tags={"team": "blue", "n": "1"})
        worker.run(third, "a")

        for query, found in [
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
        ]:
            assert self._runs(store, query) == [found], query

    def test_a_listing_of_runs_goes_on_where_it_was(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """Runs that begin, and runs that leave the listing, put nothing twice and leave nothing out."""
        graph = shape("a")
        # Several of one millisecond: the time alone would not say where a page ended.
        runs = [worker.start(graph) for _ in range(5)]
        clock.advance(1)
        runs += [worker.start(graph) for _ in range(4)]
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

    def test_open_questions_are_found_by_what_is_known_of_them(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """Graph, run, name, person and age each cut the listing; what is inside a graph or run is in it."""
        graph = shape("a", name="g")
        run = worker.start(graph)
        (mine,) = worker.park(run, "a", "ok?", assignees=["ann", "ben"])
        clock.advance(1)
        parent = worker.start(graph)
        child = worker.start(INNER, parent=worker.claim(parent, "a").token)
        (inner,) = worker.park(child, "x", "sum?")
        clock.advance(1)
        other = worker.start(shape("a", name="other"))
        (last,) = worker.park(other, "a", "ok?", assignees=["ben"])

        for query, found in [
            (InterruptQuery(), [mine, inner, last]),
            (InterruptQuery(graph="g"), [mine, inner]),
            (InterruptQuery(graph="g/a"), [inner]),
            (InterruptQuery(run=parent), [inner]),
            (InterruptQuery(run=child), [inner]),
            (InterruptQuery(run="00none"), []),
            (InterruptQuery(name="ok?"), [mine, last]),
            (InterruptQuery(assignee="ben"), [mine, last]),
            (InterruptQuery(assignee="ann", graph="other"), []),
            (InterruptQuery(until=clock.now - 1000), [mine]),
        ]:
            page = store.open_interrupts(query)
            assert ([each.id for each in page], page.next) == ([each.id for each in found], None), query

    def test_a_closed_question_leaves_every_listing(self, worker: Worker, store: Store) -> None:
        """Answered or withdrawn, a question is in no listing any more, and the pages after it stay whole."""
        graph = shape("a")
        asked = [worker.park(worker.start(graph), "a", assignees=["ann"])[0] for _ in range(4)]
        query = InterruptQuery(graph="g", assignee="ann")
        page = store.open_interrupts(query, 2)
        worker.answer(page[0], page[1], responder="ann")
        store.cancel(asked[2].run_id, "enough")

        assert page.next is not None
        rest = store.open_interrupts(query, 2, page.next)
        assert [each.id for each in [*page, *rest]] == [asked[0].id, asked[1].id, asked[3].id]
        assert [each.id for each in store.open_interrupts(query)] == [asked[3].id]

    def test_a_cursor_that_is_none_is_refused(self, store: Store) -> None:
        """Text that no page gave is an error, and not the listing's beginning."""
        for cursor in ("x", "!", "YWI", "a" * 50):
            with pytest.raises(UsageError, match="no cursor"):
                store.runs(RunQuery(), 10, cursor)
