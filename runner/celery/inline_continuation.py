"""Inline continuation: a node claimed by a settle runs next on the slot that becomes free.

It is a Celery task in its own right: Celery's tracer runs it under its own id, and the request of the
previous task becomes its request, so events, `inspect`, `revoke` and logs know it as any other. The
pool's job and the delivery of the doorbell that began the sequence stay the same, and the last task
acknowledges: one delivery for each slot in use, so the worker fetches nothing for a slot that isn't
free.

On every pool the value of a Celery task reaches its request, so a task uses its value to report which
visit its settle has claimed. A thread's slot and a solo worker run it at once. A claim that does not
start is returned to the queue; if the worker dies, the lease runs out.

A child of a prefork pool begins the task itself and says so to the main process, which then starts
Celery's time limits again. While `Permission` denies it, the main process gives the task to the pool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any
from urllib.parse import quote, unquote

from billiard.pool import ACK, READY, TASK
from billiard.sharedctypes import RawArray, RawValue
from celery import bootsteps, signals
from celery.app.task import Context
from celery.app.trace import LOG_RECEIVED, fast_trace_task, trace_task_ret
from celery.concurrency import asynpool, prefork
from celery.concurrency.base import apply_target
from celery.worker import state
from celery.worker.request import Request

from runner.celery.doorbells import NODE_TASK, visit_of
from runner.celery.kombu_fixes import with_time_limits
from runner.celery.logs import log_received
from runner.celery.shutdown import stop_softly, stopping
from runner.store.interface import Claim, Token

log = logging.getLogger(__name__)

MAX_NODES = 8
"""Nodes in sequence on one slot; then the queue gets its turn, unless another slot is free for it."""

MAX_SECONDS = 10.0
"""Seconds after which a sequence also ends: RabbitMQ limits how long a delivery stays unacknowledged."""

BUDGET = "runner_stay"
"""The header with the number of nodes that may still follow, and until when (`time.monotonic`)."""

CLAIMED = "runner_claimed"
"""The header of a node that continues inline: the nonce and fence of its claim."""

KNOWN = {*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression"}
"""Celery's own headers: it looks for others in each task, slowly, unless they are given."""

MARK = "runner.next"
"""The beginning of a task's value that names the next visit on its slot."""

BEGUN = 77
"""The kind of a child's message that it has begun its next task; billiard and Celery use small numbers."""

SHARE_OF_LIMIT = 0.5
"""The share of a time limit after which a child begins no task: a late signal would hit that one."""

PERMISSION_LASTS = 1.0
"""Seconds for which a pass of the worker's event loop lets children begin tasks; a blocked worker's stop."""

INLINE_POOLS = {
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "runner.celery.async_pool",
}
"""Modules of pools whose slots run the next node themselves; a user's own pool gets every node."""

SOFT_CHECK = 0.1
"""Seconds between two checks whether tasks still run at a soft shutdown."""


# In the process that runs a node.


class NextVisit:
    """The value of a node's task whose settle has claimed another visit; Celery forwards its `repr`."""

    __slots__ = ("_text",)

    def __init__(self, claim: Claim, task_id: str) -> None:
        rung_by = quote(claim.rung_by, safe="") if claim.rung_by else "-"
        self._text = f"{MARK} {claim.record.nonce} {claim.token.fence} {rung_by} {task_id}"

    def __repr__(self) -> str:
        return self._text


def _log_none(record: logging.LogRecord) -> bool:
    """Make Celery log the value of a continuing task as monitors get it."""
    if isinstance(record.args, dict) and str(record.args.get("return_value")).startswith(MARK):
        record.args = {**record.args, "return_value": "None"}
    return True


logging.getLogger("celery.app.trace").addFilter(_log_none)


