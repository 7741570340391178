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
def list_letters(_: Reads, served: Served, limit: Limit = PAGE) -> dict[str, Any]:
    """List messages that could not be used and nodes that were given up, with the reasons."""
    return {"items": document(served.dead_letters.all(limit)), "next": None}


@router.get("/{letter_id}", summary="Show one dead letter")
def show(letter_id: str, _: Reads, served: Served) -> Any:
    """Show a dead letter with the message as it was received."""
    return document(served.dead_letters.get(letter_id))


@router.post("/{letter_id}:replay", summary="Send a message again, or retry a node")
def replay_letter(letter_id: str, person: Operates, served: Served) -> dict[str, str]:
    """Send a message to its stream again, or retry the run of a node; then the letter is gone."""
    letters, by = served.dead_letters, person.principal.key
    return {
        "id": letter_id,
        "sent": replay(served.client.engine, letters, letters.get(letter_id), set(), by),
    }


@router.delete("/{letter_id}", status_code=204, summary="Delete a dead letter")
def drop(letter_id: str, _: Operates, served: Served) -> None:
    """Delete a dead letter permanently."""
    served.dead_letters.get(letter_id)
    served.dead_letters.drop(letter_id)
