"""Webhooks with real workers: one serves each, and another one goes on where that dies."""

from __future__ import annotations

import os
import signal

import pytest

from runner.settings import Settings
from runner.store.shared import Shared
from runner.webhooks.delivery import WebhookAdmin
from runner.webhooks.webhook import Webhook
from tests.celery.workers import BOOT
from tests.endpoints import Endpoint
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ALLOW = {"RUNNER_WEBHOOK_ALLOW": "127.0.0.0/8"}
SERVED = "webhook.served: 'h'"


def admin_of(site):
    return WebhookAdmin(Shared(Settings(redis_url=site.url, webhook_allow="127.0.0.0/8")))


def killed_while_it_sends(site, endpoint, **options):
    """Kill the worker that serves a webhook while the endpoint has its request; return who serves it then."""
    site.ready(2, **options, **ALLOW)
    admin_of(site).add(Webhook("h", endpoint.url, ["run.ended"]))
    wait_until(
        lambda: any(SERVED in worker.output() for worker in site.workers), "one serves it"
    )
    endpoint.gate.clear()
    site.client.start("chain", "x")
    wait_until(lambda: endpoint.requests, "the request is in flight", seconds=BOOT)
    (first,) = [worker for worker in site.workers if SERVED in worker.output()]
    (other,) = [worker for worker in site.workers if worker is not first]
    first.kill()
    endpoint.gate.set()
    wait_until(lambda: SERVED in other.output(), "the other one serves it", seconds=BOOT)
    return other


def test_another_worker_sends_what_a_killed_one_had_in_hand(empty_site):
    """The endpoint gets it again, with the same id; and what comes afterwards."""
    with Endpoint() as endpoint:
        killed_while_it_sends(empty_site, endpoint)
        wait_until(lambda: len(endpoint.requests) == 2, "it is sent again")
        empty_site.client.start("chain", "y")
        wait_until(lambda: len(endpoint.requests) == 3, "the next one is sent")

    first, again, following = endpoint.ids()
    assert first == again != following


def test_noted_before_it_is_sent_it_would_be_lost(empty_site):
    """The control of the test above."""
    with Endpoint() as endpoint:
        killed_while_it_sends(empty_site, endpoint, app="tests.celery.sends_at_most_once:app")
        empty_site.client.start("chain", "y")
        wait_until(lambda: len(endpoint.requests) == 2, "the next one is sent")

    assert len(set(endpoint.ids())) == 2


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
