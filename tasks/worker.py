"""What makes a Celery worker one of ours: tasks, threads, graphs and queues."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from celery import Celery, signals
from kombu import Queue
from pydantic import ValidationError

from runner.errors import RunnerError
from runner.registry import registry
from runner.settings import Settings
from tasks import nodes, refusals, reports, responses
from tasks.amqp import AmqpDoors
from tasks.announcing import Announcer
from tasks.config import SETTINGS, is_amqp, is_redis
from tasks.engines import load_graphs, queues_of, settings_of
from tasks.presence import Presence
from tasks.reconnects import forget_old_connections
from tasks.relay import Relay
from tasks.responses import Responses, outbox_of
from tasks.rubbish import guard
from tasks.sweeper import Sweeper
from tasks.tracebacks import share_code

THREADS = frozenset({AmqpDoors, Announcer, Presence, Relay, Responses, Sweeper})
CONSUMER = "celery.worker.consumer:Consumer"
"""What Celery has unless an app says otherwise."""
TASKS = (nodes.run_node, reports.report, reports.report_error, responses.respond, responses.start)


def equip(app: Celery) -> None:
    """Add what our workers do besides their tasks. The tasks are there since this was imported."""
    share_code()
    app.steps["worker"].update(THREADS)
    signals.celeryd_init.connect(_prepare, weak=False, dispatch_uid="runner")


def queue(name: str, broker_url: str) -> Queue:
    """Declare a queue of nodes: on RabbitMQ a quorum queue, which survives the loss of a server."""
    kind = {"x-queue-type": "quorum"} if is_amqp(broker_url) else None
    return Queue(name, routing_key=name, queue_arguments=kind)


def _prepare(instance: Any, conf: Any, **_: object) -> None:
    """Load the graphs before the worker looks at its queues: they name some of them."""
    if not instance.app.steps["worker"].issuperset(THREADS):
        return
    try:
        if SETTINGS not in conf:
            conf[SETTINGS] = Settings().model_dump_json()
        load_graphs(settings_of(instance.app))
        if conf.worker_consumer == CONSUMER:  # else the app has one of its own
            conf.worker_consumer = refusals.NAME
        if is_redis(conf.broker_url):
            forget_old_connections()
            guard(outbox_of(settings_of(instance.app).redis_url).bury)
        for name in queues_of(registry):
            instance.app.amqp.queues.select_add(queue(name, conf.broker_url))
    except (RunnerError, ValidationError) as error:
        sys.exit(f"The worker did not start: {error}")
    except Exception:  # noqa: BLE001 - Celery would log what a signal's receiver raises, and go on
        sys.exit(f"The worker did not start, for a graph can't be built.\n{traceback.format_exc()}")
