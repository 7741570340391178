"""A worker's heartbeat: its pool, queues and graphs, for `runner workers` and `runner doctor`.

The thread ends last, after the pool. So a stopping worker stays listed until its nodes have ended,
and a hanging one stays listed. As it lives longest, it also does the worker's other small chores.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import Counter
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from celery import signals
from celery.worker import state

from runner.celery.config import is_redis
from runner.celery.doorbells import NODE_TASK
from runner.celery.engines import connection_of
from runner.celery.inline_continuation import forbid_continuing, take_unused, wait_softly
from runner.celery.kombu_fixes import end_starting_children, ignore_terminate_job
from runner.celery.queues import queues_of, tasks_of
from runner.celery.shutdown import Shutdown, stopping
from runner.celery.startup import Publisher
from runner.celery.threads import ENDS_WITHIN, WorkerThread
from runner.errors import RunnerError
from runner.records.json_form import span
from runner.records.workers import EVERY, KEEPER, Worker
from runner.store.redis.singleton_locks import SingletonLocks
from runner.store.redis.workers import WorkerRegistry, described
from runner.store.requests import ShareSlots

log = logging.getLogger(__name__)

VISIBILITY = 3600.0
"""Seconds until kombu delivers a message of a Redis broker again."""

CHECK_EVERY = 0.5
"""Seconds between checks whether the worker stops: a busy solo worker runs no code of its own."""

TIDY_EVERY = 3600.0
"""Seconds between removals of long-gone workers from the list; a starting worker does them."""

LOST_CHECK_EVERY = 60.0
"""Seconds between checks whether the store still has the data this worker published.

