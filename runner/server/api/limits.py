"""`/v1/limits`: how many nodes may run at the same time, changed and paused while workers run."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.convertors import PathConvertor, register_url_convertor

from runner.server.access import Operates, Seen
from runner.server.api.documents import (
    MOST,
    ONE_PAGE,
    RequestBody,
    page_document,
    seen_document,
)
from runner.server.services import Served


class KeyConvertor(PathConvertor):
    """The key of a limit in a path: any text, also with line breaks, which `path` does not match."""

    regex = r"(?s:.*)"


register_url_convertor("key", KeyConvertor())

router = APIRouter(prefix="/v1/limits", tags=["limits"])


class LimitChange(RequestBody):
    """A reason, which is shown; the audit keeps its hash."""

    reason: str = ""


class NewNumbers(LimitChange):
    """The slots of a limit, or its rate per so many seconds; null leaves what there is."""

    concurrency: int | None = None
    rate: float | None = None
    per: float = 1.0


class Pause(LimitChange):
    """A pause of so many seconds; null says that it has no end."""

    seconds: float | None = Field(...)


@router.get("", summary="List limits", dependencies=[ONE_PAGE])
def list_limits(person: Seen, services: Served) -> dict[str, Any]:
    """List the limits that graphs declare, with what operators have set and the keys that wait."""
    return page_document(services.limits.all(), person)


@router.get("/turns", summary="List keys that wait for turns", dependencies=[ONE_PAGE])
def list_turns(person: Seen, services: Served) -> dict[str, Any]:
    """List the keys of fair graphs whose nodes wait for their turn, those that wait longest first."""
    return page_document(services.waiting_turns(MOST), person)


@router.post("/{name:key}:set", summary="Change a limit")
def set_limit(name: str, body: NewNumbers, person: Operates, services: Served) -> Any:
    """Change the numbers of a limit for all workers at once, until it is reset."""
    numbers = body.model_dump()
    return seen_document(services.limits.set(name, **numbers, by=person.principal.key), person)


@router.post("/{name:key}:pause", summary="Pause a limit")
def pause(name: str, body: Pause, person: Operates, services: Served) -> Any:
    """Start no node under a limit, or under one key of it; those that run go on."""
    by = person.principal.key
    return seen_document(services.limits.pause(name, body.seconds, body.reason, by), person)


@router.post("/{name:key}:resume", summary="Resume a limit")
def resume(name: str, body: LimitChange, person: Operates, services: Served) -> Any:
    """End the pause of a limit with those of its keys, or of one key; what has waited starts."""
    return seen_document(
        services.limits.resume(name, body.reason, person.principal.key), person
    )


@router.post("/{name:key}:reset", summary="Reset a limit")
def reset(name: str, body: LimitChange, person: Operates, services: Served) -> Any:
    """Return to what the code says, and end all pauses of a limit."""
    return seen_document(services.limits.reset(name, body.reason, person.principal.key), person)
