"""`/v1/dead`: dead letters, listed, sent again and deleted."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from runner.operations.dead import replay
from runner.server.access import Operates, Seen
from runner.server.api.documents import ONE_PAGE, PAGE, Limit, page_document, seen_document
from runner.server.services import Served

router = APIRouter(prefix="/v1/dead", tags=["dead letters"])


@router.get("", summary="List dead letters, newest first", dependencies=[ONE_PAGE])
def list_letters(person: Seen, services: Served, limit: Limit = PAGE) -> dict[str, Any]:
    """List messages that could not be used and nodes that were given up; readers see why and the message."""
    return page_document(services.dead_letters.all(limit), person)


@router.get("/{letter_id}", summary="Show one dead letter")
def show(letter_id: str, person: Seen, services: Served) -> Any:
    """Show a dead letter, to readers with the message as it was received."""
    return seen_document(services.dead_letters.get(letter_id), person)


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
