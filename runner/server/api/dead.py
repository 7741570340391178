"""`/v1/dead`: dead letters, listed, sent again and deleted."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from runner.operations.dead import replay
from runner.records.json_form import document
from runner.server.access import Operates, Reads
from runner.server.api.documents import ONE_PAGE, PAGE, Limit
from runner.server.services import Served

router = APIRouter(prefix="/v1/dead", tags=["dead letters"])


@router.get("", summary="List dead letters, newest first", dependencies=[ONE_PAGE])
def list_letters(_: Reads, services: Served, limit: Limit = PAGE) -> dict[str, Any]:
    """List messages that could not be used and nodes that were given up, with the reasons."""
    return {"items": document(services.dead_letters.all(limit)), "next": None}


@router.get("/{letter_id}", summary="Show one dead letter")
def show(letter_id: str, _: Reads, services: Served) -> Any:
    """Show a dead letter with the message as it was received."""
    return document(services.dead_letters.get(letter_id))


@router.post("/{letter_id}:replay", summary="Send a message again, or retry a node")
def replay_letter(letter_id: str, person: Operates, services: Served) -> dict[str, str]:
    """Send a message to its stream again, or retry the run of a node; then the letter is gone."""
    letters, by = services.dead_letters, person.principal.key
    return {
        "id": letter_id,
        "sent": replay(services.client.engine, letters, letters.get(letter_id), set(), by),
    }


@router.delete("/{letter_id}", status_code=204, summary="Delete a dead letter")
def drop(letter_id: str, _: Operates, services: Served) -> None:
    """Delete a dead letter permanently."""
    services.dead_letters.get(letter_id)
    services.dead_letters.drop(letter_id)
