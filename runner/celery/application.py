"""The Celery app: `celery --app runner.celery worker`.

`install` turns an app, ours or a user's, into one with runner workers. It adds the threads beside
the tasks and the queues of the graphs; the tasks were registered when their modules were imported.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import click
from celery import Celery, signals
from celery.apps import worker
from celery.concurrency import get_implementation
from kombu.serialization import prepare_accept_content
from kombu.utils.objects import cached_property

from runner.celery.amqp import AmqpConsumer, Relay
from runner.celery.config import (
    SETTINGS,
    celery_config,
    is_redis,
    is_sqs,
    scheme,
    settings_of,
)
from runner.celery.engines import collect_less, load_graphs
from runner.celery.heartbeat import Heartbeat
from runner.celery.inline_continuation import continue_in_children
from runner.celery.kombu_fixes import (
    forget_old_connections,
    restart_semaphore_tracker,
    use_safe_channel,
)
from runner.celery.logs import format_logs
from runner.celery.monitors import MonitoredDispatcher
from runner.celery.queues import add_queues, priorities_of
from runner.celery.startup import Startup
from runner.celery.stream_consumer import EarlyAnswerConsumer, StreamConsumer
from runner.celery.tasks import end_revoked
from runner.celery.threads import Archiver, Sweeper, check_archive, check_audit
from runner.definition.registry import registry
from runner.errors import RunnerError
from runner.settings import Settings

log = logging.getLogger(__name__)

THREADS = frozenset(
    {
        AmqpConsumer,
        Archiver,
        EarlyAnswerConsumer,
        Heartbeat,
        Relay,
        Startup,
        StreamConsumer,
        Sweeper,
    }
)

CELERY_CONSUMER = "celery.worker.consumer:Consumer"
"""The setting `worker_consumer` of an app that doesn't choose another class."""

CONSUMER = "runner.celery.safe_consumer:SafeConsumer"

POOL = "threads"

SLOTS = {"celery.concurrency.thread": 100, "runner.celery.async_pool": 1000}
"""Nodes that run at once by default, by the pool's module: they mostly wait for models and services."""


SWITCH_INTERVAL = 0.001
"""Seconds a worker's thread may run before another one that waits for the interpreter lock."""

PYTHONS_INTERVAL = 0.005
"""Python's default, unless a program chose another one."""


def install(app: Celery) -> None:
    """Add a worker's threads to an app, and load the graphs when a worker starts."""
    app.steps["worker"].update(THREADS)
    signals.celeryd_init.connect(_prepare, weak=False, dispatch_uid="runner")
    signals.worker_init.connect(_prepare_embedded, weak=False, dispatch_uid="runner")
    signals.task_revoked.connect(end_revoked, weak=False, dispatch_uid="runner")


def _prepare(instance: Any, conf: Any, options: Mapping[str, Any], **_: object) -> None:
    """Load the graphs before the worker selects its queues, because graphs name some of them."""
    app = instance.app
    if not app.steps["worker"].issuperset(THREADS):
        return
    if conf.task_always_eager:
        sys.exit(
            "The worker did not start: task_always_eager is on in its app, so nodes would run inside one "
            "another. Turn it off for workers."
        )
    if "application/json" not in prepare_accept_content(conf.accept_content):
        sys.exit(
            "The worker did not start: accept_content of its app lacks json, the format of nodes and "
            'answers. Add "json" to it; your own tasks keep their task_serializer.'
        )
    try:
        if SETTINGS not in conf:
            conf[SETTINGS] = Settings().model_dump_json()
        settings = settings_of(app)
        format_logs(settings)
        check_archive(settings)
        check_audit(settings)
        _switch_sooner()
        load_graphs(settings)
        if not registry.names():
            _report_no_graphs(app)
        if conf.worker_consumer == CELERY_CONSUMER:
            conf.worker_consumer = CONSUMER
        continue_in_children()
        restart_semaphore_tracker()
        if is_redis(conf.broker_url):
            # A refusal (the disk is full, no replica) is temporary, and must not end the worker.
            conf.broker_channel_error_retry = True
            forget_old_connections()
            use_safe_channel(app, priorities_of(app, registry))
            # Elsewhere no reply counts all who listen: not RabbitMQ's, nor that of a cluster's server.
            if settings.events is None and scheme(conf.broker_url) != "rediscluster":
                app.events.dispatcher_cls = MonitoredDispatcher
        if is_sqs(conf.broker_url):
            from runner.celery.sqs import check_queues  # noqa: PLC0415 - an extra has its packages

            check_queues(app, priorities_of(app, registry))
        add_queues(app, registry, instance, options)
        collect_less()
    except RunnerError as error:
        sys.exit(f"The worker did not start: {error}")
    except Exception:  # noqa: BLE001 - Celery would log the error of a signal's receiver, and go on
        sys.exit(f"The worker did not start; please report this.\n{traceback.format_exc()}")