class Claims:
    """Claims of this process whose tasks have not started. A missing claim is repeated by its nonce."""

    def __init__(self) -> None:
        # A child of a prefork pool has one slot. If another child gets the task, the next claim
        # replaces the one kept here.
        self.slots = 1
        # The worker's free slots; a child of a prefork pool gets the number from its worker.
        self.free_slots: Callable[[], float] = lambda: self.slots - len(state.reserved_requests)
        self.stopping = stopping
        self._claims: dict[str, Claim] = {}
        self._lock = threading.Lock()

    def put(self, claim: Claim) -> str:
        """Keep a claim, and return the id of its task."""
        token = claim.token
        task_id = f"{token.run_id}.{token.node}.{token.visit}.{claim.record.attempt}"
        with self._lock:
            self._claims[task_id] = claim
            while len(self._claims) > self.slots:
                del self._claims[next(iter(self._claims))]
        return task_id

    def take(self, task_id: str, nonce: str) -> Claim | None:
        """Return the claim of a task that continues inline. Later doorbells can't use a claim taken here."""
        with self._lock:
            claim = self._claims.pop(task_id, None)
        return claim if claim is not None and claim.record.nonce == nonce else None


claims = Claims()


def may_continue(request: Any) -> Callable[[], bool]:
    """Return a check to call when a task's node settles: may another node follow on its slot?"""
    remaining, until, _ = getattr(request, BUDGET, (0, 0.0, 0.0))
    return lambda: (
        (remaining > 0 or claims.free_slots() > 0)
        and time.monotonic() < until
        and not claims.stopping()
    )


def nonce_of(request: Any) -> str:
    """Return the nonce of the claim that a task's node has; "" if it has none."""
    nonce, _ = getattr(request, CLAIMED, ("", 0))
    return str(nonce)


_Claim = tuple[str, int, str]
"""A claim's nonce and fence, and the task that rang its doorbell, "" if that was the previous one."""


def _claim_in(value: str) -> tuple[str, _Claim]:
    """Return the task id that a task's value names, and the claim."""
    _, nonce, fence, rung_by, task_id = value.split(" ", 4)
    return task_id, (nonce, int(fence), "" if rung_by == "-" else unquote(rung_by))


def _headers(previous: dict[str, Any], task_id: str, claim: _Claim) -> dict[str, Any]:
    """Return the headers that differ between the next visit's doorbell and the previous one."""
    nonce, fence, rung_by = claim
    _, previous_node, *_ = visit_of(previous["id"])
    _, node, visit, attempt = visit_of(task_id)
    remaining, *others = previous[BUDGET]
    return {
        "id": task_id,
        "parent_id": rung_by or previous["id"],
        "shadow": f"{previous['shadow'].removesuffix(previous_node)}{node}",
        "argsrepr": f"visit={visit} attempt={attempt}",
        BUDGET: (remaining - 1, *others),
        CLAIMED: (nonce, fence),
    }


# In a child of a prefork pool.


@cache
def permission() -> Any:
    """Return the values children read from their worker: permission's end, connection, free slots.

    The end is -1 when the worker stops.
    """
    return RawArray("d", 3)


