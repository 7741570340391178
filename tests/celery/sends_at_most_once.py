"""Sabotage: a worker that notes a delivery as done before it sends it."""

from __future__ import annotations

from dataclasses import replace

from runner.celery import app
from runner.webhooks.delivery import WebhookSender

__all__ = ["app"]

_post = WebhookSender._post


def _note_and_post(self, webhook, delivery, body, now):
    self._deliveries.record(webhook.id, replace(delivery, status="delivered", due_at=0))
    return _post(self, webhook, delivery, body, now)


WebhookSender._post = _note_and_post
