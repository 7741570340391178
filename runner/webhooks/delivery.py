"""Operations on webhooks: make, pause, resume, rotate, remove, deliver again; and serving them.

A worker that sweeps finds a webhook by its timer and serves it in a thread (`WebhookSender`),
unless another worker already does. If a process dies, the next one that sweeps takes over.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runner.errors import StoreError, UsageError
from runner.records import codec
from runner.records.listings import Page
from runner.records.notices import Notice, completed
from runner.store.interface import Store
from runner.store.requests import new_nonce
from runner.store.shared import NoticeReader, Shared
from runner.webhooks import outbound
from runner.webhooks.webhook import (
    GONE,
    OVERLAP,
    SECRET_BYTES,
    Delivery,
    Webhook,
    WebhookView,
    attempted,
    checked,
    headers,
    message_id,
    view,
)

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two checks for a change of the webhook or a delivery that is due again."""

BATCH = 100
"""Number of notices taken at once."""


Taken = tuple[NoticeReader, Sequence[Notice]]


class WebhookAdmin:
    """The webhooks of a store, with the operations that people do on them."""

    def __init__(self, shared: Shared) -> None:
        """Keep the shared part of the store; nothing is connected yet."""
        self._webhooks = shared.documents(Webhook)
        self._deliveries = shared.deliveries
        self._groups = shared.notice_groups
        self._allow = shared.settings.webhook_allow

    def add(self, webhook: Webhook) -> WebhookView:
        """Store a webhook, which gets the notices from now on; only this view shows the secret.

        Raises:
            UsageError: a value can't be used, or the address may not be reached. ConflictError: the
                id is taken.
        """
        made = replace(
            webhook,
            id=webhook.id or f"wh_{secrets.token_hex(8)}",
            secret=_secret(),
            group=_group(),
            created_at=self._webhooks.now(),
        )
        outbound.check(checked(made).url, self._allow)
        shown = view(made, made.created_at, has_secret=True)
        self._groups.listen(made.group)
        try:
            self._webhooks.add(made)
        except BaseException:
            self._groups.leave(made.group)
            raise
        return shown

    def list(self) -> list[WebhookView]:
        """List the webhooks by their ids."""
        return [self._view(webhook) for webhook in self._webhooks.all()]

    def show(self, webhook_id: str) -> WebhookView:
        """Return a webhook, or raise NotFoundError."""
        return self._view(self._webhooks.get(webhook_id))

    def pause(self, webhook_id: str) -> WebhookView:
        """Send nothing until the webhook is resumed; the notices of that time are left out."""
        before = self._webhooks.get(webhook_id)
        after = self._webhooks.change(
            webhook_id, lambda webhook: replace(webhook, paused=True, reason="")
        )
        self._groups.leave(before.group)
        return self._view(after)

    def resume(self, webhook_id: str) -> WebhookView:
        """Send the waiting deliveries, and the notices from now on."""
        group = _group()
        self._groups.listen(group)
        after = self._webhooks.change(
            webhook_id,
            lambda webhook: (
                replace(webhook, paused=False, reason="", group=group)
                if webhook.paused
                else webhook
            ),
        )
        if after.group != group:
            self._groups.leave(group)
        return self._view(after)

    def rotate(self, webhook_id: str) -> WebhookView:
        """Make a new secret, which only this view shows; for a day the old one signs beside it."""
        now, secret = self._webhooks.now(), _secret()
        after = self._webhooks.change(
            webhook_id,
            lambda webhook: replace(
                webhook, secret=secret, old_secret=webhook.secret, old_until=now + OVERLAP
            ),
        )
        return view(after, now, has_secret=True)

    def remove(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries; nothing more is sent."""
        self._groups.leave(self._webhooks.remove(webhook_id).group)
        self._deliveries.forget(webhook_id)

    def deliveries(
        self, webhook_id: str, limit: int, cursor: str | None = None
    ) -> Page[Delivery]:
        """List the deliveries of a webhook, the newest first; `cursor` comes from the previous page."""
        self._webhooks.get(webhook_id)
        return self._deliveries.page(webhook_id, limit, cursor)

    def redeliver(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send a delivery again now, whatever its status, with as many attempts as a new one."""
        self._webhooks.get(webhook_id)
        delivery = self._deliveries.get(webhook_id, delivery_id)
        again = replace(delivery, status="waiting", attempts=0, due_at=self._webhooks.now())
        self._deliveries.record(webhook_id, again)
        return again

    def _view(self, webhook: Webhook) -> WebhookView:
        waiting, dropped = self._deliveries.backlog(webhook.id)
        return view(webhook, self._webhooks.now(), waiting=waiting, dropped=dropped)


def _secret() -> str:
    return base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def _group() -> str:
    return f"webhook:{secrets.token_hex(8)}"


class WebhookSender:
    """Sender of webhooks: takes their notices and sends their deliveries, one at a time per webhook."""

    def __init__(self, store: Store, shared: Shared) -> None:
        self._store = store
        self._settings = shared.settings
        self._groups = shared.notice_groups
        self._webhooks = shared.documents(Webhook)
        self._deliveries = shared.deliveries
        self._failing = set[str]()

    def serve(self, webhook_id: str, is_stopping: Callable[[], bool]) -> None:
        """Serve a webhook until the process stops, or it is paused or removed, unless another process does.

        Raises:
            StoreError: the store could not be reached; a worker begins again a lease later.
        """
        holder = new_nonce()
        readers: Sequence[NoticeReader] = ()
        group = ""
        try:
            while not is_stopping():
                webhook = self._webhooks.find(webhook_id)
                if (
                    webhook is None
                    or webhook.paused
                    or not self._deliveries.hold(webhook_id, holder)
                ):
                    break
                if webhook.group != group:
                    log.info("webhook.served: %r is served by this process now.", webhook_id)
                    _close(readers)
                    group, readers = webhook.group, self._groups.readers(webhook.group)
                    self._enqueue(webhook, _left_over(readers))
                    self._failing.discard(webhook_id)
                self._collect(webhook, readers, is_stopping)
                self._send_due(webhook, is_stopping)
        finally:
            _close(readers)
        if group:
            self._deliveries.release(webhook_id, holder)
            after = self._webhooks.find(webhook_id)
            if after is None or after.group != group or after.paused:
                # A reader makes its group if it is missing.
                self._groups.leave(group)
            if after is None:
                self._deliveries.forget(webhook_id)

    def _collect(
        self, webhook: Webhook, readers: Sequence[NoticeReader], is_stopping: Callable[[], bool]
    ) -> None:
        first = self._deliveries.next_delivery(webhook.id)
        pause = (
            LOOK
            if first is None
            else min(LOOK, (first[0].due_at - self._webhooks.now()) / 1000)
        )
        for reader in readers:
            try:
                notices = reader.read(max(0.001, pause / len(readers)), BATCH, is_stopping)
            except StoreError as error:
                if "NOGROUP" in str(error):
                    return  # paused or removed meanwhile; the next check shows that
                raise
            if notices:
                self._enqueue(webhook, [(reader, notices)])

    def _enqueue(self, webhook: Webhook, taken: Iterator[Taken] | Sequence[Taken]) -> None:
        for reader, notices in taken:
            chosen = [notice for notice in notices if self._is_wanted(webhook, notice)]
            made = [
                (delivery_of(notice), codec.dump_json(notice.message())) for notice in chosen
            ]
            dropped = self._deliveries.enqueue(webhook.id, made)
            if dropped:
                log.error(
                    "webhook.dropped: %d deliveries to %r were given up, because too many wait.",
                    dropped,
                    webhook.id,
                )
            reader.done(notices)

    def _is_wanted(self, webhook: Webhook, notice: Notice) -> bool:
        if webhook.events and notice.kind not in webhook.events:
            return False
        if not webhook.is_filtered_by_run:
            return True
        run = self._store.peek(notice.run_id) if notice.run_id else None
        root = self._store.peek(run.root) if run is not None and run.root != run.run_id else run
        if root is None or (webhook.graph and root.graph_id != webhook.graph):
            return False
        return not webhook.tags or webhook.tags.items() <= self._store.tags(root.run_id).items()

    def _send_due(self, webhook: Webhook, is_stopping: Callable[[], bool]) -> None:
        """Send due deliveries, until it is time to check again whether the webhook has changed."""
        ends = time.monotonic() + LOOK
        while not is_stopping() and time.monotonic() < ends:
            first = self._deliveries.next_delivery(webhook.id)
            now = self._webhooks.now()
            if first is None or first[0].due_at > now:
                return
            delivery, body = first
            message = completed(json.loads(body), self._store.tags, self._settings.page)
            answer = self._post(webhook, delivery, codec.dump_json(message), now)
            after = attempted(
                delivery,
                answer.code,
                answer.problem,
                self._webhooks.now(),
                self._settings.webhook_retry,
            )
            self._deliveries.record(webhook.id, after)
            if answer.code == GONE:
                self._disable(webhook)
                return
            if after.status == "delivered":
                self._failing.discard(webhook.id)
            elif after.status == "waiting" and webhook.id not in self._failing:
                self._failing.add(webhook.id)
                log.warning(
                    "webhook.failing: deliveries to %r fail, and are sent again later: %s",
                    webhook.id,
                    after.detail,
                )
            if after.status == "failed":
                log.error(
                    "webhook.failed: delivery %s to %r was given up after %d attempts: %s",
                    delivery.id,
                    webhook.id,
                    after.attempts,
                    after.detail,
                )

    def _post(
        self, webhook: Webhook, delivery: Delivery, body: bytes, now: int
    ) -> outbound.Answer:
        try:
            signed = headers(webhook, delivery, body, now)
        except UsageError as error:
            return outbound.Answer(0, str(error))
        return outbound.post(webhook.url, body, signed, self._settings.webhook_allow)

    def _disable(self, webhook: Webhook) -> None:
        log.warning(
            "webhook.disabled: the endpoint of %r answered %d; nothing more is sent.",
            webhook.id,
            GONE,
        )
        self._webhooks.replace(
            webhook, replace(webhook, paused=True, reason=f"the endpoint answered {GONE}")
        )


def _left_over(readers: Sequence[NoticeReader]) -> Iterator[Taken]:
    """Take over the notices that a dead process had taken: no other process serves the webhook."""
    for reader in readers:
        while notices := reader.take_over(0, BATCH):
            yield reader, notices


def _close(readers: Sequence[NoticeReader]) -> None:
    for reader in readers:
        reader.close()


def delivery_of(notice: Notice) -> Delivery:
    """Make the delivery of a notice, due at once."""
    return Delivery(
        message_id(notice.id),
        notice.id,
        notice.kind,
        notice.run_id,
        notice.at,
        due_at=notice.at,
    )
