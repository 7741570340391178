"""`/v1/keys`: the API keys of this server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from runner.operations.api_keys import list_keys
from runner.records.json_form import document
from runner.server.access import Administers
from runner.server.api.documents import ONE_PAGE
from runner.server.auth import ApiKeys
from runner.server.services import Served

router = APIRouter(prefix="/v1", tags=["operations"])


@router.get("/keys", summary="List API keys", dependencies=[ONE_PAGE])
def list_api_keys(request: Request, _: Administers, services: Served) -> dict[str, Any]:
    """List the API keys by which programs may call, with when each was last used, to the minute."""
    auth = request.app.state.auth
    keys = list_keys(auth.path, services) if isinstance(auth, ApiKeys) else []
    return {"items": document(keys), "next": None}
