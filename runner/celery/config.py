"""Celery's configuration for our own app, made from our settings.

Messages are doorbells: the store has the work, and the sweeper replaces every message that is lost.
So the broker's own safeguards for messages (acknowledgement emulation on Redis, result backends,
ETA) are off: they cost two thirds of a worker's time and protect nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import AMQPError
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES

from runner.errors import BrokerError
from runner.records.codec import load_json
from runner.settings import Settings, rabbitmq_tls
from runner.store.addresses import NAMESPACE, Sentinels, cluster, sentinels

# Set here because children of a prefork pool import this module, too.
TRANSPORT_ALIASES.update(
    rediscluster="runner.celery.redis_cluster:ClusterTransport",
    sqs="runner.celery.sqs:SqsTransport",
)

SETTINGS = "runner_settings_secret"
"""The key of our settings in an app's configuration; Celery hides values with such names from monitors."""

SOFT_SHUTDOWN = 30.0
"""Most seconds that nodes get in a worker that receives SIGQUIT."""

CHILD_STARTS_WITHIN = 120.0
"""Seconds that a process of a prefork pool may take to start."""

CONNECT = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.0}
"""Connection options for publishing: a node's thread must not wait for a broker that is away."""

# A half-open connection is noticed after twice the interval. The timeout must not be longer: the
# worker's main loop sends heartbeats over such connections, and looks for dead ones in between.
REDIS_OPTIONS = {
    "ack_emulation": False,
    "health_check_interval": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "socket_timeout": 5,
}

BROKEN = (AMQPError, OperationalError, OSError)
"""Errors of a broker that is away or refuses."""

REDIS = frozenset({"redis", "rediss", "sentinel", "rediscluster"})

SENTINEL_TIMEOUT = 1.0
"""Seconds that a Sentinel has to answer."""

SQS: dict[str, Any] = {
    "broker_transport_options": {
        # boto's own timeouts are minutes long and would hold up the node's thread that publishes.
        "client-config": {
            "connect_timeout": 5,
            "read_timeout": 15,
            "retries": {"total_max_attempts": 2},
        },
        # Seconds after a poll without a message, and while all slots are busy. kombu's default is
        # 1.
        "polling_interval": 0.2,
    },
    # On SQS these would make a queue for each worker, and publish messages that no process can
    # read.
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
}

RABBITMQ_OPTIONS = {"confirm_publish": True}


@contextmanager
def broker_errors(release: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Release the connection if the broker can't be reached.

    Raises:
        BrokerError: the broker can't be reached.
    """
    try:
        yield
    except BROKEN as error:
        release()
        raise BrokerError(f"the broker could not be reached ({error}).") from error


def celery_config(settings: Settings) -> dict[str, Any]:
    return {
        "accept_content": ["json"],
        "broker_connection_retry_on_startup": True,
        "broker_url": settings.broker,
        "result_accept_content": ["json"],
        "result_backend": None,
        "task_acks_late": True,
        "task_default_queue": settings.messages_queue,
        "task_ignore_result": True,
        # This event names the task, not the node, and races with the events that name the node.
        "task_send_sent_event": False,
        "task_serializer": "json",
        # A fork would copy locks that the worker's threads hold at that moment.
        "worker_pool_start_method": "spawn",
        # Celery's 4 seconds are too few for a child that imports graphs on a busy machine: it would
        # be killed and restarted endlessly.
        "worker_proc_alive_timeout": CHILD_STARTS_WITHIN,
        # One message for each free slot: the others stay in the queue for other workers.
        "worker_prefetch_multiplier": 1,
        "worker_send_task_events": settings.events is not False,
        "worker_soft_shutdown_timeout": min(SOFT_SHUTDOWN, settings.shutdown_grace),
        SETTINGS: settings.model_dump_json(),
        **_exchanges(settings.namespace),
        **_transport(settings),
    }


def settings_of(app: Celery) -> Settings:
    """Return the runner's settings of an app; its configuration carries them to child processes."""
    try:
        document = app.conf[SETTINGS]
    except KeyError:  # an app on which `install` was called, outside of a worker
        return Settings()
    return Settings.model_construct(**load_json(document))


def _exchanges(namespace: str) -> dict[str, Any]:
    """Keep workers of different namespaces apart in remote control and events, too."""
    if namespace == NAMESPACE:
        return {}
    return {"control_exchange": namespace, "event_exchange": f"{namespace}.events"}


def is_redis(broker_url: str | Sequence[str]) -> bool:
    return scheme(broker_url) in REDIS


def is_amqp(broker_url: str | Sequence[str]) -> bool:
    return scheme(broker_url) in {"amqp", "amqps", "pyamqp"}


def is_sqs(broker_url: str | Sequence[str]) -> bool:
    return scheme(broker_url) == "sqs"


def scheme(broker_url: str | Sequence[str]) -> str:
    """Return the URL scheme of a broker; of several, between which kombu fails over, the first one's."""
    url = broker_url if isinstance(broker_url, str) else broker_url[0]
    return url.partition("://")[0].partition("+")[0]


def _transport(settings: Settings) -> dict[str, Any]:
    broker_url = settings.broker
    url = settings.broker_url or settings.first_url
    if servers := cluster(url):
        # With one hash tag all queues are on one server, as kombu's commands require.
        options = {
            "hosts": list(servers.hosts),
            "global_keyprefix": f"{{{settings.namespace}}}:",
        }
        return {
            "broker_transport_options": {**REDIS_OPTIONS, **options},
            **({"broker_use_ssl": {"ssl_cert_reqs": "required"}} if servers.tls else {}),
        }
    if is_redis(broker_url):
        service = sentinels(url)
        return {
            "broker_transport_options": _redis_options(service),
            **({"broker_use_ssl": dict(service.tls)} if service and service.tls else {}),
        }
    if is_sqs(broker_url):
        return dict(SQS)
    return {
        "broker_transport_options": dict(RABBITMQ_OPTIONS),
        **({"broker_use_ssl": tls} if (tls := rabbitmq_tls(broker_url)) else {}),
    }


def _redis_options(service: Sentinels | None) -> dict[str, Any]:
    if service is None:
        return dict(REDIS_OPTIONS)
    options = {
        "socket_timeout": SENTINEL_TIMEOUT,
        "socket_connect_timeout": SENTINEL_TIMEOUT,
        **service.login_of_sentinels,
    }
    return {**REDIS_OPTIONS, "master_name": service.service, "sentinel_kwargs": options}
