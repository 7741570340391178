"""`runner webhooks`: endpoints that get notices by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.arguments import read_tags, tag_option
from runner.cli.context import CommandContext, common_options, with_context
from runner.cli.output import clock_time
from runner.records.json_form import stamp

if TYPE_CHECKING:
    from runner.webhooks.webhook import Delivery, WebhookView

COLUMNS = ("WEBHOOK", "ADDRESS", "EVENTS", "STATE", "WAITING")

DELIVERY_COLUMNS = ("DELIVERY", "EVENT", "RUN", "STATE", "ATTEMPTS", "CODE", "AT")

WEBHOOK = click.argument("webhook_id", metavar="WEBHOOK")


@click.group()
@common_options
def webhooks() -> None:
    """Send notices of questions and ended runs to endpoints, by HTTP.

    Workers sign them according to Standard Webhooks, and repeat them until the endpoint accepts them.
    """


@webhooks.command("list")
@with_context
def list_webhooks(context: CommandContext) -> None:
    """List the webhooks.

    Without a terminal: id, address, events, state and how many deliveries wait, separated by tabs.
    """
    page = context.installation.webhooks.list()
    rows = [
        (item.id, item.url, " ".join(item.events) or "all", _state(item), item.waiting)
        for item in page
    ]
    nothing = "No webhooks. `runner webhooks add` makes one."
    context.output.listing({"webhooks": page}, COLUMNS, rows, nothing)


def _state(webhook: WebhookView) -> str:
    return "paused" if webhook.paused else "active"


@webhooks.command()
@WEBHOOK
@click.argument("url")
@click.option(
    "--event",
    "events",
    multiple=True,
    help="A kind of notice, such as interrupt.asked; repeatable.",
)
@click.option("--graph", default="", help="Only of runs of this graph (default: of all).")
@tag_option("Only of runs with this tag")
@click.option(
    "--signature",
    type=click.Choice(["v1", "v1a"]),
    default="v1",
    show_default=True,
    help="v1: a shared secret (HMAC); v1a: a private key, endpoints get the public one (Ed25519).",
)
@with_context
def add(
    context: CommandContext,
    *,
    webhook_id: str,
    url: str,
    events: tuple[str, ...],
    graph: str,
    tags: tuple[str, ...],
    signature: str,
) -> None:
    """Make a webhook, which gets all notices from now on.

    Writes its id and the key that the endpoint checks signatures with: the secret, which is shown only this
    once, or the public key.

    Exit codes: 0 made; 2 a value can't be used, or the address leads into a private network; 5 the name is
    taken.

    \b
    Examples:
      runner webhooks add chat https://chat.example.com/hooks --event interrupt.asked
      runner webhooks add billing https://billing.example.com/runs --event run.ended --tag team=billing
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from runner.webhooks.webhook import Webhook

    webhook = Webhook(webhook_id, url, list(events), graph, dict(read_tags(tags)), signature)  # type: ignore[arg-type] # click checks it
    _write_key(context, context.installation.webhooks.add(webhook))


@webhooks.command()
@WEBHOOK
@with_context
def rotate(context: CommandContext, webhook_id: str) -> None:
    """Make a new secret; for a day the old one signs as well.

    Writes the id and the new secret or public key.
    """
    _write_key(context, context.installation.webhooks.rotate(webhook_id))


@webhooks.command()
@WEBHOOK
@with_context
def pause(context: CommandContext, webhook_id: str) -> None:
    """Pause a webhook until it is resumed.

    It never gets the notices of that time.
    """
    _write(context, context.installation.webhooks.pause(webhook_id))


@webhooks.command()
@WEBHOOK
@with_context
def resume(context: CommandContext, webhook_id: str) -> None:
    """Send the waiting deliveries, and new notices."""
    _write(context, context.installation.webhooks.resume(webhook_id))


@webhooks.command()
@WEBHOOK
@with_context
def remove(context: CommandContext, webhook_id: str) -> None:
    """Delete a webhook and its deliveries."""
    context.installation.webhooks.remove(webhook_id)
    context.output.removed(webhook_id)


@webhooks.command()
@WEBHOOK
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many."
)
@with_context
def deliveries(context: CommandContext, webhook_id: str, limit: int) -> None:
    """List the deliveries of the last 7 days, the newest first.

    Without a terminal: id, event, run, state, attempts, HTTP status, time (UTC) and failure, separated by
    tabs.
    """
    page = context.installation.webhooks.deliveries(webhook_id, limit).items
    context.output.listing(
        {"deliveries": page},
        DELIVERY_COLUMNS,
        [(*_cells(item), clock_time(item.at)) for item in page],
        "No deliveries.",
        lines=((*_cells(item), stamp(item.at) or "", item.detail) for item in page),
    )


@webhooks.command()
@WEBHOOK
@click.argument("delivery_id", metavar="DELIVERY")
@with_context
def redeliver(context: CommandContext, webhook_id: str, delivery_id: str) -> None:
    """Send a delivery again now, with the same id."""
    delivery = context.installation.webhooks.redeliver(webhook_id, delivery_id)
    context.output.write(delivery, [_cells(delivery)])


def _cells(delivery: Delivery) -> tuple[object, ...]:
    return (
        delivery.id,
        delivery.kind,
        delivery.run_id,
        delivery.status,
        delivery.attempts,
        delivery.code or "",
    )


def _write(context: CommandContext, webhook: WebhookView) -> None:
    context.output.write(webhook, [(webhook.id, _state(webhook))])


def _write_key(context: CommandContext, webhook: WebhookView) -> None:
    context.output.write(webhook, [(webhook.id, webhook.secret or webhook.public_keys[0])])
