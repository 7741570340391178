"""The pages and forms of operators' controls: schedules, limits, freezes and webhooks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote, unquote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from runner.approvals.freezes import scope_named
from runner.approvals.freezing import freeze, thaw
from runner.errors import CorruptDocument
from runner.limits.control import words
from runner.records import codec
from runner.schedules.schedule import Schedule, in_words
from runner.schedules.scheduler import trouble
from runner.server.access import Administers, Operates, Person, Seen
from runner.server.answers import seen_by
from runner.server.api.documents import PAGE, Cursor
from runner.server.pages.rendering import back, page
from runner.server.parameters import FormNumber, FormText
from runner.server.problems import Problem
from runner.server.services import Served, Services
from runner.webhooks.webhook import KINDS, Webhook, WebhookView

router = APIRouter(include_in_schema=False)

MOST_FAIR_KEYS = 100
"""Maximum waiting keys on the page of limits, the longest waiting first."""


# Schedules


@router.get("/schedules")
def schedules(request: Request, person: Seen, services: Served) -> HTMLResponse:
    """Show the schedules, and a form for a new one."""
    stored = services.schedules.schedules
    return page(
        request,
        "schedules.html",
        person,
        schedules=[
            (schedule, in_words(schedule), *trouble(services.store, schedule, stored.now()))
            for schedule in stored.all()
        ],
        graphs=list(services.graphs()),
    )


@router.post("/schedules")
def add_schedule(
    request: Request,
    person: Operates,
    services: Served,
    name: FormText,
    graph: FormText,
    cron: FormText = "",
    interval: FormNumber = None,
    timezone: FormText = "UTC",
    overlap: FormText = "skip",
    task: FormText = "null",
) -> Response:
    """Make a schedule."""
    try:
        value = codec.load_json(task)
    except CorruptDocument as error:
        raise Problem(422, f"The task is {error}.") from error
    schedule = Schedule(
        name,
        graph,
        value,
        interval,
        cron,
        timezone,
        overlap,  # type: ignore[arg-type] # checked by add
        requester=person.principal.key,
    )
    services.schedules.add(schedule)
    return back(request, "/schedules")


@router.post("/schedules/{schedule_id}/backfill")
def backfill(
    request: Request,
    schedule_id: str,
    _: Operates,
    services: Served,
    first: Annotated[datetime, Form()],
    last: Annotated[datetime, Form()],
) -> Response:
    """Start a run for each time of a range in UTC, and show them."""
    span = (round(moment.replace(tzinfo=UTC).timestamp() * 1000) for moment in (first, last))
    services.schedules.backfill(schedule_id, *span)
    return back(request, f"/runs?tag={quote(f'schedule={schedule_id}')}")


@router.post("/schedules/{schedule_id}/{action}")
def change_schedule(
    request: Request,
    schedule_id: str,
    action: Literal["pause", "resume", "remove"],
    _: Operates,
    services: Served,
) -> Response:
    """Pause, resume or remove a schedule."""
    getattr(services.schedules, action)(schedule_id)
    return back(request, "/schedules")


# Limits


@router.get("/limits")
def limits(
    request: Request, person: Seen, services: Served, cursor: Cursor = None
) -> HTMLResponse:
    """Show the limits, their settings, the nodes that wait or have slots, and other waiting keys."""
    views = [seen_by(person, limit) for limit in services.limits.all()]
    fair_keys = services.fair_keys(MOST_FAIR_KEYS)
    keys = {"fair_keys": fair_keys, "queued": services.queued_keys("", PAGE, cursor)}
    return page(request, "limits.html", person, limits=views, words=words, keys=keys)


@router.post("/limits/{action}")
def change_limit(
    request: Request,
    action: Literal["set", "pause", "resume", "reset"],
    person: Operates,
    services: Served,
    name: FormText,
    reason: FormText = "",
    minutes: FormNumber = None,
    concurrency: Annotated[int | None, Form()] = None,
    rate: FormNumber = None,
    per: Annotated[float, Form()] = 1,
) -> Response:
    """Set, pause, resume or reset a limit; a pause without minutes has no end.

    The name is percent-encoded, since browsers change line breaks when they send them.
    """
    name = unquote(name)
    control = services.limits
    about = {"reason": reason, "by": person.principal.key}
    if action == "set":
        control.set(name, concurrency=concurrency, rate=rate, per=per, **about)
    elif action == "pause":
        control.pause(name, minutes and minutes * 60, **about)
    else:
        getattr(control, action)(name, **about)
    return back(request, "/limits")


# Freezes


@router.post("/freeze")
def freeze_all(
    request: Request,
    person: Administers,
    services: Served,
    action: Annotated[Literal["freeze", "thaw"], Form()],
    scope: FormText,
    reason: FormText = "",
    force: FormText = "",
) -> Response:
    """Freeze or thaw effects: `scope` is all, graph:<name> or tool:<name>."""
    kind, _, name = scope.partition(":")
    frozen_scope = scope_named(kind, name)
    engine = services.client.engine
    by = person.principal.key
    if action == "freeze":
        freeze(engine, frozen_scope, reason, by, force=bool(force))
    else:
        thaw(engine, frozen_scope, reason, by)
    return back(request, "/")


# Webhooks


@router.get("/webhooks")
def webhooks(request: Request, person: Administers, services: Served) -> HTMLResponse:
    """Show the webhooks, and a form for a new one."""
    return _webhooks(request, person, services)


@router.post("/webhooks")
def add_webhook(
    request: Request,
    person: Administers,
    services: Served,
    name: FormText,
    address: FormText,
    event: Annotated[list[str] | None, Form()] = None,
    graph: FormText = "",
) -> Response:
    """Make a webhook, and show its secret only this once."""
    return _webhooks(
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
def change_webhook(
    request: Request,
    webhook_id: str,
    action: Literal["pause", "resume", "rotate", "remove"],
    person: Administers,
    services: Served,
) -> Response:
    """Pause, resume, rotate or remove a webhook."""
    webhook = getattr(services.webhooks, action)(webhook_id)
    if action == "rotate":
        return _webhooks(request, person, services, made=webhook)
    return back(request, "/webhooks")


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}")
def redeliver(
    request: Request, webhook_id: str, delivery_id: str, _: Administers, services: Served
) -> Response:
    """Send a delivery again."""
    services.webhooks.redeliver(webhook_id, delivery_id)
    return back(request, f"/webhooks/{webhook_id}")


def _webhooks(
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
