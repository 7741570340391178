"""Objects that requests share: the settings, and the client of the store that they name."""

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
from runner.operations.questions import QuestionView, read_question
from runner.records.run import outermost
from runner.schedules.scheduler import Scheduler
from runner.server.streams import Hub, Ticker
from runner.settings import Settings

log = logging.getLogger(__name__)

FINDINGS_AGE = 10.0
"""Seconds for which the doctor's findings are shown."""


class Services(Installation):
    """The shared objects, opened at first use, so that an application can be made while the store is away."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._graphs_loaded = False
        self._findings: tuple[float, object, list[Check]] = (0.0, None, [])
        self._lock = threading.Lock()

    @cached_property
    def client(self) -> Client:
        """The client of the store; it vouches for people as a service, since it knows no login."""
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
        """The reader of the notices of all runs."""
        return Ticker(lambda: self.notices)

    @cached_property
    def schedules(self) -> Scheduler:
        """The schedules, with the functions that start their runs."""
        return self.scheduler(self.client.engine)

    def question(self, question_id: str) -> QuestionView:
        """Read a question as people see it.

        Raises:
            NotFoundError: it was never asked.
        """
        return read_question(self.store, self.client.interrupt(question_id))

    def note_key_use(self, key_hash: str) -> None:
        """Record the use of an API key, and close the connection of this thread."""
        try:
            self.use_key(key_hash)
        except StoreError as error:
            log.info("api_keys.use_lost: %s `runner keys api` shows an earlier use.", error)
        finally:
            self.release()

    def plan(self, graph: str) -> CompiledGraph | None:
        """Return a graph of RUNNER_GRAPHS; None if this process does not have it.

        Raises:
            DefinitionError: a module of RUNNER_GRAPHS can't be imported.
        """
        if not self._graphs_loaded:
            load(self.settings.graphs)
            self._graphs_loaded = True
        return registry.find(graph)

    def shape(self, graph: str, fingerprint: str) -> Definition | Topology | None:
        """Return a version of a graph: as declared if this process has it, else as it was published."""
        plan = self.plan(graph)
        if plan is not None and plan.topology.fingerprint == fingerprint:
            return plan.definition
        return self.store.topology(graph, fingerprint)

    def graph_of(self, name: str) -> str:
        """Return the outermost graph of a run, or of a question by its id; "" if none is known."""
        run_id = name.partition(".")[0]
        run = self.store.peek(run_id)
        if run is not None:
            return outermost(run.graph_id)
        export = self.archive.read(run_id) if self.archive else None
        return outermost(export["graph"]) if export else ""

    def findings(self, frozen: object) -> list[Check]:
        """Return the doctor's findings; it looks again after some seconds, however many people ask.

        It also looks again if `frozen` has changed since the last look: a freeze is one of its findings.
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
    """Return the objects that the requests of an application share, for a route."""
    return cast("Services", request.app.state.services)


Served = Annotated[Services, Depends(services)]
"""The objects that requests share, for a route."""
