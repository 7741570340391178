"""One engine for each process: a worker's own threads and its nodes share it, a child has its own."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from billiard import common
from celery import Celery, current_task
from celery.utils.imports import cwd_in_path

from runner.addresses import cluster, sentinels
from runner.codec import load_json
from runner.engine import Engine
from runner.registry import Registry, load, registry
from runner.settings import Settings, as_broker, same_database
from runner.store import open_store
from tasks.config import SETTINGS
from tasks.doorbells import CeleryDispatcher

NEARLY = 0.9
"""Part of a hard time limit from which on a signal counts as that of the limit."""

_lock = threading.Lock()
_engines: dict[Celery, Engine] = {}


def settings_of(app: Celery) -> Settings:
    """Return the settings that the app was equipped with; they came along to this process."""
    return Settings.model_construct(**load_json(app.conf[SETTINGS]))


def engine_of(app: Celery) -> Engine:
    """Return this process's engine for an app, made at first use.

    Raises:
        DefinitionError: a module of RUNNER_GRAPHS can't be imported.
    """
    found = _engines.get(app)
    if found is not None:
        return found
    with _lock:
        if app not in _engines:
            _engines[app] = _make(app, settings_of(app))
        return _engines[app]


def app_with(store: object) -> Celery | None:
    """Find the app whose engine in this process works on a store; None where no worker does."""
    return next((app for app, engine in list(_engines.items()) if engine.store is store), None)


def _make(app: Celery, settings: Settings) -> Engine:
    load_graphs(settings)
    store = open_store(
        settings.redis_url,
        lease=settings.lease,
        retention=settings.retention,
        push=pushes(app, settings),
        max_bytes=settings.max_result,
        max_state=settings.max_state,
        max_run=settings.max_run,
        patience=settings.lease,
        durability=settings.durability,
    )
    engine = Engine(store, CeleryDispatcher(app), registry)
    engine.told_to_end = _told_to_end
    return engine


def _told_to_end() -> bool:
    """Tell whether a signal ends this process, a child of a pool, because its worker stops.

    Celery's hard time limit ends a child with the same signal. A node that comes up against it must count as
    lost: given up, it would begin again for ever.
    """
    told = bool(common._should_have_exited[0])  # noqa: SLF001 - older releases have no function for it
    return told and not _is_overdue(current_task)


def _is_overdue(task: Any) -> bool:
    """Tell whether a task of this thread has come close to its hard time limit: clocks start a bit apart."""
    if not task:
        return False
    limits = [limit for limit in (task.time_limit, (task.request.timelimit or [None])[0]) if limit]
    began = getattr(task.request, "began", None)
    return bool(limits) and began is not None and time.monotonic() - began >= min(limits) * NEARLY


def load_graphs(settings: Settings) -> None:
    """Import the modules that register graphs, also from the folder that the worker was started in.

    Raises:
        DefinitionError: one can't be imported.
    """
    with cwd_in_path():
        load(settings.graphs)


def queues_of(known: Registry) -> list[str]:
    """Name the queues of every registered graph and of the graphs inside them."""
    plans = [plan for name in known.names() for plan in known.family(name)]
    return sorted({node.queue for plan in plans for node in plan.topology.nodes.values()})


def pushes(app: Celery, settings: Settings) -> bool:
    """Tell whether the store's scripts can ring this app's queues: same server, same database."""
    url = app.conf.broker_write_url or app.conf.broker_url
    if cluster(settings.redis_url):
        return False
    options, watched = app.conf.broker_transport_options or {}, sentinels(settings.redis_url)
    if options.get("global_keyprefix") or not isinstance(url, str):
        return False
    if watched is not None and options.get("master_name") != watched.service:
        return False
    return same_database(url, as_broker(settings.redis_url))


def _forked() -> None:
    # The child inherits neither the threads nor, for certain, a lock that is free.
    global _lock  # noqa: PLW0603 - there is one of it in a process
    _lock = threading.Lock()
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