class ContinuingChild(asynpool.Worker):
    """The loop of a child: if a task has claimed the next visit, the child runs it as its next job."""

    wait_for_job: Callable[[], Any]

    def __init__(self, *args: Any, shared: Any = None, **options: Any) -> None:
        """Keep the memory shared with the main process."""
        self._may_continue, self._busy = shared or (permission(), RawValue("b"))
        super().__init__(*args, **options)
        self._job: Any = None
        self._next: Any = None
        self._began = 0.0
        self._count = 0
        self._begun = 0

    def __reduce__(self) -> Any:
        """Pass the shared memory to a child that is a fresh interpreter."""
        _, arguments = super().__reduce__()
        return partial(ContinuingChild, shared=(self._may_continue, self._busy)), arguments

    def contribute_to_object(self, obj: Any) -> Any:
        """Let the main process see whether the child runs a task."""
        obj.busy = self._busy
        return super().contribute_to_object(obj)

    def _make_child_methods(self, *args: Any) -> None:
        super()._make_child_methods(*args)
        claims.free_slots = lambda: float(self._may_continue[2])
        claims.stopping = lambda: self._may_continue[0] < 0
        receive = self.wait_for_job
        send = self.outq.put

        def wait_for_job() -> Any:
            self._busy.value = bool(self._next)
            job = self._next or receive()
            if job:
                self._busy.value = True
                self._job = job[1]
                self._began = time.monotonic()
                self._count += 1
            return job

        def put(message: Any) -> None:
            kind, details = message
            if kind == ACK and self._next:
                self._next = None  # the main process knows it already
            elif kind == READY and (begun := self._begin_next(*details)):
                self._begun += 1
                send((BEGUN, begun))
            else:
                send(message)

        self.wait_for_job, self.outq.put = wait_for_job, put

    def _ensure_messages_consumed(self, completed: int) -> Any:
        """Wait at the end until the main process has counted each READY that was sent."""
        return super()._ensure_messages_consumed(completed - self._begun)

    def _begin_next(self, job: int, i: Any, result: Any, _: int) -> tuple[Any, ...] | None:
        """Set the next job if a task has claimed one and the child may go on; return the message about it."""
        self._next = None
        *_, function, arguments, options = self._job
        match result:
            case (True, (0, str(value), runtime)) if value.startswith(MARK):
                name, _, headers, *body = arguments
                if self._is_free(headers):
                    task_id, claim = _claim_in(value)
                    headers = {**headers, **_headers(headers, task_id, claim)}
                    arguments = (name, task_id, headers, *body)
                    self._next = (TASK, (job, i, function, arguments, options))
                    return job, task_id, claim, runtime
        return None

    def _is_free(self, headers: dict[str, Any]) -> bool:
        now, (until, connection, _) = time.monotonic(), self._may_continue
        return (
            now < until
            and connection
            == headers[BUDGET][2]  # Celery 5.6 forgets running jobs at a reconnection
            and not self.max_memory_per_child
            and (self.maxtasks is None or self._count < self.maxtasks)
            and all(
                now - self._began < limit * SHARE_OF_LIMIT
                for limit in headers.get("timelimit") or ()
                if limit
            )
        )


class ContinuingPool(asynpool.AsynPool):
    """A prefork pool whose children continue."""

    Worker = ContinuingChild
    on_poll_start: Any

    def _create_write_handlers(self, hub: Any) -> None:
        """Look at the children's pipes only if there is something to write: Celery does at each pass."""
        super()._create_write_handlers(hub)
        schedule = self.on_poll_start
        self.on_poll_start = lambda: (self.outbound_buffer or hub.writers) and schedule()


def continue_in_children() -> None:
    """Give this program's prefork pools children that continue; harmless when called twice."""
    prefork.TaskPool.Pool = ContinuingPool


# In the worker's main process.


class Permission:
    """Sets at each pass of the worker's event loop whether its children may continue on their own."""

    def __init__(self) -> None:
        """Allow nothing, because no consumer is known yet."""
        self._consumer: Any = None
        self._queues: set[str] = set()
        self._last_revoked, self._has_revoked_nodes = None, False

    def watch(self, consumer: Any) -> None:
        """Begin, or begin again after a reconnection; children end sequences that began before it."""
        self._consumer = consumer
        permission()[1] += 1
        consumer.hub.on_tick.add(self.update)

    def update(self) -> None:
        """Permit continuing while the main process would pass on any task at once; count the free slots."""
        now = time.monotonic()
        permission()[0] = now + PERMISSION_LASTS if self._allows() else -stopping()
        permission()[2] = self._consumer.pool.num_processes - max(
            1, len(state.reserved_requests)
        )

    def _allows(self) -> bool:
        consumer = self._consumer
        if consumer.task_consumer is None or not _takes_tasks(consumer):
            return False
        queues = {queue.name for queue in consumer.task_consumer.queues}
        self._queues |= queues
        return queues == self._queues and not (
            getattr(consumer.controller.semaphore, "_waiting", ())
            or consumer.pool._pool.outbound_buffer  # noqa: SLF001 - as below
            or self._revokes_nodes()
        )

    def _revokes_nodes(self) -> bool:
        """Return whether a node was revoked by id, or anything by a header: a child can't know which."""
        revoked = state.revoked._data  # noqa: SLF001 - its iterator sorts up to 50,000 ids
        last_seen = self._last_revoked
        self._last_revoked = next(reversed(revoked), None)
        for task_id in reversed(revoked):
            if task_id == last_seen:
                break
            self._has_revoked_nodes |= str(task_id).count(".") > 2
        return self._has_revoked_nodes or bool(state.revoked_stamps)


