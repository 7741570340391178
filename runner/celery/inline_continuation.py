"""Inline continuation: a node claimed by a settle runs next on the slot that becomes free.

It is a Celery task in its own right. Only its message is made here, from the previous task's, and
goes where Celery's consumer passes each message that it fetches: to the strategy of its task. So
limits, revocations, events and the pool treat it like any other. The delivery of the doorbell that
began the sequence is passed on from task to task, and the last one acknowledges it: one delivery
for each slot in use, so the worker fetches nothing for a slot that isn't free.

On every pool the value of a Celery task reaches the worker's main process, so a task uses its value
to report which visit its settle has claimed. A claim that does not start is returned to the queue;
if the worker dies, the lease runs out.

A child of a prefork pool does not wait for the main process: it begins the task itself and says so
in that value. The main process enters the task as accepted by the child, so Celery's time limits,
events, `inspect`, `revoke --terminate` and its handling of lost children work as for any other
task. While `Permission` denies it, the main process decides, as on other pools.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from functools import cache, partial, wraps
from itertools import takewhile
from typing import Any
from urllib.parse import quote, unquote
from weakref import ref

from billiard.pool import ACK, READY, TASK, ApplyResult
from billiard.sharedctypes import RawArray, RawValue
from celery import bootsteps
from celery.concurrency import asynpool
from celery.worker import state
from celery.worker.request import Request

from runner.celery.doorbells import NODE_TASK, visit_of
from runner.celery.kombu_fixes import with_time_limits
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

CONSUMER = "runner_consumer"
"""The message attribute that holds the consumer that received it."""

MARK = "runner.next"
"""The beginning of a task's value that names the next visit on its slot."""

BEGUN = f"{MARK}.begun"
"""The same mark if the child that ran the task has already begun the next one."""

JOB = "runner_job"
"""The message attribute that holds the pool's job for the previous task, whose child runs this one."""

SHARE_OF_LIMIT = 0.5
"""The share of a time limit after which a child begins no task: a late signal would hit the next one."""

PERMISSION_LASTS = 1.0
"""Seconds that one pass of the worker's event loop permits: children of a blocked worker begin no more."""

SOFT_CHECK = 0.1
"""Seconds between two checks whether tasks still run at a soft shutdown."""


# In the process that runs a node.


class NextVisit:
    """The value of a node's task whose settle has claimed another visit; Celery forwards its `repr`."""

    __slots__ = ("_text",)

    def __init__(self, claim: Claim) -> None:
        rung_by = quote(claim.rung_by, safe="") or "-"
        self._text = (
            f"{MARK} {claim.record.nonce} {claim.token.fence} {rung_by} {_task_id(claim)}"
        )

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

    def put(self, claim: Claim) -> None:
        with self._lock:
            self._claims[_task_id(claim)] = claim
            while len(self._claims) > self.slots:
                del self._claims[next(iter(self._claims))]

    def take(self, task_id: str, nonce: str) -> Claim | None:
        """Return the claim of a task that continues inline. Later doorbells can't use a claim taken here."""
        with self._lock:
            claim = self._claims.pop(task_id, None)
        return claim if claim is not None and claim.record.nonce == nonce else None


claims = Claims()


def may_continue(request: Any) -> Callable[[], bool]:
    """Return a check to call when a task's node settles: may another node follow on its slot?"""
    remaining, until, _ = request.get(BUDGET) or (0, 0.0, 0.0)
    return lambda: (
        (remaining > 0 or claims.free_slots() > 0)
        and time.monotonic() < until
        and not claims.stopping()
    )


def nonce_of(request: Any) -> str:
    """Return the nonce of the claim that a task's node has; "" if it has none."""
    nonce, _ = request.get(CLAIMED) or ("", 0)
    return str(nonce)


