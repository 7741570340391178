"""The JSON of the API: views as the commands write them, lists with cursors, and records for viewers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query
from pydantic import AfterValidator, BaseModel

from runner.approvals.granting import GrantView
from runner.limits.control import LimitView
from runner.operations.exports import Question
from runner.operations.questions import QuestionView
from runner.operations.views import NodeView, RunView
from runner.records.dead_letters import DeadLetter
from runner.records.json_form import document
from runner.records.listings import position_in
from runner.records.run import EventKind
from runner.schedules.schedule import Schedule
from runner.server.access import Person
from runner.server.problems import Problem
from runner.store.interface import Event

Record = TypeVar("Record")

PAGE = 50
"""Default number of items of a page."""

MOST = 500


class RequestBody(BaseModel):
    """The body of a request, without unknown fields."""

    model_config = {"extra": "forbid"}


def checked_cursor(cursor: str | None) -> str | None:
    """Return a cursor, None for the first page, or raise `Problem` if it isn't one."""
    if cursor:
        try:
            for position in cursor.split("."):
                if position != "~":
                    position_in(position)
        except Exception as error:
            raise Problem(
                400, "This is not a cursor of a listing. Begin without one."
            ) from error
    return cursor or None


Limit = Annotated[int, Query(ge=1, le=MOST, description="Maximum number of items.")]
Cursor = Annotated[
    str | None,
    Query(description="`next` of the previous page."),
    AfterValidator(checked_cursor),
]


async def _no_cursor(
    cursor: Annotated[str | None, Query(include_in_schema=False)] = None,
) -> None:
    if cursor:
        raise Problem(400, "This list has one page, so there is no cursor for it.")


ONE_PAGE = Depends(_no_cursor)
"""A dependency for lists with one page, whose `next` is always null."""


def utc(moment: datetime) -> datetime:
    """Return a time with its zone, which is UTC if it has none."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Time = Annotated[datetime, AfterValidator(utc)]

Moment = Annotated[
    Time | None, Query(description="A time as RFC 3339, in UTC if it has no zone.")
]


def bare(record: Any) -> Any:
    """Return a record without texts of users and agents; records of other types have none."""
    match record:
        case RunView():
            return replace(
                record,
                task=None,
                output=None,
                reason="",
                nodes=tuple(map(bare, record.nodes)),
                interrupts=tuple(map(bare, record.interrupts)),
                decided=tuple(
                    replace(decision, title=decision.name, comments={})
                    for decision in record.decided
                ),
            )
        case NodeView(error=error):
            return replace(
                record,
                output=None,
                error=error
                and replace(error, message="", traceback="", summary=error.type, location=""),
                progress="",
                run=bare(record.run),
                items=tuple(map(bare, record.items)),
            )
        case Question():
            return _bare_question(record)
        case Schedule():
            return replace(record, task=None, error="")
        case LimitView(setting=setting):
            waiting = [replace(each, key=_bare_key(each.key)) for each in record.waiting]
            if setting:
                pauses = [
                    replace(each, key=_bare_key(each.key), reason="") for each in setting.pauses
                ]
                setting = replace(setting, reason="", pauses=tuple(pauses))
            return replace(record, setting=setting, waiting=waiting)
        case GrantView():
            return replace(
                record,
                bounds=None,
                sums={},
                summed={},
                votes=[replace(vote, comment="") for vote in record.votes],
                revoked=record.revoked and {**record.revoked, "reason": ""},
            )
        case DeadLetter():
            return replace(record, reason="", body=b"")
        case Event(kind=kind, detail=detail):
            return replace(
                record, data=None, detail="" if kind == EventKind.RUN_STOPPING else detail
            )
    return record


def _bare_key(key: str) -> str:
    """Return the key of a limit without an input's value; the rest names no limit and no key."""
    name, by_input, _ = key.partition(":input:")
    return name + by_input[:-1]


def _bare_question(question: Question) -> Question:
    fields: dict[str, Any] = dict.fromkeys(
        ("reason", "response", "on_expire", "response_schema", "action")
    )
    fields |= {
        "title": question.name,
        "withdrawal": question.withdrawal and {**question.withdrawal, "reason": ""},
    }
    if isinstance(question, QuestionView):
        fields |= {"votes": (), "variants": (), "comments": (), "digests": {}}
    return replace(question, **fields)


def seen_by(person: Person, record: Record) -> Record:
    """Return a record as a person may see it: bare if they may not read payloads."""
    return record if person.may("read") else bare(record)


def seen_document(record: Any, person: Person) -> Any:
    """Return a record as JSON, as a person may see it."""
    return document(seen_by(person, record))


def page_document(
    items: Iterable[Any], person: Person, cursor: str | None = None
) -> dict[str, Any]:
    """Return a page of a listing as a person may see it; `cursor` leads to the next page."""
    return {"items": [seen_document(item, person) for item in items], "next": cursor}
