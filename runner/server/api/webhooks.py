"""`/v1/webhooks`: endpoints that are sent notices, and what became of each."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from runner.records.json_form import document
from runner.server.access import Administers
from runner.server.api.documents import PAGE, Cursor, Limit, RequestBody, page_document
from runner.server.services import Served
from runner.webhooks.webhook import Webhook

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


class NewWebhook(RequestBody):
    """Body of POST /v1/webhooks. Empty filters select every notice."""

    url: str
    id: str = Field("", description="A name of your choice; without it one is made.")
    events: list[str] = Field(
        default_factory=list, description="Kinds of notices, such as interrupt.asked."
    )
    graph: str = Field("", description="Of runs of this graph only, the outermost one.")
    tags: dict[str, str] = Field(
        default_factory=dict, description="Of runs that have these tags."
    )
    signature: Literal["v1", "v1a"] = Field(
        "v1", description="By a shared secret, or by an Ed25519 key."
    )


@router.get("", summary="List webhooks")
def list_webhooks(person: Administers, services: Served) -> dict[str, Any]:
    """List the webhooks by their ids."""
    return page_document(services.webhooks.list(), person)


@router.get("/{webhook_id}", summary="Show a webhook")
def show(webhook_id: str, _: Administers, services: Served) -> Any:
    """Show a webhook, without its secret."""
    return document(services.webhooks.show(webhook_id))


@router.post("", status_code=201, summary="Make a webhook")
def add(body: NewWebhook, _: Administers, services: Served) -> Any:
    """Make a webhook, which is sent the notices from now on. The answer has its secret, this once."""
    return document(services.webhooks.add(Webhook(**body.model_dump())))


@router.delete("/{webhook_id}", status_code=204, summary="Remove a webhook")
def remove(webhook_id: str, _: Administers, services: Served) -> None:
    """Remove a webhook and its deliveries."""
    services.webhooks.remove(webhook_id)


@router.post("/{webhook_id}:pause", summary="Pause a webhook")
def pause(webhook_id: str, _: Administers, services: Served) -> Any:
    """Send nothing until it is resumed; the notices of that time are left out."""
    return document(services.webhooks.pause(webhook_id))


@router.post("/{webhook_id}:resume", summary="Resume a webhook")
def resume(webhook_id: str, _: Administers, services: Served) -> Any:
    """Send what waits, and the notices from now on."""
    return document(services.webhooks.resume(webhook_id))


@router.post("/{webhook_id}:rotate", summary="Rotate the secret of a webhook")
def rotate(webhook_id: str, _: Administers, services: Served) -> Any:
    """Make a new secret, which the answer has this once; for a day the old one signs beside it."""
    return document(services.webhooks.rotate(webhook_id))


@router.get("/{webhook_id}/deliveries", summary="List the deliveries of a webhook")
def deliveries(
    webhook_id: str,
    person: Administers,
    services: Served,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List the deliveries of the last 7 days, the newest first."""
    page = services.webhooks.deliveries(webhook_id, limit, cursor)
    return page_document(page.items, person, page.next)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}:redeliver", summary="Send a delivery again"
)
def redeliver(webhook_id: str, delivery_id: str, _: Administers, services: Served) -> Any:
    """Send a delivery again, now, with the id that it had."""
    return document(services.webhooks.redeliver(webhook_id, delivery_id))
