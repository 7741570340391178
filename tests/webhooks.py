"""Webhooks of tests: a store, and what workers do for its webhooks, in threads of this process."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import redis

from runner import Client
from runner.definition.registry import Registry
from runner.settings import Settings
from runner.store.shared import Shared, open_store
from runner.webhooks.delivery import WebhookAdmin, WebhookSender
from runner.webhooks.webhook import Webhook
from tests.graphs import ident, single
from tests.waiting import wait_until


class Site:
    """A store with graphs whose nodes run when a test says so, and the webhooks there."""

    def __init__(self, url, graphs=None, **settings):
        options = {"lease": 1, "webhook_allow": "127.0.0.0/8", "webhook_retry": "0.05,0.05"}
        self.settings, self.registry = (
            Settings(redis_url=url, **{**options, **settings}),
            Registry(),
        )
        graphs = graphs or dict.fromkeys(("g", "h"), lambda: single(ident))
        for name, build in graphs.items():
            self.registry.add(name, build)
        self.bells = []
        self.client = Client(
            store=open_store(self.settings), dispatcher=self, registry=self.registry
        )
        self.engine = self.client.engine
        self.engine.publish(list(graphs))
        self.raw = redis.Redis.from_url(url)
        self.shared = Shared(self.settings)
        self.admin = WebhookAdmin(self.shared)
        self.webhooks = self.shared.documents(Webhook)

    def ring(self, doorbells):
        self.bells.extend(doorbells)

    def call(self, task, kwargs, task_id):
        return True

    def run(self, graph="g", **options):
        """Start a run, and run its nodes until they have ended or wait."""
        run = self.client.start(graph, None, **options)
        while self.bells:
            bell = self.bells.pop(0)
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
        return run.id

    @contextmanager
    def served(self, *webhooks):
        """Serve webhooks as a worker does, each in its thread."""
        stopping = threading.Event()
        threads = [
            threading.Thread(target=self.sender().serve, args=(name, stopping.is_set))
            for name in webhooks
        ]
        for thread in threads:
            thread.start()
        try:
            yield threads
        finally:
            stopping.set()
            for thread in threads:
                thread.join()

    def sender(self):
        """What one more process has."""
        return WebhookSender(self.engine.store, Shared(self.settings))

    def deliveries(self, webhook_id, status=None):
        return [
            item
            for item in self.shared.deliveries.page(webhook_id, 100)
            if status is None or item.status == status
        ]

    def until(self, webhook_id, status, count=1):
        wait_until(
            lambda: len(self.deliveries(webhook_id, status)) >= count, f"{count} are {status}"
        )