def _task_id(claim: Claim) -> str:
    token = claim.token
    return f"{token.run_id}.{token.node}.{token.visit}.{claim.record.attempt}"


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
        self._began, self._count = 0.0, 0

    def __reduce__(self) -> Any:
        """Pass the shared memory to a child that is a fresh interpreter."""
        _, arguments = super().__reduce__()
        return _child, ((self._may_continue, self._busy), arguments)

    def contribute_to_object(self, obj: Any) -> Any:
        """Let the main process see whether the child runs a task."""
        obj.busy = self._busy
        return super().contribute_to_object(obj)

    def _make_child_methods(self, *args: Any) -> None:
        super()._make_child_methods(*args)
        claims.free_slots = lambda: float(self._may_continue[2])
        claims.stopping = lambda: self._may_continue[0] < 0
        receive, send = self.wait_for_job, self.outq.put

        def wait_for_job() -> Any:
            self._busy.value = bool(self._next)
            job = self._next or receive()
            if job:
                self._busy.value = True
                self._job, self._began = job[1], time.monotonic()
                self._count += 1
            return job

        def put(message: Any) -> None:
            kind, details = message
            if kind == ACK and self._next:
                self._next = None  # the previous task's value has said it
                return
            send((READY, self._continued(*details)) if kind == READY else message)

        self.wait_for_job, self.outq.put = wait_for_job, put

    def _continued(self, job: int, i: Any, result: Any, fd: int) -> tuple[Any, ...]:
        """Return a task's result; if the child may go on, say so in it and set the next job."""
        self._next = None
        *_, function, arguments, options = self._job
        match result:
            case (True, (0, str(value), runtime)) if value.startswith(MARK):
                name, _, headers, *body = arguments
                if self._is_free(headers):
                    _, _, text = value.partition(" ")
                    task_id, claim = _claim_in(text)
                    headers = {**headers, **_headers(headers, task_id, claim)}
                    following = (name, task_id, headers, *body)
                    self._next = (TASK, (job, i, function, following, options))
                    result = (True, (0, f"{BEGUN} {text}", runtime))
        return job, i, result, fd

    def _is_free(self, headers: dict[str, Any]) -> bool:
        limits = [limit for limit in headers.get("timelimit") or () if limit]
        now, (until, connection, _) = time.monotonic(), self._may_continue
        return (
            now < until
            and connection
            == headers[BUDGET][2]  # Celery 5.6 forgets running jobs at a reconnection
            and not self.max_memory_per_child
            and (self.maxtasks is None or self._count < self.maxtasks)
            and all(now - self._began < limit * SHARE_OF_LIMIT for limit in limits)
        )


def _child(shared: tuple[Any, Any], arguments: tuple[Any, ...]) -> ContinuingChild:
    return ContinuingChild(*arguments, shared=shared)


def continue_in_children() -> None:
    """Give this program's prefork pools children that continue; harmless when called twice."""
    asynpool.AsynPool.Worker = ContinuingChild


# In the worker's main process.


class SlotThreads(ThreadPoolExecutor):
    """Threads of slots: a task's thread also runs the task that continues it, so no other thread is woken."""

    _own = threading.local()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Run a call on a free thread; a call from a task's callback runs on that task's thread."""
        following = getattr(self._own, "following", None)
        if following is None or following or self._shutdown:
            return super().submit(self._run, fn, *args, **options)
        future: Future[Any] = Future()
        following.append((future, partial(fn, *args, **options)))
        return future

    def _run(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        following = self._own.following = list[tuple[Future[Any], Callable[[], Any]]]()
        try:
            return fn(*args, **options)
        finally:
            while following:
                future, call = following.pop()
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - as the executor does
                    future.set_exception(error)
            del self._own.following


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
        waiting = getattr(consumer.controller.semaphore, "_waiting", ())
        unsent = consumer.pool._pool.outbound_buffer  # noqa: SLF001 - as below
        return len(queues) == len(self._queues) and not (
            waiting or unsent or self._revokes_nodes()
        )

    def _revokes_nodes(self) -> bool:
        """Return whether a node was revoked by id, or anything by a header: a child can't know which."""
        revoked = state.revoked._data  # noqa: SLF001 - its iterator sorts up to 50,000 ids
        last, last_seen = next(reversed(revoked), None), self._last_revoked
        additions = takewhile(lambda task_id: task_id != last_seen, reversed(revoked))
        self._has_revoked_nodes |= any(str(task_id).count(".") > 2 for task_id in additions)
        self._last_revoked = last
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


