"""Doorbells: the Celery messages that tell a worker which visit is ready.

If the queue is in the store's own database, the store's scripts push doorbells. They fill in a
template that is made at worker start: the installed Celery writes a message, which is read back as
the installed worker would read it. Otherwise CeleryDispatcher publishes doorbells.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from celery import Celery
from celery.app.routes import Router
from celery.worker.request import Request

from runner.celery.config import CONNECT, broker_errors, is_redis, settings_of
from runner.celery.queues import declared, queues_of
from runner.definition.registry import Registry
from runner.errors import RunnerError, UsageError
from runner.records.codec import JSONObject
from runner.records.validation import one_line
from runner.store.interface import Doorbell
from runner.store.redis.doorbell_template import DoorbellTemplate

log = logging.getLogger(__name__)

NODE_TASK = "runner.node"

PRIORITIES = range(10)

COMPARED = (
    "id",
    "parent_id",
    "name",
    "args",
    "kwargs",
    "argsrepr",
    "delivery_info",
    "time_limits",
    "utc",
)

UNREADABLE = (
    "this app's Celery writes or reads doorbells in a way unknown here, so they are published one by one "
    "instead, which is slower but safe. If the app has no unusual task settings, please report this."
)

QUEUE = "queue"
"""The queue named in the message from which the template is made."""

PLACEHOLDER = re.compile(r"<<(\w+)>>")


class CeleryDispatcher:
    """Publishes doorbells over the app's own broker connections."""

    def __init__(self, app: Celery) -> None:
        """Keep the app; nothing is connected before the first doorbell is published."""
        self._app = app

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Publish one message for each doorbell.

        Raises:
            BrokerError: the broker can't be reached; the sweeper publishes the others later.
        """
        with broker_errors(), self._app.producer_or_acquire() as producer:
            producer.connection.ensure_connection(**CONNECT)
            name_of = settings_of(self._app).node_queue
            for bell in doorbells:
                _publish(self._app, bell, name_of(bell.queue), producer)

    def call(self, task: str, kwargs: Mapping[str, Any], task_id: str) -> bool:
        """Send another app's task by name, `task` or `task@queue`; without a queue the app's routes decide.

        Raises:
            BrokerError: the broker can't be reached.
        """
        name, _, queue = task.partition("@")
        route = {"queue": queue} if queue else {}
        with broker_errors(), self._app.producer_or_acquire() as producer:
            producer.connection.ensure_connection(**CONNECT)
            self._app.send_task(
                name, kwargs=dict(kwargs), task_id=task_id, producer=producer, **route
            )
        return True


def _publish(app: Celery, bell: Doorbell, queue: str, producer: Any) -> None:
    # 0 is our first priority, as on Redis; RabbitMQ takes the highest number first.
    priority = bell.priority if is_redis(producer.connection.as_uri()) else 9 - bell.priority
    node = app.tasks[NODE_TASK]
    # Neither `apply_async`, which a base class may override, nor the app's routes are used: an
    # expiry, a countdown or a link that applies to all tasks doesn't belong to a doorbell.
    app.send_task(
        NODE_TASK,
        task_id=bell.task_id,
        task_type=node,
        router=Router(app=app),
        # The declaration, not its name: under an unknown name Celery would begin to serve the
        # queue.
        queue=declared(app, queue),
        priority=priority,
        time_limit=node.time_limit,
        soft_time_limit=node.soft_time_limit,
        shadow=f"{bell.graph_id}/{bell.node}",
        argsrepr=f"visit={bell.visit} attempt={bell.attempt}",
        kwargsrepr="",
        ignore_result=True,
        # This holds whatever the app's own serializer is, because the store's scripts write JSON.
        serializer="json",
        producer=producer,
        retry=False,
    )


DROP = """
local messages, kept = redis.call('LRANGE', KEYS[1], -500, -1), {}
for _, message in ipairs(messages) do
  local id = message:match('"id": ?"([^"]*)"') or ''
  if id:sub(1, #ARGV[1]) ~= ARGV[1] then kept[#kept + 1] = message end
end
redis.call('LTRIM', KEYS[1], 0, -#messages - 1)
if #kept > 0 then redis.call('RPUSH', KEYS[1], unpack(kept)) end
return #messages - #kept"""
"""Deletes, of the next messages of a queue, those for tasks whose ids have a prefix."""


def drop_items(
    app: Celery, registry: Registry, task_id: str, delivery: Mapping[str, Any]
) -> None:
    """If the queue is in Redis, delete the next doorbells of a map that had an item cancelled.

    Where keys take turns, each doorbell has to arrive: there are no more than a window of them.
    """
    items, is_item, _ = task_id.rpartition("[")
    queue = delivery["routing_key"]
    is_shared = queue in map(settings_of(app).node_queue, queues_of(registry, shared=True))
    if not is_item or is_shared or not is_redis(app.conf.broker_url):
        return
    try:
        with app.producer_or_acquire() as producer:
            channel = producer.channel
            key = channel._q_for_pri(queue, delivery["priority"])  # noqa: SLF001 - as below
            key = f"{channel.global_keyprefix}{key}"
            while channel.client.eval(DROP, 1, key, f"{items}["):
                pass
    except Exception as error:  # noqa: BLE001 - the worker then takes each of them
        log.info("doorbells.kept: %s", one_line(error))


@lru_cache(1_000)
def visit_of(task_id: str) -> tuple[str, str, int, int]:
    """Parse `run.node.visit.attempt`; the node's id may hold dots.

    Raises:
        UsageError: the id has another form.
    """
    run_id, _, visit_name = task_id.partition(".")
    node, _, attempt = visit_name.rpartition(".")
    node, _, visit = node.rpartition(".")
    if not (run_id and node and visit.isdecimal() and attempt.isdecimal()):
        raise UsageError(
            f"a task {NODE_TASK} must have an id run.node.visit.attempt, not {task_id!r}."
        )
    return run_id, node, int(visit), int(attempt)


def make_template(app: Celery) -> DoorbellTemplate:
    """Return a doorbell as Celery writes it, with placeholders for the parts that vary.

    Raises:
        BrokerError: the broker can't be reached.
        RunnerError: a worker of this app would read the filled template differently.
    """
    try:
        with broker_errors(), app.connection_for_write() as connection:
            connection.ensure_connection(**CONNECT)
            with connection.channel() as channel:
                return _template(app, channel)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunnerError(f"{UNREADABLE} ({error!r})") from error


def _template(app: Celery, channel: Any) -> DoorbellTemplate:
    # Celery writes many more headers, and receivers of `before_task_publish` add some that hold for
    # one message only: an expiry, a trace, a tenant.
    written = _written(app, channel)
    headers = written["headers"]
    properties = written["properties"]
    queue = settings_of(app).node_queue("<<queue>>")
    limits = {"timelimit": headers["timelimit"]} if any(headers["timelimit"]) else {}
    message = {
        **written,
        "body": "[[],{},{}]",
        "headers": {
            **{name: headers[name] for name in ("lang", "task")},
            **{name: f"<<{name}>>" for name in ("id", "parent_id", "shadow", "argsrepr")},
            **limits,
        },
        "properties": {
            "body_encoding": properties["body_encoding"],
            "delivery_info": {**properties["delivery_info"], "routing_key": queue},
            "delivery_tag": "<<delivery_tag>>",
            "priority": "<<priority>>",
        },
    }
    text = json.dumps(message, separators=(",", ":"))
    for field in ("priority", "parent_id"):  # a number, and a text or null
        text = text.replace(f'"<<{field}>>"', f"<<{field}>>")
    pieces = PLACEHOLDER.split(text)
    _check(app, channel, written, pieces)
    suffixes = {p: channel._q_for_pri("", p) for p in PRIORITIES}  # noqa: SLF001 - no public way
    return DoorbellTemplate(pieces, suffixes, settings_of(app).node_queue(""))


def _written(app: Celery, channel: Any) -> JSONObject:
    """Publish through a channel that keeps the message instead of sending it."""
    messages: list[JSONObject] = []
    channel._put = lambda _queue, message, **_: messages.append(message)  # noqa: SLF001 - the last step of publishing
    channel.body_encoding = "utf-8"
    bell = Doorbell("0run", "node", 1, 1, QUEUE, 5, "graph")
    _publish(
        app,
        bell,
        settings_of(app).node_queue(QUEUE),
        app.amqp.Producer(channel, auto_declare=False),
    )
    return messages[0]


def _check(app: Celery, channel: Any, written: JSONObject, pieces: Sequence[str]) -> None:
    """Fill in the template and read it as a worker does: nothing may differ from Celery's own message."""
    values = {
        "id": written["headers"]["id"],
        "parent_id": json.dumps(written["headers"]["parent_id"]),
        "shadow": written["headers"]["shadow"],
        "argsrepr": written["headers"]["argsrepr"],
        "delivery_tag": written["properties"]["delivery_tag"],
        "priority": str(written["properties"]["priority"]),
        "queue": QUEUE,
    }
    text = "".join(values[piece] if index % 2 else piece for index, piece in enumerate(pieces))
    from_celery = _read(app, channel, written)
    from_template = _read(app, channel, json.loads(text))
    if from_celery != from_template:
        raise RunnerError(f"{UNREADABLE} It is read as {from_template}, not as {from_celery}.")


def _read(app: Celery, channel: Any, message: JSONObject) -> JSONObject:
    """Return the fields of a message as kombu and Celery's worker read them."""
    request = Request(channel.message_to_python(message), app=app, task=app.tasks[NODE_TASK])
    fields = {name: getattr(request, name) for name in COMPARED}
    return {**fields, "time_limits": list(fields["time_limits"])}
