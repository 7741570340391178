"""Parts of the API's requests: bodies, the cursors and limits of lists, and times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from runner.records.listings import position_in
from runner.server.problems import Problem

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


def _whole_ms_or_text(at: object) -> object:
    """Refuse numbers that pydantic would read as seconds."""
    if isinstance(at, float) or (isinstance(at, str) and "T" not in at.upper()):
        raise ValueError("write whole milliseconds, or a time such as 2026-12-01T09:00:00Z")
    return at


Milliseconds = Annotated[
    int | Time,
    BeforeValidator(_whole_ms_or_text),
    AfterValidator(lambda at: at if isinstance(at, int) else round(at.timestamp() * 1000)),
    Field(description="A time in ms since 1970, or as RFC 3339."),
]

Moment = Annotated[
    Time | None, Query(description="A time as RFC 3339, in UTC if it has no zone.")
]
