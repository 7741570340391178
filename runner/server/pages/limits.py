"""The page of limits."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from runner.limits.control import words
from runner.server.access import Operates, Seen
from runner.server.api.documents import seen_by
from runner.server.pages.rendering import back, page
from runner.server.problems import Problem
from runner.server.services import Served

router = APIRouter(include_in_schema=False)

MOST_TURNS = 100
"""Keys that wait for their turn on the page, those that wait longest."""


@router.get("/limits")
def show(request: Request, person: Seen, services: Served) -> HTMLResponse:
    """Show the limits, what is set, who waits and who has the slots; and the keys that wait for turns."""
    limits = [seen_by(person, limit) for limit in services.limits.all()]
    turns = services.waiting_turns(MOST_TURNS)
    return page(request, "limits.html", person, limits=limits, words=words, turns=turns)


@router.post("/limits/{action}")
def change(
    request: Request,
    action: str,
    person: Operates,
    services: Served,
    name: Annotated[str, Form()],
    reason: Annotated[str, Form()] = "",
    minutes: Annotated[str, Form()] = "",
    concurrency: Annotated[str, Form()] = "",
    rate: Annotated[str, Form()] = "",
    per: Annotated[str, Form()] = "1",
) -> Response:
    """Set, pause, resume or reset a limit; a pause without minutes has no end.

    The name is percent-encoded: browsers change the line breaks of what they send.
    """
    name = unquote(name)
    limits, about = services.limits, {"reason": reason, "by": person.principal.key}
    try:
        seconds = float(minutes) * 60 if minutes else None
        slots, speed = int(concurrency) if concurrency else None, float(rate) if rate else None
        period = float(per)
    except ValueError as error:
        raise Problem(
            422, f"What a limit has, and its minutes, are numbers: {error}."
        ) from error
    match action:
        case "set":
            limits.set(name, concurrency=slots, rate=speed, per=period, **about)
        case "pause":
            limits.pause(name, seconds, **about)
        case "resume":
            limits.resume(name, **about)
        case "reset":
            limits.reset(name, **about)
        case _:
            raise Problem(404, f"There is no action {action!r:.40}.")
    return back(request, "/limits")
