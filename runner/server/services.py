"""What requests share: the settings, and the client of the store that they lead to."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, cast

from fastapi import Depends, Request

from runner.client import Client
from runner.definition.model import Definition, Topology
from runner.definition.registry import Plan, load, registry
from runner.operations.doctor import PASS, Check, examine, read_facts
from runner.records.listings import INSIDE
from runner.schedules.scheduler import Scheduler
from runner.server.streams import Hub, Ticker
from runner.settings import Settings
from runner.store.archive import Archive, open_archive
from runner.store.interface import Store
from runner.store.redis.auditing import AuditLog
from runner.store.redis.dead_letters import DeadLetters
from runner.store.redis.jobs import Jobs
from runner.store.redis.partitions import open_store
from runner.store.redis.schedules import Schedules
from runner.store.redis.streams import NoticeTail
from runner.webhooks.delivery import WebhookAdmin

FINDINGS_AGE = 10.0
"""Seconds for which what the doctor found is shown."""


class Services:
    """Opened when first used, so that an application can be made while the store is away."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._graphs_loaded = False
        self._findings: tuple[float, object, list[Check]] = (0.0, None, [])
        self._lock = threading.Lock()

    @cached_property
    def client(self) -> Client:
        """The client of the store."""
        settings = self.settings
        return Client(
            settings.redis_url,
            settings.broker_url,
            namespace=settings.namespace,
            partitions=settings.partitions,
        )

    @property
    def store(self) -> Store:
        """The store itself, for what a client does not offer."""
        return self.client.engine.store

    @cached_property
    def hub(self) -> Hub:
        """The reader of the streams."""
        return Hub(lambda: self.store)

    @cached_property
    def ticker(self) -> Ticker:
        """The reader of what happens to all runs."""
        return Ticker(lambda: self.notices)

    @cached_property
    def notices(self) -> NoticeTail:
        """The notices of what happens to questions and runs."""
        settings = self.settings
        return NoticeTail(settings.redis_url, settings.namespace, settings.partitions)

    @cached_property
    def scheduler(self) -> Scheduler:
        """The schedules, and what starts their runs."""
        settings = self.settings
        stored = Schedules(settings.redis_url, settings.namespace, settings.partitions)
        return Scheduler(self.client.engine, stored)

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs of the store."""
        settings = self.settings
        return Jobs(settings.redis_url, settings.namespace, settings.partitions)

    @cached_property
    def webhooks(self) -> WebhookAdmin:
        """The webhooks of the store."""
        return WebhookAdmin(self.settings)

    @cached_property
    def audit_logs(self) -> Sequence[AuditLog]:
        """The audit of each partition."""
        return list(open_store(self.settings).audit_logs)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """The dead letters of the store."""
        settings = self.settings
        return DeadLetters(settings.redis_url, settings.namespace, settings.partitions)

    def plan(self, graph: str) -> Plan | None:
        """Return a graph of RUNNER_GRAPHS; None for one that this process does not have.

        Raises:
            DefinitionError: a module of RUNNER_GRAPHS can't be imported.
        """
        if not self._graphs_loaded:
            load(self.settings.graphs)
            self._graphs_loaded = True
        return registry.find(graph)

    def shape(self, graph: str, fingerprint: str) -> Definition | Topology | None:
        """Return a version of a graph: as declared, where this process has it, else as it was published."""
        plan = self.plan(graph)
        if plan is not None and plan.topology.fingerprint == fingerprint:
            return plan.definition
        return self.store.topology(graph, fingerprint)

    def graphs(self) -> dict[str, str]:
        """Return the fingerprints of the graphs that workers have published, without those inside others."""
        published = sorted(self.store.graphs().items())
        return {name: fingerprint for name, fingerprint in published if INSIDE not in name}

    def findings(self, frozen: object) -> list[Check]:
        """Return what the doctor finds wrong; it looks again after some seconds, however many people ask.

        Also where something else is `frozen` than at the last look: a freeze is one of its findings.
        """
        with self._lock:
            until, seen, findings = self._findings
            if time.monotonic() >= until or seen != frozen:
                findings = [
                    check for check in examine(read_facts(self.settings)) if check.result != PASS
                ]
                self._findings = time.monotonic() + FINDINGS_AGE, frozen, findings
            return findings

    @cached_property
    def archive(self) -> Archive | None:
        """The archive of ended runs; None where RUNNER_ARCHIVE is not set."""
        return open_archive(self.settings.archive) if self.settings.archive else None


def services(request: Request) -> Services:
    """Return what the requests of an application share, for a route."""
    return cast("Services", request.app.state.services)


Served = Annotated[Services, Depends(services)]
"""What the requests share, for a route."""