@signals.import_modules.connect
def _format_in_child(sender: Any, **_: object) -> None:
    """Format the log of a prefork pool's child, a fresh interpreter, before Celery sets it up."""
    if sender.conf.get(SETTINGS):  # a fresh app only has it once asked
        format_logs(settings_of(sender))


def _prepare_embedded(sender: Any, **_: object) -> None:
    """Prepare Celery's own worker for tests, which sends no `celeryd_init`."""
    if not isinstance(sender, worker.Worker):
        _prepare(sender, sender.app.conf, {})


def _switch_sooner() -> None:
    """Let replies from the store or the broker wait one millisecond, not five, while a node computes.

    Beside a thread that computes, the median round trip to Redis took 5 ms with Python's own
    interval and less than 1 ms with this one; threads that only compute get three percent less
    done.
    """
    if sys.getswitchinterval() == PYTHONS_INTERVAL:
        sys.setswitchinterval(SWITCH_INTERVAL)


NO_GRAPHS = "it has no graphs. Name the modules that register yours in RUNNER_GRAPHS."


def _report_no_graphs(app: Celery) -> None:
    """Refuse a worker that has nothing to do; one whose app has other tasks works without graphs."""
    app.finalize()
    if all(name.startswith(("celery.", "runner.")) for name in app.tasks):
        sys.stderr.write(f"The worker did not start: {NO_GRAPHS}\n")
        sys.exit(2)
    # Celery sets up its log later.
    signals.celeryd_after_setup.connect(_warn_of_no_graphs, weak=False, dispatch_uid="runner")


def _warn_of_no_graphs(**_: object) -> None:
    log.warning("graphs.none: this worker runs its own tasks and no nodes, for %s", NO_GRAPHS)


HEARTBEAT = 4.0
"""Seconds between the events that show a worker to Flower; Celery sends one every 2 s per worker."""


class RunnerWorker(worker.Worker):
    """A worker with threads unless its command names another pool; without gossip and mingle."""

    def __init__(
        self, app: Celery | None = None, hostname: str | None = None, **options: Any
    ) -> None:
        pool = options.get("pool") or options.get("pool_cls")
        if pool is None or _is_default("pool"):
            pool = POOL
        options |= {"pool": pool, "pool_cls": None}
        kind = get_implementation(pool)
        options["concurrency"] = options.get("concurrency") or SLOTS.get(kind.__module__)
        # These two add a second to the start, and traffic among workers. Ours find everything in
        # the store.
        options |= {"without_gossip": True, "without_mingle": True}
        options["heartbeat_interval"] = options.get("heartbeat_interval") or HEARTBEAT
        super().__init__(app, hostname, **options)


def _is_default(option: str) -> bool:
    """Return whether the command line lacks an option; Celery passes the default as if it were given."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source(option) if context is not None else None
    return source is click.core.ParameterSource.DEFAULT


class RunnerApp(Celery):
    """Celery with our defaults for workers."""

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        """The class of this app's workers."""
        return self.subclass_with_self(RunnerWorker)


def make_app(settings: Settings | None = None) -> Celery:
    """Build an app from `settings`, or from the `RUNNER_*` variables."""
    app = RunnerApp("runner")
    app.config_from_object(celery_config(settings or Settings()))
    install(app)
    return app
