"""`/v1/schedules`, `/v1/limits`, `/v1/freezes`, `/v1/webhooks`: controls to change while workers run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, StrictBool
from starlette.convertors import PathConvertor, register_url_convertor

from runner.approvals.freezes import Freeze, scope_named
from runner.approvals.freezing import freeze, thaw
from runner.immutable import immutable
from runner.limits.concurrency import QueuedKey
from runner.limits.control import LimitView
from runner.limits.fairness import FairKey
from runner.operations.views import BackfilledRun
from runner.records.listings import Page
from runner.schedules.schedule import Schedule
from runner.server.access import Administers, Lists, Operates, Seen
from runner.server.answers import record_router
from runner.server.api.documents import (
    MOST,
    ONE_PAGE,
    PAGE,
    Cursor,
    Limit,
    RequestBody,
    Time,
)
from runner.server.parameters import OptionalQueryText
from runner.server.services import Served
from runner.webhooks.webhook import Delivery, Webhook, WebhookView

schedules = record_router("/v1/schedules", "schedules")
limits = record_router("/v1/limits", "limits")
freezes = record_router("/v1", "audit")
webhooks = record_router("/v1/webhooks", "webhooks")

# Schedules start runs at given times


class NewSchedule(RequestBody):
    """A schedule to make: an interval in seconds, or a cron expression with its time zone."""

    id: str
    graph: str
    task: Any = None
    interval: float | None = None
    cron: str = ""
    timezone: str = "UTC"
    overlap: Literal["skip", "buffer", "all"] = "skip"
    tags: dict[str, str] = Field(default_factory=dict)


class Range(RequestBody):
    """The times of a backfill, both included."""

    first: Time
    last: Time


@schedules.get("", summary="List schedules", dependencies=[ONE_PAGE])
def list_schedules(_: Seen, services: Served) -> Page[Schedule]:
    """List the schedules by their ids; their tasks are shown to readers only."""
    return Page(services.schedules.schedules.all())


@schedules.get("/{schedule_id}", summary="Show a schedule", name="show")
def show_schedule(schedule_id: str, _: Seen, services: Served) -> Schedule:
    """Show a schedule with its next time and its last run."""
    return services.schedules.schedules.get(schedule_id)


@schedules.post("", status_code=201, summary="Make a schedule", name="add")
def add_schedule(body: NewSchedule, person: Operates, services: Served) -> Schedule:
    """Make a schedule; its first run starts at its next time, and its maker is each run's requester."""
    return services.schedules.add(Schedule(**body.model_dump(), requester=person.principal.key))


@schedules.delete("/{schedule_id}", status_code=204, summary="Remove a schedule", name="remove")
def remove_schedule(schedule_id: str, _: Operates, services: Served) -> None:
    """Remove a schedule; its runs go on."""
    services.schedules.remove(schedule_id)


@schedules.post("/{schedule_id}:pause", summary="Pause a schedule", name="pause")
def pause_schedule(schedule_id: str, _: Operates, services: Served) -> Schedule:
    """Pause a schedule until it is resumed."""
    return services.schedules.pause(schedule_id)


@schedules.post("/{schedule_id}:resume", summary="Resume a schedule", name="resume")
def resume_schedule(schedule_id: str, _: Operates, services: Served) -> Schedule:
    """Resume a schedule at its next time; times that passed are skipped."""
    return services.schedules.resume(schedule_id)


@schedules.post("/{schedule_id}:backfill", summary="Start runs for times that have passed")
def backfill(
    schedule_id: str, body: Range, _: Operates, services: Served
) -> Page[BackfilledRun]:
    """Start a run for each time of a range; a time that already has a run gets no second one."""
    first, last = (round(moment.timestamp() * 1000) for moment in (body.first, body.last))
    return Page([*map(BackfilledRun, services.schedules.backfill(schedule_id, first, last))])


# Limits bound how many nodes run or start at a time


class KeyConvertor(PathConvertor):
    """The key of a limit in a path: any text, also with line breaks, which `path` does not match."""

    regex = r"(?s:.*)"


register_url_convertor("key", KeyConvertor())


class LimitChange(RequestBody):
    """A reason, which is shown; the audit keeps its hash."""

    reason: str = ""


class NewNumbers(LimitChange):
    """The slots of a limit, or its rate per `per` seconds; null leaves a number unchanged."""

    concurrency: int | None = None
    rate: float | None = None
    per: float = 1.0


class Pause(LimitChange):
    """A pause in seconds; null for no end."""

    seconds: float | None = Field(...)


@limits.get("", summary="List limits", dependencies=[ONE_PAGE])
def list_limits(_: Seen, services: Served) -> Page[LimitView]:
    """List the limits that graphs declare, with operators' settings and the waiting keys."""
    return Page(services.limits.all())


@limits.get(
    "/fairness", summary="List the keys of fair graphs that wait", dependencies=[ONE_PAGE]
)
def list_fair_keys(_: Seen, services: Served) -> Page[FairKey]:
    """List the keys of fair graphs whose nodes wait, the longest waiting first."""
    return Page(services.fair_keys(MOST))


