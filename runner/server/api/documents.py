"""The JSON of the API: views as the commands write them, lists with cursors, and what viewers may see."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import AfterValidator

from runner.operations.exports import Question
from runner.operations.questions import QuestionView
from runner.operations.views import NodeView, RunView
from runner.records.dead_letters import DeadLetter
from runner.records.json_form import document
from runner.records.listings import Page, place_of
from runner.records.run import EventKind
from runner.schedules.schedule import Schedule
from runner.server.access import Person
from runner.server.problems import Problem
from runner.store.interface import Event

PAGE = 50
"""Items of a page unless the caller names a number."""

MOST = 500


def _checked_cursor(cursor: str | None) -> str | None:
    if cursor:
        try:
            for position in cursor.split("."):
                if position != "~":
                    place_of(position)
        except Exception as error:
            raise Problem(400, "This is no cursor of a listing. Begin without one.") from error
    return cursor or None


Limit = Annotated[int, Query(ge=1, le=MOST, description="Items of the page at most.")]
Cursor = Annotated[
    str | None, Query(description="`next` of the page before."), AfterValidator(_checked_cursor)
]


async def _no_cursor(cursor: Annotated[str | None, Query(include_in_schema=False)] = None) -> None:
    if cursor:
        raise Problem(400, "This list has one page, so there is no cursor for it.")


ONE_PAGE = Depends(_no_cursor)
"""Of a list that is whole: `next` is always null."""


def utc(moment: datetime) -> datetime:
    """Return a time with its zone: without one it is of UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Time = Annotated[datetime, AfterValidator(utc)]

Moment = Annotated[
    Time | None, Query(description="A time as RFC 3339; without a zone it is of UTC.")
]


def page_document(page: Page[Any], view: Any = document) -> dict[str, Any]:
    """Return a page of a listing as JSON."""
    return {"items": [view(item) for item in page], "next": page.next}


def run_document(run: RunView, person: Person | None) -> Any:
    """Return a run as JSON; without payloads for who may not read them."""
    return document(run if _reads(person) else without_payloads(run))


def question_document(question: Question, person: Person | None) -> Any:
    """Return a question as JSON; without payloads for who may not read them."""
    return document(question if _reads(person) else bare_question(question))


def schedule_document(schedule: Schedule, person: Person | None) -> Any:
    """Return a schedule as JSON; without its task and error for who may not read them."""
    return document(schedule if _reads(person) else replace(schedule, task=None, error=""))


def bare_letter(letter: DeadLetter) -> DeadLetter:
    """Return a dead letter without what users and agents have written: the message, and why it failed."""
    return replace(letter, reason="", body=b"")


def letter_document(letter: DeadLetter, person: Person | None) -> Any:
    """Return a dead letter as JSON; without its reason and message for who may not read them."""
    return document(letter if _reads(person) else bare_letter(letter))


def event_document(event: Event, person: Person | None) -> Any:
    """Return an event as JSON; without its data for who may not read them."""
    return document(event if _reads(person) else bare_event(event))


def bare_event(event: Event) -> Event:
    """Return an event without what users and agents have written: its data, and why a run was stopped."""
    return replace(
        event, data=None, detail="" if event.kind == EventKind.RUN_STOPPING else event.detail
    )


def _reads(person: Person | None) -> bool:
    return person is not None and person.may("read")


def without_payloads(run: RunView) -> RunView:
    """Return a run without what users and agents have written."""
    return replace(
        run,
        task=None,
        output=None,
        reason="",
        nodes=tuple(map(_bare_node, run.nodes)),
        interrupts=tuple(map(bare_question, run.interrupts)),
        decided=tuple(
            replace(decision, title=decision.name, comments={}) for decision in run.decided
        ),
    )


def _bare_node(node: NodeView) -> NodeView:
    error = node.error and replace(node.error, message="", traceback="", summary=node.error.type)
    return replace(
        node,
        output=None,
        error=error,
        progress="",
        run=node.run and without_payloads(node.run),
        items=tuple(map(_bare_node, node.items)),
    )


def bare_question(question: Question) -> Question:
    """Return a question without what users and agents have written."""
    bare: dict[str, Any] = {
        "title": question.name,
        "reason": None,
        "response": None,
        "on_expire": None,
        "response_schema": None,
    }
    bare["action"] = None
    bare["withdrawal"] = question.withdrawal and {**question.withdrawal, "reason": ""}
    if isinstance(question, QuestionView):
        bare |= {"votes": (), "variants": (), "comments": (), "digests": {}}
    return replace(question, **bare)
