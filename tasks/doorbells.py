"""Ringing: a visit's wake-up as a Celery message, written by Celery itself.

Where the queue lies in the store's own database, the store's scripts ring. For that they fill in a
template, made at worker start from a message that the installed Celery wrote and that the installed
worker has read back. Everywhere else, CeleryDispatcher publishes.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.worker.request import Request
from kombu.exceptions import OperationalError

from runner.errors import BrokerError, RunnerError
from runner.graph import DEFAULT_QUEUE
from runner.ports import Doorbell
from runner.store.doorbell import PLACES, DoorbellTemplate
from tasks.config import is_redis

log = logging.getLogger(__name__)

NODE_TASK = "tasks.node"
PRIORITIES = range(10)
CONNECT = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.0}
"""A node's thread must not wait for a broker that is away: the sweeper rings again."""

# What a worker needs of a message. Celery writes many more headers; those that say nothing are left
# out, and so are those below, which only say where a message came from. `_check` has the last word.
HEADERS = ("lang", "task", "id", "parent_id", "shadow", "argsrepr")
ORIGIN = {"origin", "root_id", "kwargsrepr", "replaced_task_nesting", "ignore_result"}
PROPERTIES = ("body_encoding", "delivery_info", "delivery_tag", "priority")
NOTHING: tuple[Any, ...] = (None, 0, {}, [], [None, None])
SAME = (
    "id",
    "parent_id",
    "name",
    "args",
    "kwargs",
    "argsrepr",
    "delivery_info",
    "time_limits",
    "eta",
    "expires",
    "utc",
)

UNREADABLE = (
    "this app's Celery writes or reads doorbells in a way unknown here, so they are published one by one "
    "instead, which is slower but safe. Look for unusual task settings, else please report this."
)

PLACE = re.compile(r"<<(\w+)>>")


class CeleryDispatcher:
    """Rings by publishing, over the app's own broker connections."""

    def __init__(self, app: Celery) -> None:
        """Nothing is connected before the first doorbell."""
        self._app = app

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Publish a message for each.

        Raises:
            BrokerError: the broker can't be reached; those not published are rung by the sweeper.
        """
        try:
            with self._app.producer_or_acquire() as producer:
                producer.connection.ensure_connection(**CONNECT)
                for bell in doorbells:
                    _publish(self._app, bell, producer)
        except (OperationalError, OSError) as error:
            raise BrokerError(f"the broker could not be reached ({error}).") from error

    def call(self, task: str, kwargs: Mapping[str, Any], task_id: str) -> bool:
        """Send a task of somebody's by name, `task` or `task@queue`; without a queue the app's routes decide.

        Raises:
            BrokerError: the broker can't be reached.
        """
        name, _, queue = task.partition("@")
        to = {"queue": queue} if queue else {}
        try:
            with self._app.producer_or_acquire() as producer:
                producer.connection.ensure_connection(**CONNECT)
                self._app.send_task(name, kwargs=dict(kwargs), task_id=task_id, producer=producer, **to)
        except (OperationalError, OSError) as error:
            raise BrokerError(f"the broker could not be reached ({error}).") from error
        return True


def _publish(app: Celery, bell: Doorbell, producer: Any) -> None:
    # Our priority 0 comes first; so it does on Redis, but RabbitMQ takes the highest first.
    priority = bell.priority if is_redis(producer.connection.as_uri()) else 9 - bell.priority
    app.tasks[NODE_TASK].apply_async(
        task_id=bell.task_id,
        queue=bell.queue,
        priority=priority,
        shadow=f"{bell.graph_id}/{bell.node}",
        argsrepr=f"visit={bell.visit} attempt={bell.attempt}",
        kwargsrepr="",
        producer=producer,
        retry=False,
    )


def make_template(app: Celery) -> DoorbellTemplate:
    """Let Celery write a doorbell, and keep it with places for what changes.

    Raises:
        BrokerError: the broker can't be reached.
        RunnerError: a worker of this app would not read the message as it must.
    """
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(**CONNECT)
            with connection.channel() as channel:
                return _template(app, channel)
    except (OperationalError, OSError) as error:
        raise BrokerError(f"the broker could not be reached ({error}).") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunnerError(f"{UNREADABLE} ({error!r})") from error


def _template(app: Celery, channel: Any) -> DoorbellTemplate:
    written = _written(app, channel)
    text = json.dumps(_with_places(_shortened(written)), separators=(",", ":"))
    for bare in ("priority", "parent_id"):
        text = text.replace(f'"<<{bare}>>"', f"<<{bare}>>")
    parts = PLACE.split(text)
    _check(app, channel, written, parts)
    return DoorbellTemplate(parts, {p: channel._q_for_pri("", p) for p in PRIORITIES})  # noqa: SLF001 - no public way


def _written(app: Celery, channel: Any) -> dict[str, Any]:
    """Publish through a channel that keeps the message instead of sending it."""
    caught: list[dict[str, Any]] = []
    channel._put = lambda _queue, message, **_: caught.append(message)  # noqa: SLF001 - the last step of publishing
    channel.body_encoding = "utf-8"
    bell = Doorbell("0run", "node", 1, 1, DEFAULT_QUEUE, 5, "graph")
    _publish(app, bell, app.amqp.Producer(channel, auto_declare=False))
    return caught[0]


def _shortened(message: dict[str, Any]) -> dict[str, Any]:
    body = json.loads(message["body"])
    options = {name: value for name, value in body[2].items() if value is not None}
    return {
        **message,
        "body": json.dumps([*body[:2], options], separators=(",", ":")),
        "headers": {name: value for name, value in message["headers"].items() if _tells(name, value)},
        "properties": {name: message["properties"][name] for name in PROPERTIES},
    }


def _tells(header: str, value: object) -> bool:
    return header in HEADERS or (header not in ORIGIN and value not in NOTHING)


def _with_places(message: dict[str, Any]) -> dict[str, Any]:
    told = ("id", "parent_id", "shadow", "argsrepr")
    headers = {**message["headers"], **{name: f"<<{name}>>" for name in told}}
    properties = {
        **message["properties"],
        "delivery_tag": "<<delivery_tag>>",
        "priority": "<<priority>>",
        "delivery_info": {**message["properties"]["delivery_info"], "routing_key": "<<queue>>"},
    }
    return {**message, "headers": headers, "properties": properties}


def _check(app: Celery, channel: Any, written: dict[str, Any], parts: Sequence[str]) -> None:
    """Fill the template in, and read it as a worker does: nothing may differ from what Celery wrote."""
    told = {
        "id": written["headers"]["id"],
        "parent_id": json.dumps(written["headers"]["parent_id"]),
        "shadow": written["headers"]["shadow"],
        "argsrepr": written["headers"]["argsrepr"],
        "delivery_tag": written["properties"]["delivery_tag"],
        "priority": str(written["properties"]["priority"]),
        "queue": DEFAULT_QUEUE,
    }
    filled = "".join(told[part] if place % 2 else part for place, part in enumerate(parts))
    wanted, found = _read(app, channel, written), _read(app, channel, json.loads(filled))
    if wanted != found or set(parts[1::2]) != told.keys() or not PLACES.issuperset(told):
        raise RunnerError(f"{UNREADABLE} It is read as {found}, not as {wanted}.")


def _read(app: Celery, channel: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Read a message through kombu and Celery's worker."""
    received = channel.message_to_python(message)
    request = Request(received, app=app, task=app.tasks[NODE_TASK])
    found = {name: getattr(request, name) for name in SAME}
    return {**found, "time_limits": list(found["time_limits"])}
