"""The keeper: a light process that applies answers, starts and timers, and runs no nodes.

With a keeper, workers can be scaled to zero while there is nothing to run: it puts the doorbells of
ready nodes on their queues, whose length then starts workers. It runs the threads that a worker has
beside its nodes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from types import SimpleNamespace
from typing import Any

from celery import Celery, signals
from celery.app.utils import find_app
from celery.utils.imports import cwd_in_path
from celery.worker import state

from runner.celery.amqp import AmqpConsumer, Relay
from runner.celery.config import settings_of
from runner.celery.engines import load_graphs
from runner.celery.heartbeat import Heartbeat
from runner.celery.logs import format_logs
from runner.celery.startup import Startup
from runner.celery.stream_consumer import EarlyAnswerConsumer, StreamConsumer
from runner.celery.threads import Archiver, Sweeper, WorkerThread, check_archive, check_audit
from runner.errors import RunnerError

CHECK_EVERY = 0.25
"""Seconds between two checks whether the keeper is ready, or must stop."""


class KeeperStartup(Startup):
    """Publishes what a worker would, except that a template stored by workers stays."""

    role = "keeper"
    replaces_template = False

    def _check_queues(self) -> bool:
        return True  # it reads no queues


THREADS: tuple[type[WorkerThread], ...] = (
    StreamConsumer,
    EarlyAnswerConsumer,
    Sweeper,
    AmqpConsumer,
    Relay,
    Archiver,
)


class Keeper:
    """One keeper, which takes the worker's place for its threads."""

    concurrency = 0
    task_events = False
    consumer = None

    def __init__(self, app: Celery) -> None:
        """Keep the app whose broker it uses; nothing is connected yet."""
        self.app = app
        self.hostname = f"keeper-{os.getpid()}@{socket.gethostname()}"
        self.pool, self.pool_cls = SimpleNamespace(terminate_job=None), type(self)
        self._stopping = threading.Event()

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, and return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self.app.amqp.queues.deselect(list(self.app.amqp.queues))  # it reads no queues
        startup = KeeperStartup(self)
        heartbeat = Heartbeat(self)
        threads: list[WorkerThread] = [
            thread for kind in THREADS if (thread := kind(self)).include_if(self)
        ]
        for thread in (startup, *threads):
            thread.start(self)
        while state.should_stop is None:
            if startup.is_ready and heartbeat not in threads:
                # It starts last, because the probe file that it touches says that the keeper is
                # ready.
                heartbeat.start(self)
                threads.insert(0, heartbeat)
            self._stopping.wait(CHECK_EVERY)
        for thread in (startup, *reversed(threads)):
            thread.stop(self)
        signals.worker_shutdown.send(sender=self)
        return int(state.should_stop)

    def _stop(self, *_: Any) -> None:
        state.should_stop = 0
        self._stopping.set()


def main(name: str, level: str) -> int:
    """Run a keeper of the app with a name; see `runner keeper --help`."""
    try:
        with cwd_in_path():
            app = find_app(name)
        settings = settings_of(app)
        format_logs(settings)
        app.log.setup(loglevel=level.upper(), redirect_stdouts=False)
        check_archive(settings)
        check_audit(settings)
        load_graphs(settings)
    except (ModuleNotFoundError, AttributeError) as error:
        sys.exit(
            f"The keeper did not start: {error}. Name the app as for `celery -A`, not {name!r}."
        )
    except RunnerError as error:
        sys.exit(f"The keeper did not start: {error}")
    return Keeper(app).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
