"""The page of webhooks, with the deliveries of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from runner.server.access import Administers, Person
from runner.server.api.documents import PAGE, Cursor
from runner.server.pages.rendering import back, page
from runner.server.problems import Problem
from runner.server.services import Served, Services
from runner.webhooks.webhook import KINDS, Webhook, WebhookView

router = APIRouter(include_in_schema=False)


@router.get("/webhooks")
def webhooks(request: Request, person: Administers, services: Served) -> HTMLResponse:
    """Show the webhooks, and a form for a new one."""
    return _page(request, person, services)


@router.post("/webhooks")
def add(
    request: Request,
    person: Administers,
    services: Served,
    name: Annotated[str, Form()],
    address: Annotated[str, Form()],
    event: Annotated[list[str] | None, Form()] = None,
    graph: Annotated[str, Form()] = "",
) -> Response:
    """Make a webhook, and show its secret this once."""
    return _page(
        request,
        person,
        services,
        made=services.webhooks.add(Webhook(name, address, event or [], graph)),
    )


@router.get("/webhooks/{webhook_id}")
def deliveries(
    request: Request,
    webhook_id: str,
    person: Administers,
    services: Served,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the deliveries of a webhook, the newest first."""
    services.webhooks.show(webhook_id)
    log = services.webhooks.deliveries(webhook_id, PAGE, cursor)
    return page(request, "deliveries.html", person, webhook_id=webhook_id, log=log)


@router.post("/webhooks/{webhook_id}/{action}")
def change(
    request: Request, webhook_id: str, action: str, person: Administers, services: Served
) -> Response:
    """Pause, resume, rotate or remove a webhook."""
    actions = {
        name: getattr(services.webhooks, name)
        for name in ("pause", "resume", "rotate", "remove")
    }
    if action not in actions:
        raise Problem(404, f"There is no action {action!r:.40}.")
    webhook = actions[action](webhook_id)
    if action == "rotate":
        return _page(request, person, services, made=webhook)
    return back(request, "/webhooks")


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}")
def redeliver(
    request: Request, webhook_id: str, delivery_id: str, _: Administers, services: Served
) -> Response:
    """Send a delivery again."""
    services.webhooks.redeliver(webhook_id, delivery_id)
    return back(request, f"/webhooks/{webhook_id}")


def _page(
    request: Request, person: Person, services: Services, made: WebhookView | None = None
) -> HTMLResponse:
    return page(
        request,
        "webhooks.html",
        person,
        webhooks=services.webhooks.list(),
        made=made,
        kinds=sorted(KINDS),
        graphs=list(services.graphs()),
    )
