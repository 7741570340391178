"""The lists of the inbox, as addresses name them: a tab with filters; and the place of a question in one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlencode

from fastapi import Request

from runner.immutable import immutable
from runner.operations.decided import closed_questions
from runner.operations.questions import QuestionView, read_question, read_questions
from runner.records.codec import without_empty
from runner.records.listings import EVER, InterruptQuery, Page
from runner.records.run import outermost
from runner.server.access import Person
from runner.server.answers import seen_by
from runner.server.deciding import own_page
from runner.server.forms import midnight
from runner.server.problems import Problem
from runner.server.services import Services

ROWS = 50

TABS = {
    "mine": "For me",
    "voted": "Waiting for others",
    "requested": "Asked by me",
    "all": "All",
    "done": "Done",
}

FILTERS = (
    *("graph", "tool", "risk", "due", "age", "tag", "text", "name", "run"),
    *("by", "since", "until", "zone"),
)
"""The filters of lists; the last line's are for decided questions, `zone` for their dates."""

SPANS = {"hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}

LONGEST = 200
"""Characters of a filter."""


@immutable
class QuestionList:
    """A list of questions: a tab, filters, and the cursor of its page."""

    tab: str
    filters: Mapping[str, str]
    cursor: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> QuestionList:
        """Read the list that an address names.

        Raises:
            Problem: it names an unknown tab.
        """
        tab = values.get("tab", "")
        if tab and tab not in TABS:
            raise Problem(
                422, f"{tab!r:.40} is not a tab of the inbox; there are {', '.join(TABS)}."
            )
        filters = {name: values.get(name, "")[:LONGEST] for name in FILTERS}
        return cls(tab, filters, values.get("cursor", ""))

    def address_in(self, tab: str) -> str:
        """Return the query of an address for the same list in another tab."""
        return replace(self, tab=tab).address

    @property
    def view(self) -> str:
        """The query of an address for the tab and its filters."""
        return urlencode(without_empty({"tab": self.tab, **self.filters}))

    @property
    def address(self) -> str:
        """The query of an address for this page of the list."""
        return f"{self.view}&{urlencode({'cursor': self.cursor})}" if self.cursor else self.view

    def query(self, person: Person) -> InterruptQuery:
        """Return the query of the list.

        Raises:
            Problem: a filter has a value that it does not take.
        """
        now = round(time.time() * 1000)
        filters = self.filters
        for name in ("due", "age"):
            if filters[name] and filters[name] not in SPANS:
                raise Problem(
                    422, f"{name} takes {', '.join(SPANS)}, not {filters[name]!r:.40}."
                )
        reads = person.may("read")
        tag, _, value = filters["tag"].partition("=")
        since = filters["since"]
        until = filters["until"]
        zone = filters["zone"]
        return InterruptQuery(
            graph=filters["graph"] or None,
            run=filters["run"] or None,
            name=filters["name"] or None,
            until=now - SPANS[filters["age"]] if filters["age"] else None,
            # People can't search texts that they can't read.
            tool=filters["tool"] or None if reads else None,
            risk=filters["risk"] or None,
            due=now + SPANS[filters["due"]] if filters["due"] else None,
            tag=(tag, value) if tag else None,
            text=filters["text"] or None if reads else None,
            # With the filter of age, questions are listed by age instead of urgency.
            urgent=not filters["age"],
            closed=self.tab == "done",
            decided=(
                midnight(since, zone) if since else 0,
                midnight(until, zone, days=1) if until else EVER,
            ),
        )

    def load(
        self,
        services: Services,
        person: Person,
        limit: int = ROWS,
        query: InterruptQuery | None = None,
    ) -> Page[QuestionView]:
        """Read a page of the list, or of a part of it by another query."""
        store = services.store
        query = query or self.query(person)
        if self.tab == "done":
            by = self.filters["by"]
            if by == "me":
                by = person.principal.key
            closed = closed_questions(store, query, limit, self.cursor, by=by)
            return Page([read_question(store, item) for item in closed], closed.next)
        if self.tab in {"mine", "voted", "requested"}:
            return own_page(services, person, self.tab, query, limit, self.cursor)  # type: ignore[arg-type] # one of the three
        page = store.open_interrupts(query, limit, self.cursor)
        return Page(read_questions(store, page), page.next)


@immutable
class Place:
    """The place of a question in the list that its page was opened from.

    `next` is the question to go on with, on the page of the list that `onward` addresses; both questions are
    None if no other is left. `remaining` is the number of the others, in words.
    """

    address: str
    remaining: str
    next: QuestionView | None
    onward: str
    previous: QuestionView | None


def place_of(
    request: Request, services: Services, person: Person, question: QuestionView
) -> Place | None:
    """Return the place of a question in the list of the request's address; None if that names none."""
    questions = QuestionList.of(request.query_params)
    if not questions.tab:
        return None
    # Roles of one graph say nothing about the questions of another.
    graph = outermost(questions.filters["graph"])
    if request.state.person.graphs and graph != services.graph_of(question.id):
        return None
    page = questions.load(services, person)
    address = questions.address
    position = questions.query(person).position
    here = position(question)
    predecessors = [item for item in page if position(item) < here]
    successors = [item for item in page if position(item) > here]
    remaining = f"{len(predecessors) + len(successors)}{' or more' if page.next else ''}"
    if page.next and not successors:
        questions = replace(questions, cursor=page.next)
        successors = [*questions.load(services, person)]
    neighbours = [*successors, *predecessors]
    return Place(
        address,
        remaining,
        seen_by(person, neighbours[0]) if neighbours else None,
        questions.address,
        seen_by(person, predecessors[-1]) if predecessors else None,
    )


def list_suffix(request: Request) -> str:
    """Return the list in a request's address as the query of another address; "" without one."""
    questions = QuestionList.of(request.query_params)
    return f"?{questions.address}" if questions.tab else ""
