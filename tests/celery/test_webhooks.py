"""Webhooks with real workers: one serves each, and another one goes on where that dies."""

from __future__ import annotations

import os
import signal

import pytest

from runner.settings import Settings
from runner.store.shared import Shared
from runner.webhooks.delivery import WebhookAdmin
from runner.webhooks.webhook import Webhook
from tests.endpoints import Endpoint
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ALLOW = {"RUNNER_WEBHOOK_ALLOW": "127.0.0.0/8"}
SERVED = "webhook.served: 'h'"


def admin_of(site):
    return WebhookAdmin(Shared(Settings(redis_url=site.url, webhook_allow="127.0.0.0/8")))


def test_a_stopping_worker_leaves_its_webhooks_to_another(empty_site):
    """At once: it gives back its lock, and nothing is sent twice."""
    with Endpoint() as endpoint:
        empty_site.ready(1, **ALLOW)
        admin_of(empty_site).add(Webhook("h", endpoint.url, ["run.ended"]))
        (worker,) = empty_site.workers
        wait_until(lambda: SERVED in worker.output(), "it is served")
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: not worker.alive, "the worker has ended")
        assert not empty_site.redis.hexists("runner:{p00}:webhook:d:h", "#lock")
