"""The page of absences: people who are away, who votes for them, and a form for your own."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from runner.approvals.votes import absences, end_absence
from runner.operations.questions import away_view
from runner.records.codec import JSONObject
from runner.server.access import Known, Person, Signs
from runner.server.deciding import absence_message, be_away
from runner.server.forms import midnight
from runner.server.pages.passkeys import SignatureStep, passkeys, proof_of, signature_step
from runner.server.pages.rendering import back, page
from runner.server.parameters import FormText
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)


@router.get("/absences")
def show(request: Request, person: Known, services: Served) -> HTMLResponse:
    """Show the people who are away."""
    return _page(request, person, services)


@router.post("/absences/begin")
def begin(
    request: Request,
    person: Signs,
    services: Served,
    to: FormText = "",
    until: FormText = "",
    zone: FormText = "",
    since: FormText = "",
    proof: FormText = "",
    only: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Begin an absence until the end of a day in a time zone; a passkey signs it in a second step."""
    begins = (
        int(since) if since.isdecimal() and len(since) < 16 else time.time_ns() // 1_000_000
    )
    options: JSONObject = {
        "to": to,
        "since": begins,
        "until": midnight(until, zone, days=1),
        "only": only or (),
    }
    signature = proof_of({"proof": proof})
    if signature is None and (keys := passkeys(request, services, person)):
        body = absence_message(services, person, **options)
        form = {"to": to, "until": until, "zone": zone, "since": str(begins)}
        step = signature_step(keys, body, form, "/absences/begin", f"{to} votes for me")
        return _page(request, person, services, step, only or ())
    be_away(services, person, signature, **options)
    return back(request, "/absences")


@router.post("/absences/end")
def end(request: Request, person: Signs, services: Served) -> Response:
    """End the person's absence."""
    end_absence(services.client.engine, person.principal, person.principal.key)
    return back(request, "/absences")


def _page(
    request: Request,
    person: Person,
    services: Services,
    signature: SignatureStep | None = None,
    only: object = (),
) -> HTMLResponse:
    away = [away_view(absence) for absence in absences(services.client.engine)]
    return page(request, "absences.html", person, absences=away, signature=signature, only=only)
