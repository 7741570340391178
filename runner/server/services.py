"""Objects that requests share: the settings, and the client of the store that they lead to."""

from __future__ import annotations

import logging
import threading
import time
from functools import cached_property
from typing import Annotated, cast

from fastapi import Depends, Request

from runner.approvals.rules import SERVICE
from runner.client import Client
from runner.definition.model import Definition, Topology
from runner.definition.registry import CompiledGraph, load, registry
from runner.errors import StoreError
from runner.operations.doctor import PASS, Check, examine, read_facts
from runner.operations.installation import Installation
from runner.records.run import outermost
from runner.schedules.scheduler import Scheduler
from runner.server.streams import Hub, Ticker
from runner.settings import Settings

log = logging.getLogger(__name__)

FINDINGS_AGE = 10.0
"""Seconds for which what the doctor found is shown."""


class Services(Installation):
    """Opened when first used, so that an application can be made while the store is away."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._graphs_loaded = False
        self._findings: tuple[float, object, list[Check]] = (0.0, None, [])
        self._lock = threading.Lock()

    @cached_property
    def client(self) -> Client:
        """The client of the store; it vouches for people as a service, as it knows of no login."""
        client = Client(store=self.store)
        client.engine.signing_level = SERVICE
        client.engine.plain_issuer = self.settings.plain_names_issuer
        return client

    @cached_property
    def hub(self) -> Hub:
        """The reader of the streams."""
        return Hub(lambda: self.store)

    @cached_property
    def ticker(self) -> Ticker:
        """The reader of what happens to all runs."""
        return Ticker(lambda: self.notices)

    @cached_property
    def schedules(self) -> Scheduler:
        """The schedules, and what starts their runs."""
        return self.scheduler(self.client.engine)

    def note_key_use(self, key_hash: str) -> None:
        """Write that an API key was used; the connection of this thread is closed."""
        try:
            self.use_key(key_hash)
        except StoreError as error:
            log.info("api_keys.use_lost: %s `runner keys api` shows an earlier use.", error)
        finally:
            self.release()

    def plan(self, graph: str) -> CompiledGraph | None:
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

    def graph_of(self, name: str) -> str:
        """Return the outermost graph of a run, or of a question by its id; "" where none is known."""
        run_id = name.partition(".")[0]
        run = self.store.peek(run_id)
        if run is not None:
            return outermost(run.graph_id)
        export = self.archive.read(run_id) if self.archive else None
        return outermost(export["graph"]) if export else ""

    def findings(self, frozen: object) -> list[Check]:
        """Return what the doctor finds wrong; it looks again after some seconds, however many people ask.

        Also where something else is `frozen` than at the last look: a freeze is one of its findings.
        """
        with self._lock:
            until, checked_freezes, findings = self._findings
            if time.monotonic() >= until or checked_freezes != frozen:
                findings = [
                    check
                    for check in examine(read_facts(self.settings))
                    if check.result != PASS
                ]
                self._findings = time.monotonic() + FINDINGS_AGE, frozen, findings
            return findings


async def services(request: Request) -> Services:
    """Return what the requests of an application share, for a route."""
    return cast("Services", request.app.state.services)


Served = Annotated[Services, Depends(services)]
"""The objects that requests share, for a route."""