_permission = Permission()


def forbid_continuing() -> None:
    """Let no child continue: the worker is stopping, and its event loop no longer runs."""
    permission()[0] = -1


def wait_softly(worker: Any) -> None:
    """Give tasks that run at SIGQUIT their time: nothing begins, and it ends with the last of them.

    Celery's own wait always takes its whole time, and its signal's handler does nothing else meanwhile.
    """
    stop_softly()
    forbid_continuing()
    conf = worker.app.conf
    ends = time.monotonic() + conf.worker_soft_shutdown_timeout
    if _runs_tasks(worker.pool):
        log.info(
            "worker.stopping: tasks have %g s to end before the cold shutdown.",
            conf.worker_soft_shutdown_timeout,
        )
    while time.monotonic() < ends and (
        conf.worker_enable_soft_shutdown_on_idle or _runs_tasks(worker.pool)
    ):
        time.sleep(SOFT_CHECK)


def _runs_tasks(pool: Any) -> bool:
    """Return whether any task runs. The results of a prefork pool's children have not been read."""
    processes = getattr(pool, "_pool", None)
    if isinstance(processes, asynpool.AsynPool):
        return any(child.busy.value for child in processes._pool)  # noqa: SLF001 - as below
    return bool(state.active_requests)


_unused_claims = deque[tuple[str, _Claim]]()

_unstarted_claims: dict[str, _Claim] = {}
"""Claims whose tasks the pool has not started, by task id: a closing pool ignores new tasks."""


def take_unused(*, pool_ended: bool = False) -> list[Token]:
    """Return the claims that no task will start, each once; after the pool's end, all of them."""
    if pool_ended:
        _unused_claims.extend(_unstarted_claims.items())
    return [
        Token(*visit_of(task_id)[:3], fence)
        for task_id, (_, fence, _) in (
            _unused_claims.popleft() for _ in range(len(_unused_claims))
        )
    ]