_unused_claims: deque[Token] = deque()

_unstarted_claims: dict[str, Token] = {}
"""Claims whose tasks the pool has not started, by task id: a closing pool ignores new tasks."""


def take_unused(*, pool_ended: bool = False) -> list[Token]:
    """Return the claims that no task will start, each once; after the pool's end, all of them."""
    if pool_ended:
        _unused_claims.extend(_unstarted_claims.values())
    return [_unused_claims.popleft() for _ in range(len(_unused_claims))]


def continue_inline(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Handle messages as Celery does, and let nodes continue inline after each; for `Task.Strategy`."""
    handle = with_time_limits(task, app, consumer, **options)
    claims.slots = consumer.pool.limit or 1
    # Elsewhere the pool's results arrive in a thread that must not wait for a slot.
    is_able = consumer.hub is not None and task.acks_late

    if is_able and isinstance(getattr(consumer.pool, "_pool", None), asynpool.AsynPool):
        _permission.watch(consumer)
    if type(getattr(consumer.pool, "executor", None)) is ThreadPoolExecutor:
        consumer.pool.executor = SlotThreads(consumer.pool.limit)

    def handle_doorbell(message: Any, body: Any, *callbacks: Any) -> Any:
        if is_able and body is None and BUDGET not in message.headers:
            budget = (MAX_NODES - 1, time.monotonic() + MAX_SECONDS, permission()[1])
            message.headers = {**message.headers, BUDGET: budget}
        setattr(message, CONSUMER, consumer)
        return handle(message, body, *callbacks)

    return handle_doorbell


class ContinuingRequest(Request):
    """A request that passes its slot and its delivery on to the next visit."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap the methods that Celery defines in its own subclass of the request's class."""
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _then_continue(cls.on_success)
            cls.execute_using_pool = _unless_begun(cls.execute_using_pool)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Keep the body decoded, so that the task doesn't decode it again."""
        super().__init__(*args, **options)
        self._body, self._content_type = self._payload, None

    def revoked(self) -> bool:
        """Return whether the task must not start; a task begun by a child has started."""
        return not _job_of(self) and super().revoked()

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note that the pool has started the task."""
        _unstarted_claims.pop(self.id, None)
        super().on_accepted(pid, time_accepted)

    def acknowledge(self) -> None:
        """Acknowledge the delivery; an unstarted claim, such as a revoked task's, becomes unused."""
        if not self.acknowledged and (token := _unstarted_claims.pop(self.id, None)):
            _unused_claims.append(token)
        super().acknowledge()


def _job_of(request: ContinuingRequest) -> ApplyResult | None:
    return getattr(request.message, JOB, None)


def _then_continue(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def then_continue(self: ContinuingRequest, result: Any, **options: Any) -> None:
        is_failed, value, runtime = result
        if is_failed or not str(value).startswith(MARK):
            on_success(self, result, **options)
            return
        mark, _, text = value.partition(" ")
        task_id, claim = _claim_in(text)
        consumer, is_begun = getattr(self.message, CONSUMER), mark == BEGUN
        delivery = (_ignore, _ignore) if self.acknowledged else (self.on_ack, self.on_reject)
        starts_next = is_begun or (
            not self.acknowledged and _takes_tasks(consumer, self.delivery_info["routing_key"])
        )
        self.acknowledged |= starts_next  # the next one does it, or the last of the sequence
        try:
            on_success(self, (is_failed, "None", runtime), **options)
        finally:
            if starts_next:
                job = self._apply_result() if is_begun else None
                _start_next(self, task_id, claim, delivery, job)
            elif not is_begun:
                _unused_claims.append(_token(task_id, claim))

    return then_continue


def _unless_begun(execute_using_pool: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(execute_using_pool)
    def execute(self: ContinuingRequest, pool: Any, **options: Any) -> Any:
        previous = _job_of(self)
        if previous is None:
            return execute_using_pool(self, pool, **options)
        delattr(self.message, JOB)
        job = _take_over(self, previous, pool._pool)  # noqa: SLF001 - Celery's pool has no public way
        self._apply_result = ref(job)
        return job

    return execute


def _take_over(request: ContinuingRequest, previous: ApplyResult, pool: Any) -> ApplyResult:
    """Enter a task that already runs in a child as the pool enters a task that it gives to a child.

    The child reports its end under the number of the previous job.
    """
    hard, soft = request.time_limits
    job = ApplyResult(
        {},
        request.on_success,
        request.on_accepted,
        request.on_timeout,
        request.on_failure,
        soft or pool.soft_timeout,
        hard or pool.timeout,
        pool.lost_worker_timeout,
        on_timeout_set=pool.on_timeout_set,
        on_timeout_cancel=pool.on_timeout_cancel,
        correlation_id=request.id,
    )
    job._job, job._cache, child = previous._job, pool._cache, previous._write_to  # noqa: SLF001
    job._write_to = job._scheduled_for = child  # noqa: SLF001
    pool._cache[job._job] = job  # noqa: SLF001
    pool._busy_workers.add(child.inqW_fd)  # noqa: SLF001
    accept = pool._result_handler.state_handlers[ACK]  # noqa: SLF001
    accept(job._job, None, time.monotonic(), previous._worker_pid, None)  # noqa: SLF001
    return job


def _takes_tasks(consumer: Any, queue: str = "") -> bool:
    """Return whether a task would start at once: its queue is served, and no rate limit delays nodes."""
    if stopping() or consumer.blueprint.state != bootsteps.RUN or not consumer.pool.active:
        return False
    if queue and not consumer.task_consumer.consuming_from(queue):
        return False
    return consumer.disable_rate_limits or consumer.task_buckets[NODE_TASK] is None


_Delivery = tuple[Callable[..., Any], Callable[..., Any]]
"""Functions that acknowledge and reject a delivery."""


def _ignore(*_: object) -> None:
    """Acknowledge nothing: the delivery is already acknowledged, as when a node is to be terminated."""


def _start_next(
    previous: ContinuingRequest,
    task_id: str,
    claim: _Claim,
    delivery: _Delivery,
    job: ApplyResult | None,
) -> None:
    """Pass Celery the message of the next visit, with the delivery of the previous task.

    `job` is the previous task's job if its child has begun the next one.
    """
    consumer, message = getattr(previous.message, CONSUMER), copy(previous.message)
    message.headers = {**message.headers, **_headers(message.headers, task_id, claim)}
    token, buckets = _token(task_id, claim), consumer.task_buckets
    bucket = buckets[NODE_TASK]
    if job is None:
        _unstarted_claims[task_id] = token
    else:
        setattr(message, JOB, job)
        # The task runs already, so it waits for no rate limit, nor for the slot if another task
        # took it since.
        consumer.controller.semaphore.value = max(1, consumer.controller.semaphore.value)
        buckets[NODE_TASK] = None
    try:
        # Without callbacks: the autoscaler takes the child for a free one until its job is entered.
        consumer.strategies[NODE_TASK](message, None, *delivery, ())
    except Exception:
        log.exception(
            "node.not_started: %s goes to the queue instead; please report this.", task_id
        )
        if _unstarted_claims.pop(task_id, None):
            _unused_claims.append(token)
        delivery[0](log, previous.connection_errors)
    finally:
        buckets[NODE_TASK] = bucket


# In both.

_Claim = tuple[str, int, str]
"""A claim's nonce and fence, and the task that rang its doorbell, "" if that was the previous one."""


def _claim_in(text: str) -> tuple[str, _Claim]:
    """Return the task id that a value names after its mark, and the claim."""
    nonce, fence, rung_by, task_id = text.split(" ", 3)
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


def _token(task_id: str, claim: _Claim) -> Token:
    run_id, node, visit, _ = visit_of(task_id)
    return Token(run_id, node, visit, claim[1])
