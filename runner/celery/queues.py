"""The queues of a worker: its graphs' queues, or those named by its option --queues.

A worker gets only nodes that it can run, so services with different graphs can share a broker, and
the length of a graph's queue is its backlog.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from celery import Celery, signals
from celery.utils.text import str_to_list
from kombu import Queue
from kombu.exceptions import OperationalError

from runner.celery.config import CONNECT, is_amqp, is_redis, settings_of
from runner.definition.registry import Registry
from runner.errors import BrokerError, UsageError

log = logging.getLogger(__name__)


def queues_of(registry: Registry, *, shared: bool = False) -> list[str]:
    """Return the queues of every registered graph and of the graphs inside them.

    With `shared`, only the queues of graphs whose keys take turns.
    """
    plans = [plan for name in registry.names() for plan in registry.family(name)]
    shapes = [plan.topology for plan in plans if plan.topology.fairness or not shared]
    return sorted({node.queue for shape in shapes for node in shape.nodes.values()})


def tasks_of(app: Celery, registry: Registry) -> dict[str, str]:
    """Return the queues on which nodes of this app send Celery tasks, each with the name of one."""
    return {
        queue: spec.executor.name
        for name in registry.names()
        for plan in registry.family(name)
        for spec in plan.definition.nodes.values()
        if spec.item().kind == "celery" and (queue := spec.executor.queue(app))
    }


def priorities_of(app: Celery, registry: Registry) -> dict[str, set[int]]:
    """Return the priorities of the nodes of each queue, by its name on the broker."""
    priorities: dict[str, set[int]] = {}
    for name in registry.names():
        for plan in registry.family(name):
            for node in plan.topology.nodes.values():
                priorities.setdefault(settings_of(app).node_queue(node.queue), set()).add(
                    node.priority
                )
    return priorities


def declared(app: Celery, name: str) -> Queue:
    """Return a queue as all our processes declare it; on RabbitMQ nodes' queues survive the loss of a server.

    The queue of messages is one that a Celery client without settings declares in the same way when it sends
    one: RabbitMQ refuses a second declaration that differs.
    """
    is_quorum = is_amqp(app.conf.broker_url) and name != settings_of(app).messages_queue
    return Queue(
        name,
        routing_key=name,
        queue_arguments={"x-queue-type": "quorum"} if is_quorum else None,
    )


def add_queues(
    app: Celery, registry: Registry, worker: Any, options: Mapping[str, Any]
) -> None:
    """Make a worker that is about to select its queues also serve our nodes' queues.

    Without --queues it serves its app's own queues, its graphs' queues and our message queue. With
    it, it serves the named ones: `--queues gpu` means the app's queue `gpu` and the queue of nodes
    with `queue="gpu"`.
    """
    settings = settings_of(app)
    chosen_names, exclude_queues = (
        set(str_to_list(options.get(name)) or ()) for name in ("queues", "exclude_queues")
    )
    if chosen_names:
        prefix = settings.node_queue("")
        chosen = {name if name.startswith(prefix) else prefix + name for name in chosen_names}
        graph_queues = set(map(settings.node_queue, queues_of(registry)))
        missing = sorted(graph_queues) if graph_queues.isdisjoint(chosen) else ()
        add = partial(_add_named, app, chosen, missing)
        signals.celeryd_after_setup.connect(add, sender=worker.hostname, weak=False)
        return
    queues = set(queues_of(registry)) - exclude_queues
    _add(app, {settings.messages_queue, *map(settings.node_queue, queues)} - exclude_queues)


def _add_named(app: Celery, names: Iterable[str], missing: Sequence[str], **_: object) -> None:
    """Add queues once Celery has selected the command's queues and set up its log."""
    _add(app, names)
    if missing:
        log.warning(
            "queues.unserved: this worker has graphs, but its --queues (-Q) name none of their queues, so it "
            "runs no nodes. If it should, add these to --queues: %s",
            ",".join(missing),
        )


def _add(app: Celery, names: Iterable[str]) -> None:
    for name in sorted(names):
        app.amqp.queues.select_add(declared(app, name))


def check_queues(app: Celery) -> None:
    """Refuse a queue named like another Redis key: a worker would fail to read it again and again.

    Raises:
        UsageError: a queue is named so. BrokerError: the broker can't be reached.
    """
    if not is_redis(app.conf.broker_read_url):
        return
    with app.connection_for_read() as connection:
        try:
            connection.ensure_connection(**CONNECT)
            with connection.channel() as channel:
                for name in sorted(app.amqp.queues.consume_from):
                    _check_queue(name, channel.client, connection.channel_errors)
        except (OperationalError, *connection.connection_errors) as error:
            raise BrokerError(f"the broker could not be reached ({error}).") from error


def _check_queue(name: str, client: Any, errors: tuple[type[Exception], ...]) -> None:
    try:
        client.llen(name)
    except errors as error:
        if "WRONGTYPE" in str(error):  # any other refusal says nothing about the key
            raise UsageError(
                f"the queue {name!r} can't be read: the broker's key of that name isn't a list. Give "
                "the queue another name, or delete the key if nothing needs it."
            ) from error