def continue_inline(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Handle messages as Celery does, and let nodes continue inline after each; for `Task.Strategy`."""
    handle = with_time_limits(task, app, consumer, **options)
    claims.slots = consumer.pool.limit or 1
    # Elsewhere the pool's results arrive in a thread that must not wait for a slot.
    is_able = consumer.hub is not None and task.acks_late

    ContinuingRequest.consumer = consumer
    children = getattr(consumer.pool, "_pool", None)
    if is_able and isinstance(children, asynpool.AsynPool):
        _permission.watch(consumer)
        children._result_handler.state_handlers[BEGUN] = partial(  # noqa: SLF001 - as below
            _note_begun, children
        )

    def handle_doorbell(message: Any, body: Any, *callbacks: Any) -> Any:
        if is_able and body is None:
            budget = (MAX_NODES - 1, time.monotonic() + MAX_SECONDS, permission()[1])
            message.headers = {
                "headers": {
                    name: message.headers[name] for name in message.headers.keys() - KNOWN
                },
                **message.headers,
                BUDGET: budget,
            }
        return handle(message, body, *callbacks)

    return handle_doorbell


class ContinuingRequest(Request):
    """A request that keeps its slot and its delivery, and becomes the request of the next visit."""

    consumer: Any = None
    id: str
    _request_dict: dict[str, Any]

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap the method that Celery defines in its own subclass of the request's class."""
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _then_continue(cls.on_success)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Keep the body decoded, so that the task doesn't decode it again."""
        super().__init__(*args, **options)
        self._body = self._payload
        self._content_type = None

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's name
        """Send an event, unless no monitor listens: the dispatcher would find out slowly."""
        groups = self._eventer and self._eventer.groups
        if (not groups or "task" in groups) and time.monotonic() > getattr(
            self._eventer, "unheard_until", 0.0
        ):
            super().send_event(type, **fields)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note that the pool has started the task."""
        _unstarted_claims.pop(self.id, None)
        super().on_accepted(pid, time_accepted)

    def acknowledge(self) -> None:
        """Acknowledge the delivery; an unstarted claim, such as a revoked task's, becomes unused."""
        if not self.acknowledged and (claim := _unstarted_claims.pop(self.id, None)):
            _unused_claims.append((self.id, claim))
        super().acknowledge()

    def become(self, task_id: str, claim: _Claim, runtime: float) -> None:
        """End this task as a success, and receive the next one in its place."""
        self.send_event("task-succeeded", result="None", runtime=runtime)
        state.requests.pop(self.id, None)
        headers = _headers(self._request_dict, task_id, claim)
        self._request_dict = {**self._request_dict, **headers}
        self.id = task_id
        self.name = headers["shadow"]
        self._parent_id = headers["parent_id"]
        self._argsrepr = headers["argsrepr"]
        self.time_start = self.worker_pid = self._terminate_on_ack = None
        self.__dict__.pop("_context", None)
        self._eventer = self.consumer.event_dispatcher
        _unstarted_claims[task_id] = claim
        state.task_reserved(self)
        fields = {"name": self.name, "args": self._argsrepr, "kwargs": self._kwargsrepr}
        log_received(LOG_RECEIVED, {**fields, "id": task_id, "eta": None})
        signals.task_received.send(sender=self.consumer, request=self)
        self.send_event(
            "task-received",
            **fields,
            root_id=self._root_id,
            parent_id=self._parent_id,
            retries=0,
            eta=None,
            expires=None,
        )

    def run(self) -> Any:
        """Run the task on this thread, as a pool does, and return its result."""
        trace = fast_trace_task if self._app.use_fast_trace_task else trace_task_ret
        body = (self._body, self._content_type, self._content_encoding)
        task = (self._type, self.id, self._request_dict, *body)
        results = list[Any]()
        apply_target(trace, task, {}, results.append, self.on_accepted)
        return results[0]


def _then_continue(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def then_continue(self: ContinuingRequest, result: Any, **options: Any) -> None:
        while True:
            is_failed, value, runtime = result
            if is_failed or not str(value).startswith(MARK):
                break
            task_id, claim = _claim_in(value)
            consumer = self.consumer
            if self.acknowledged or not _takes_tasks(
                consumer, self.delivery_info["routing_key"]
            ):
                _unused_claims.append((task_id, claim))
                result = (is_failed, "None", runtime)
                break
            try:
                self.become(task_id, claim, runtime)
                if type(consumer.pool).__module__ not in INLINE_POOLS:
                    state.active_requests.discard(self)  # until the pool starts it
                    consumer.on_task_request(self)
                    return
                if (state.revoked or state.revoked_stamps) and self.revoked():
                    return
            except Exception:
                log.exception(
                    "node.not_started: %s goes to the queue instead; please report this.",
                    task_id,
                )
                if self.id != task_id:
                    _unused_claims.append((task_id, claim))
                state.task_ready(self)
                self.acknowledge()
                return
            result = self.run()
        on_success(self, result, **options)

    return then_continue


def _note_begun(pool: Any, job: int, task_id: str, claim: _Claim, runtime: float) -> None:
    """Note that a child has begun the next task of its job, whose time limits begin again."""
    result = pool._cache.get(job)  # noqa: SLF001 - as above
    if result is None:
        return
    result.safe_apply_callback(
        result._callback.__self__.become,  # noqa: SLF001
        task_id,
        claim,
        runtime,
    )
    result.correlation_id = task_id
    pool.on_timeout_cancel(result)
    result._ack(None, time.monotonic(), result._worker_pid, None)  # noqa: SLF001


def _takes_tasks(consumer: Any, queue: str = "") -> bool:
    """Return whether a task would start at once: its queue is served, and no rate limit delays nodes."""
    if stopping() or consumer.blueprint.state != bootsteps.RUN or not consumer.pool.active:
        return False
    if queue and not consumer.task_consumer.consuming_from(queue):
        return False
    return consumer.disable_rate_limits or consumer.task_buckets[NODE_TASK] is None
