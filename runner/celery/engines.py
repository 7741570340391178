"""The single engine that a process has for an app, and a way to write messages to its store.

A worker's own threads and its nodes share the engine; a child of a prefork pool makes its own.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any, cast

from billiard import common
from celery import Celery, current_task
from celery.utils.imports import cwd_in_path

from runner.celery.config import settings_of
from runner.celery.doorbells import CeleryDispatcher
from runner.celery.measuring import measure_nodes
from runner.definition.registry import load, registry
from runner.execution.engine import Engine
from runner.operations.jobs import SLICE, carry_on
from runner.schedules.schedule import Schedule
from runner.schedules.scheduler import Scheduler
from runner.settings import Settings, as_broker, same_database
from runner.store.addresses import cluster, sentinels
from runner.store.redis.connection import RedisConnection
from runner.store.redis.partitions import SharedStore, open_store
from runner.store.redis.streams import Bounds, Outbox
from runner.store.shared import Shared

NEARLY = 0.9
"""The fraction of a hard time limit after which a signal is taken for the limit's."""

COLLECT_AFTER = 10_000
"""Additional objects after which Python collects the youngest garbage."""

PYTHONS_THRESHOLDS = (700, 2_000)
"""Python's defaults: up to 3.12, and since."""

_lock = threading.Lock()

_engines: dict[Celery, Engine] = {}


def engine_of(app: Celery) -> Engine:
    """Return this process's engine for an app, made at first use.

    Raises:
        DefinitionError: a module of RUNNER_GRAPHS can't be imported.
    """
    engine = _engines.get(app)
    if engine is not None:
        return engine
    with _lock:
        if app not in _engines:
            _engines[app] = _make(app, settings_of(app))
        return _engines[app]


def app_of_store(store: object) -> Celery | None:
    """Return the app whose engine in this process uses a store, or None if this isn't one of its workers."""
    return next((app for app, engine in list(_engines.items()) if engine.store is store), None)


def _make(app: Celery, settings: Settings) -> Engine:
    load_graphs(settings)
    collect_less()
    measure_nodes()
    store = open_store(settings, push=pushes(app, settings), retry_for=settings.lease)
    engine = Engine(store, CeleryDispatcher(app), registry)
    engine.is_stopping = _ends_by_signal
    shared = Shared(settings)
    engine.fire = {
        "schedule": Scheduler(engine, shared.documents(Schedule)).fire,
        "job": lambda name: carry_on(engine, shared.jobs, name, SLICE),
    }
    return engine


def collect_less() -> None:
    """Make Python collect garbage seldom, and never check imported objects; a forked child inherits this.

    With Python's own threshold, collection took half the time of a node that gets a list of 11,000
    objects.
    """
    if gc.get_threshold()[0] in PYTHONS_THRESHOLDS:
        gc.set_threshold(COLLECT_AFTER)
        gc.freeze()


def connection_of(engine: Engine) -> RedisConnection:
    """Return an engine's connection to the first server; a thread needs no other."""
    return cast("SharedStore", engine.store).connection


def outbox_of(app: Celery) -> Outbox:
    """Return a writer of messages and dead letters to the store."""
    settings = settings_of(app)
    return Outbox(connection_of(engine_of(app)), settings.namespace, bounds_of(settings))


def bounds_of(settings: Settings) -> Bounds:
    """Return the limits on kept dead letters of messages: their number and bytes."""
    return Bounds(settings.dead_letters, settings.dead_bytes)


def _ends_by_signal() -> bool:
    """Return whether a signal ends this process, a child of a pool, because its worker stops.

    Celery's hard time limit ends a child with the same signal. A node that reaches the limit must
    count as lost: if it were returned to the queue, it would start again endlessly.
    """
    # Older releases have no function for it.
    return bool(common._should_have_exited[0]) and not _is_overdue(current_task)  # noqa: SLF001


def _is_overdue(task: Any) -> bool:
    """Return whether this thread's task is near its hard time limit: the two clocks start a bit apart."""
    if not task:
        return False
    limits = [
        limit for limit in (task.time_limit, (task.request.timelimit or [None])[0]) if limit
    ]
    began = getattr(task.request, "began", None)
    return (
        bool(limits) and began is not None and time.monotonic() - began >= min(limits) * NEARLY
    )


def load_graphs(settings: Settings) -> None:
    """Import the modules that register graphs, also from the worker's working directory.

    Raises:
        DefinitionError: a module can't be imported.
    """
    with cwd_in_path():
        load(settings.graphs)


def pushes(app: Celery, settings: Settings) -> bool:
    """Return whether scripts can ring this app's queues: they are in the store's first database."""
    url = app.conf.broker_write_url
    options = app.conf.broker_transport_options or {}
    service = sentinels(settings.first_url)
    return (
        not (cluster(settings.first_url) or options.get("global_keyprefix"))
        and isinstance(url, str)
        and (service is None or options.get("master_name") == service.service)
        and same_database(url, as_broker(settings.first_url))
    )


def _forked() -> None:
    # The child has none of its parent's threads, so a lock that one of them held would stay held.
    global _lock  # noqa: PLW0603 - there is one of it in a process
    _lock = threading.Lock()
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
