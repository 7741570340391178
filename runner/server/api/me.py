"""`/v1/me`: who calls, and what a page of theirs needs to send requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from runner.server.access import Known

router = APIRouter(prefix="/v1/me", tags=["operations"])


@router.get("", summary="Show who calls")
def show(request: Request, person: Known) -> dict[str, Any]:
    """Show who calls with their roles and groups, what these grant, and the token of their forms.

    A page of this origin sends the token in `X-Form-Token` with each request that changes something; it is
    good for twelve hours. Requests with an API key need none.
    """
    return {
        "principal": person.principal.key,
        "name": person.principal.name or person.principal.sub,
        "roles": sorted(person.roles),
        "groups": sorted(person.groups),
        "permissions": sorted(person.permissions),
        "form_token": request.app.state.form_tokens.issue(person),
    }
