"""Celery's configuration for our own app, from our settings.

Messages are doorbells: the store knows what is to be done, and the sweeper rings again for every
message that is lost. So the broker's own care for messages (acknowledgement emulation on Redis,
result backends, ETA) is off: it costs two thirds of a worker's time and protects nothing here.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from runner.addresses import Sentinels, sentinels
from runner.graph import DEFAULT_QUEUE
from runner.settings import Settings

SETTINGS = "runner_settings_secret"
"""Where an app keeps our settings. Celery hides the value of a name like this from monitors."""

SOFT = 30.0
"""Seconds that nodes have at most in a worker that is told to end soon (SIGQUIT)."""

# A connection that died without a word is noticed after twice the interval. The time-out must not be longer:
# the worker's main loop sends heartbeats over such connections, and looks for dead ones in between.
REDIS_OPTIONS = {
    "ack_emulation": False,
    "health_check_interval": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "socket_timeout": 5,
}
REDIS = frozenset({"redis", "rediss", "sentinel", "valkey", "valkeys"})
ASKED_WITHIN = 1.0
"""Seconds that a Sentinel has to answer."""
RABBITMQ_OPTIONS = {"confirm_publish": True}


def celery_config(settings: Settings) -> dict[str, Any]:
    """Return Celery's settings for our own app."""
    return {
        "accept_content": ["json"],
        "broker_connection_retry_on_startup": True,
        "broker_url": settings.broker,
        "result_accept_content": ["json"],
        "result_backend": None,
        "task_acks_late": True,
        "task_default_queue": DEFAULT_QUEUE,
        "task_ignore_result": True,
        # Its event names the task, not the node, and races with those that name the node.
        "task_send_sent_event": False,
        "task_serializer": "json",
        # A fork would copy locks that the threads of the worker hold at that moment.
        "worker_pool_start_method": "spawn",
        # One message for each free slot: the others stay in the queue for other workers.
        "worker_prefetch_multiplier": 1,
        "worker_send_task_events": settings.events,
        "worker_soft_shutdown_timeout": min(SOFT, settings.shutdown_grace),
        SETTINGS: settings.model_dump_json(),
        **_transport(settings.broker, sentinels(settings.broker_url or settings.redis_url)),
    }


def is_redis(broker_url: str) -> bool:
    """Tell whether a broker URL names a Redis or Valkey."""
    return urlsplit(broker_url).scheme.partition("+")[0] in REDIS


def is_amqp(broker_url: str) -> bool:
    """Tell whether a broker URL names a RabbitMQ."""
    return urlsplit(broker_url).scheme in {"amqp", "amqps", "pyamqp"}


def _transport(broker_url: str, watched: Sentinels | None) -> dict[str, Any]:
    if is_redis(broker_url):
        # A refusal (no room on the disk, no replica) is over some day: a worker must not end of it.
        return {"broker_channel_error_retry": True, "broker_transport_options": _redis_options(watched)}
    return {"broker_transport_options": dict(RABBITMQ_OPTIONS), "task_default_queue_type": "quorum"}


def _redis_options(watched: Sentinels | None) -> dict[str, Any]:
    if watched is None:
        return dict(REDIS_OPTIONS)
    login = {"username": watched.sentinel_username, "password": watched.sentinel_password}
    asked = {"socket_timeout": ASKED_WITHIN, "socket_connect_timeout": ASKED_WITHIN, **login}
    return {**REDIS_OPTIONS, "master_name": watched.service, "sentinel_kwargs": asked}
