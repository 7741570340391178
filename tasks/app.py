"""The Celery app: `celery --app tasks.app:app worker`."""

from __future__ import annotations

from typing import Any

import click
from celery import Celery
from celery.apps import worker
from celery.concurrency import get_implementation
from kombu.utils.objects import cached_property

from runner.settings import Settings
from tasks.config import celery_config
from tasks.worker import equip

POOL = "threads"
SLOTS = 100
"""Nodes that run at once in a worker of threads: they mostly wait for models and services."""


class Worker(worker.Worker):
    """A worker of threads unless its command says otherwise; it asks other workers nothing."""

    def __init__(self, app: Celery | None = None, hostname: str | None = None, **options: Any) -> None:
        """Take the options of the command `worker`."""
        pool = options.get("pool") or options.get("pool_cls")
        if pool is None or not _said("pool"):
            pool = POOL
        options |= {"pool": pool, "pool_cls": None}
        if not options.get("concurrency") and get_implementation(pool) is get_implementation(POOL):
            options["concurrency"] = SLOTS
        # The two cost a second at the start and talk among workers: the store tells ours all they need.
        options |= {"without_gossip": True, "without_mingle": True}
        super().__init__(app, hostname, **options)


class App(Celery):
    """Celery with our defaults for workers."""

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        """The class of this app's workers."""
        return self.subclass_with_self(Worker)


def make_app(settings: Settings | None = None) -> Celery:
    """Build an app; without `settings` the `RUNNER_*` ones decide."""
    made = App("runner")
    made.config_from_object(celery_config(settings or Settings()))
    equip(made)
    return made


def _said(option: str) -> bool:
    """Tell whether an option was given: Celery's command hands its own default on as if it had been."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source(option) if context is not None else None
    return source is not click.core.ParameterSource.DEFAULT


app = make_app()