A worker that the store no longer lists checks at its next heartbeat.
"""

TOUCHED_EVERY = 5.0
"""Seconds between touches of the file that probes check."""

JUMPED = (
    ("back", "Work that was due before comes that much later. New work goes on."),
    (
        "forward",
        "Running nodes begin again, and work that was due within that time is due now.",
    ),
)
"""The direction of a jump, and its effect: back first."""

DISTRIBUTION = "celery-graph-runner"


class AliveFile:
    """The file of RUNNER_ALIVE_FILE: created at the first heartbeat, kept fresh while the process lives."""

    def __init__(self, path: str) -> None:
        """Remove the file of an earlier process; without a path there is no file."""
        self._path = Path(path) if path else None
        self._due = math.inf
        self.remove()

    def create(self) -> None:
        """Create the file unless it was created before."""
        if self._due == math.inf:
            self._due = 0.0
            self.touch()

    def touch(self) -> None:
        """Touch the file when due, once it was created."""
        if self._path is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + TOUCHED_EVERY
        try:
            self._path.touch()
        except OSError as error:
            log.warning(
                "alive_file.failed: %s can't be written: %s. Probes will fail.",
                self._path,
                error,
            )

    def remove(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


class Heartbeat(WorkerThread):
    """Tells the store every ten seconds that this worker is alive.

    It also touches the file for probes, watches the stop of the worker (`Shutdown`) and the store's
    clock, publishes again what the store has lost, and returns claims that no task will start.
    """

    label = "heartbeat"

    def prepare(self, worker: Any) -> None:
        """Describe the constant fields, and watch for the worker's end."""
        redis = connection_of(self.engine)
        namespace = self.settings.namespace
        self._workers = WorkerRegistry(redis, namespace)
        self._locks = SingletonLocks(redis, namespace)
        self._worker, self._description = worker, self._describe(worker)
        self._shared = queues_of(self.engine.registry, shared=True)
        self._publisher = Publisher(worker.app, self.engine, self.settings)
        self._tidied = False
        self._pool_ended = threading.Event()
        self._due = 0.0
        self._lost_check_due = 0.0
        self._offset = 0
        self._rate = ""
        self._alive_file = AliveFile(self.settings.alive_file)
        ignore_terminate_job(worker.pool)
        worker.wait_for_soft_shutdown = partial(wait_softly, worker)
        self._shutdown = Shutdown(self.engine, self.settings.shutdown_grace)
        signals.worker_shutdown.connect(self._end, sender=worker)

    def stop(self, worker: Any) -> None:
        """Begin to stop, without waiting: the pool stops after this step, and takes as long as its nodes."""
        self.stopping.set()
        end_starting_children(worker.pool)

    terminate = stop

    def run_once(self) -> None:
        """Write the heartbeat when due, and pause."""
        # This comes before any call to the store: Kubernetes must not restart workers when Redis
        # restarts.
        self._alive_file.touch()
        self._beat()
        self._alive_file.create()
        if time.monotonic() >= self._lost_check_due:
            if self._tidied:
                self._publisher.publish_again()
            elif self._locks.acquire("tidy", TIDY_EVERY):
                self._workers.tidy()
            self._tidied = True
            self._lost_check_due = time.monotonic() + LOST_CHECK_EVERY
        self.stopping.wait(CHECK_EVERY)

    def release(self) -> None:
        """Remove the worker from the list once its pool has stopped; it did not die."""
        while not self._pool_ended.wait(CHECK_EVERY):
            self._alive_file.touch()
            try:
                self._beat()
            except RunnerError as error:
                log.info("heartbeat.waits: %s", error)
        self.engine.leave(take_unused(pool_ended=True))
        self._alive_file.remove()
        self._workers.leave(self._description)

    def _beat(self) -> None:
        """Write the heartbeat when it is due, or when the worker has begun to stop."""
        was_stopping = bool(self._shutdown.elapsed)
        if stopping():
            forbid_continuing()
        self._shutdown.check()
        self.engine.leave(take_unused())
        elapsed = self._shutdown.elapsed
        if time.monotonic() < self._due and was_stopping == bool(elapsed):
            return
        active = list(state.active_requests)
        nodes = [request for request in active if request.type == NODE_TASK]
        longest = time.time() - min(
            (request.time_start or math.inf for request in nodes), default=math.inf
        )
        now = {
            "busy": len(active),
            "executing": Counter(request.delivery_info["routing_key"] for request in nodes),
            "longest": round(max(0.0, longest), 3),
            "stopping": round(elapsed, 3),
        }
        # Remote control changes all of this. A worker that starts or stops has no consumer.
        worker, consumer = self._worker, self._worker.consumer
        rate = now["rate"] = (
            ""
            if worker.app.conf.worker_disable_rate_limits
            else worker.app.tasks[NODE_TASK].rate_limit or ""
        )
        if rate and rate != self._rate:
            log.warning(
                "nodes.slowed: %s for all nodes of this worker together, by its app "
                "(task_default_rate_limit, task_annotations) or by remote control, such as Flower's. Limit "
                "your own tasks by name instead, and nodes with `limits=`.",
                rate,
            )
        self._rate = rate
        if tasks := getattr(consumer, "task_consumer", None):
            groups = getattr(
                consumer.event_dispatcher, "groups", ()
            )  # none while it reconnects
            scaler = worker.autoscaler
            now["queues"] = sorted(queue.name for queue in tasks.queues)
            now["events"] = not groups or "task" in groups
            now["slots"] = scaler.max_concurrency if scaler else worker.pool.num_processes
        if self._workers.enter({**self._description, **now}, time.time_ns() // 1_000_000):
            self._lost_check_due = 0.0
        self._watch_clock()
        self._share_slots()
        self._due = time.monotonic() + EVERY

    def _watch_clock(self) -> None:
        """Warn if the clock of the store's server has jumped by more than a lease."""
        offset = self._workers.now() - time.monotonic_ns() // 1_000_000
        jump = offset - (self._offset or offset)
        self._offset = offset
        if abs(jump) > self.engine.store.lease_ms:
            way, then = JUMPED[jump > 0]
            log.warning(
                "clock.jumped: the clock of the store went %s by %s. %s",
                way,
                span(abs(jump)),
                then,
            )

    def _share_slots(self) -> None:
        """Write how many slots serve the queues whose keys take turns; one worker per service does this."""
        if not self._shared or not self._locks.acquire(
            f"slots:{','.join(self._shared)}", EVERY
        ):
            return
        now = self._workers.now()
        alive = [worker for worker in self._workers.all() if worker.alive(now)]
        self.engine.do(
            ShareSlots(
                {
                    queue: sum(
                        worker.slots
                        for worker in alive
                        if self.settings.node_queue(queue) in worker.queues
                    )
                    for queue in self._shared
                }
            )
        )

    def _end(self, **_: object) -> None:
        self._pool_ended.set()
        if self._thread is not None and self.stopping.is_set():
            self._thread.join(ENDS_WITHIN)

    def _describe(self, worker: Any) -> dict[str, Any]:
        registry = self.engine.registry
        return described(
            Worker(
                name=str(worker.hostname),
                pid=os.getpid(),
                pool=_pool(worker.pool_cls) if worker.concurrency else KEEPER,
                slots=int(worker.concurrency),
                partitions=len(self.settings.partition_addresses),
                queues=sorted(worker.app.amqp.queues.consume_from),
                wants=[
                    self.settings.node_queue(name)
                    for name in queues_of(registry)
                    if worker.concurrency
                ],
                tasks=tasks_of(worker.app, registry),
                graphs={
                    name: registry.get(name).topology.fingerprint for name in registry.names()
                },
                accepts=sorted(str(kind) for kind in worker.app.conf.accept_content),
                events=bool(worker.task_events),
                lease=self.settings.lease,
                sweep_interval=self.settings.sweep_interval,
                grace=self.settings.shutdown_grace,
                visibility=_visibility(worker.app),
                version=metadata.version(DISTRIBUTION),
                started=time.time_ns() // 1_000_000,
            )
        )


def _pool(kind: Any) -> str:
    """Return the pool's name as the option `--pool` spells it."""
    name = str(kind.__module__).rpartition(".")[2]
    return {"thread": "threads", "async_pool": "async"}.get(name, name)


def _visibility(app: Any) -> float:
    """Return the seconds after which the broker delivers a message again; 0 if it never does."""
    options = app.conf.broker_transport_options or {}
    if not is_redis(app.conf.broker_read_url) or options.get("ack_emulation") is False:
        return 0.0
    return float(options.get("visibility_timeout", VISIBILITY))