@limits.get("/queued", summary="List the keys for which runs wait")
def list_queued_keys(
    _: Lists,
    services: Served,
    graph: OptionalQueryText = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Page[QueuedKey]:
    """List the concurrency keys of graphs that runs wait for, the longest waiting first."""
    return services.queued_keys(graph or "", limit, cursor)


@limits.post("/{name:key}:set", summary="Change a limit")
def set_limit(name: str, body: NewNumbers, person: Operates, services: Served) -> LimitView:
    """Change the numbers of a limit for all workers at once, until it is reset."""
    return services.limits.set(name, **body.model_dump(), by=person.principal.key)


@limits.post("/{name:key}:pause", summary="Pause a limit", name="pause")
def pause_limit(name: str, body: Pause, person: Operates, services: Served) -> LimitView:
    """Pause a limit, or one of its keys: no node starts under it, running ones go on."""
    return services.limits.pause(name, body.seconds, body.reason, person.principal.key)


@limits.post("/{name:key}:resume", summary="Resume a limit", name="resume")
def resume_limit(name: str, body: LimitChange, person: Operates, services: Served) -> LimitView:
    """End the pause of a limit and all its keys, or of one key; waiting nodes start."""
    return services.limits.resume(name, body.reason, person.principal.key)


@limits.post("/{name:key}:reset", summary="Reset a limit")
def reset(name: str, body: LimitChange, person: Operates, services: Served) -> LimitView:
    """Return to the numbers in the code, and end all pauses of a limit."""
    return services.limits.reset(name, body.reason, person.principal.key)


# Freezes stop effects


class Scope(RequestBody):
    """A freeze of a graph, a tool, or all effects, and its reason."""

    kind: Literal["graph", "tool", "all"]
    name: str = ""
    reason: str = Field(min_length=1)


class Freezing(Scope):
    """A scope to freeze; `force` accepts a name that no graph or tool has here."""

    force: StrictBool = False


@immutable
class ChangedScope:
    """The scope that was frozen or thawed."""

    scope: str


@freezes.get("/freezes", summary="List freezes", dependencies=[ONE_PAGE])
def list_freezes(_: Seen, services: Served) -> Page[Freeze]:
    """List the freezes: no effect in their scope happens until they are thawed."""
    return Page([*services.store.frozen().values()])


@freezes.post("/freezes", status_code=201, summary="Freeze effects")
def add_freeze(body: Freezing, person: Administers, services: Served) -> ChangedScope:
    """Stop all effects of a graph, a tool or everything; 404 if nothing has the name."""
    scope = scope_named(body.kind, body.name)
    freeze(services.client.engine, scope, body.reason, person.principal.key, force=body.force)
    return ChangedScope(scope)


@freezes.post("/freezes:thaw", summary="End a freeze")
def end_freeze(body: Scope, person: Administers, services: Served) -> ChangedScope:
    """Let effects happen again."""
    scope = scope_named(body.kind, body.name)
    thaw(services.client.engine, scope, body.reason, person.principal.key)
    return ChangedScope(scope)


# Webhooks: endpoints that get notices, and their deliveries


class NewWebhook(RequestBody):
    """Body of POST /v1/webhooks. Empty filters select every notice."""

    url: str
    id: str = Field("", description="A name of your choice; without it one is made.")
    events: list[str] = Field(
        default_factory=list, description="Kinds of notices, such as interrupt.asked."
    )
    graph: str = Field("", description="Only of runs of this graph, the outermost one.")
    tags: dict[str, str] = Field(
        default_factory=dict, description="Only of runs with these tags."
    )
    signature: Literal["v1", "v1a"] = Field(
        "v1", description="v1 signs with a shared secret, v1a with an Ed25519 key."
    )


@webhooks.get("", summary="List webhooks")
def list_webhooks(_: Administers, services: Served) -> Page[WebhookView]:
    """List the webhooks by their ids."""
    return Page(services.webhooks.list())


@webhooks.get("/{webhook_id}", summary="Show a webhook", name="show")
def show_webhook(webhook_id: str, _: Administers, services: Served) -> WebhookView:
    """Show a webhook, without its secret."""
    return services.webhooks.show(webhook_id)


@webhooks.post("", status_code=201, summary="Make a webhook", name="add")
def add_webhook(body: NewWebhook, _: Administers, services: Served) -> WebhookView:
    """Make a webhook, which gets all notices from now on. Only this answer has its secret."""
    return services.webhooks.add(Webhook(**body.model_dump()))


@webhooks.delete("/{webhook_id}", status_code=204, summary="Remove a webhook", name="remove")
def remove_webhook(webhook_id: str, _: Administers, services: Served) -> None:
    """Remove a webhook and its deliveries."""
    services.webhooks.remove(webhook_id)


@webhooks.post("/{webhook_id}:pause", summary="Pause a webhook", name="pause")
def pause_webhook(webhook_id: str, _: Administers, services: Served) -> WebhookView:
    """Pause a webhook until it is resumed; it never gets the notices of that time."""
    return services.webhooks.pause(webhook_id)


@webhooks.post("/{webhook_id}:resume", summary="Resume a webhook", name="resume")
def resume_webhook(webhook_id: str, _: Administers, services: Served) -> WebhookView:
    """Send the waiting deliveries, and new notices."""
    return services.webhooks.resume(webhook_id)


@webhooks.post("/{webhook_id}:rotate", summary="Rotate the secret of a webhook")
def rotate(webhook_id: str, _: Administers, services: Served) -> WebhookView:
    """Make a new secret, which only this answer has; for a day the old one signs as well."""
    return services.webhooks.rotate(webhook_id)


@webhooks.get("/{webhook_id}/deliveries", summary="List the deliveries of a webhook")
def deliveries(
    webhook_id: str,
    _: Administers,
    services: Served,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Page[Delivery]:
    """List the deliveries of the last 7 days, the newest first."""
    return services.webhooks.deliveries(webhook_id, limit, cursor)


@webhooks.post(
    "/{webhook_id}/deliveries/{delivery_id}:redeliver", summary="Send a delivery again"
)
def redeliver(webhook_id: str, delivery_id: str, _: Administers, services: Served) -> Delivery:
    """Send a delivery again now, with the same id."""
    return services.webhooks.redeliver(webhook_id, delivery_id)
