"""Inline continuation: a node that a settle has claimed runs next on the slot that becomes free.

It is a Celery task of its own. Only its message is made here, from that of the previous task, and goes where
Celery's consumer passes each message that it fetches: to the strategy of its task. So limits, revocations,
events and the pool treat it as any other. The delivery of the doorbell that began the sequence is passed on
from task to task, and the last one acknowledges it: one delivery for each slot in use, so that the worker
fetches nothing for a slot that is not free.

The value of a Celery task reaches the worker's main process on every pool, so that is how a task says which
visit its settle has claimed. A claim that does not start is returned to the queue; if the worker dies, the
lease runs out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any
from urllib.parse import quote, unquote

from celery import bootsteps
from celery.worker.request import Request

from runner.celery.doorbells import NODE_TASK, visit_of
from runner.celery.kombu_fixes import with_time_limits
from runner.celery.shutdown import stopping
from runner.store.interface import Claim, Token

log = logging.getLogger(__name__)

MAX_NODES = 8
"""Nodes in sequence on one slot; then the queue is served."""

MAX_SECONDS = 10.0
"""Seconds after which a sequence ends, too: RabbitMQ limits how long a delivery may be unacknowledged."""

BUDGET = "runner_stay"
"""The header with the number of nodes that may still follow, and until when (`time.monotonic`)."""

CLAIMED = "runner_claimed"
"""The header of a node that continues inline: the nonce and the fence of its claim."""

CONSUMER = "runner_consumer"
"""The attribute of a message that is the consumer which got it."""

MARK = "runner.next"
"""The beginning of a task's value that names the next visit on its slot."""


# In the process that runs a node.


class NextVisit:
    """The value of a node's task whose settle has claimed another visit: Celery forwards its `repr`."""

    __slots__ = ("_text",)

    def __init__(self, claim: Claim) -> None:
        rung_by = quote(claim.rung_by, safe="") or "-"
        self._text = f"{MARK} {claim.record.nonce} {claim.token.fence} {rung_by} {_task_id(claim)}"

    def __repr__(self) -> str:
        return self._text


def _log_none(record: logging.LogRecord) -> bool:
    """Have Celery log the value of such a task as the monitors get it."""
    if isinstance(record.args, dict) and str(record.args.get("return_value")).startswith(MARK):
        record.args = {**record.args, "return_value": "None"}
    return True


logging.getLogger("celery.app.trace").addFilter(_log_none)


class Claims:
    """Claims of this process whose tasks have not started. One that isn't here is repeated by its nonce."""

    def __init__(self) -> None:
        # A child of a prefork pool has one slot. Another child may get the task; the next claim then
        # replaces the one that lies here.
        self.slots = 1
        self._claims: dict[str, Claim] = {}
        self._lock = threading.Lock()

    def put(self, claim: Claim) -> None:
        with self._lock:
            self._claims[_task_id(claim)] = claim
            while len(self._claims) > self.slots:
                del self._claims[next(iter(self._claims))]

    def take(self, task_id: str, nonce: str) -> Claim | None:
        """Return the claim of a task that continues inline. A returned claim is not the next doorbell's."""
        with self._lock:
            claim = self._claims.pop(task_id, None)
        return claim if claim is not None and claim.record.nonce == nonce else None


claims = Claims()


def may_continue(request: Any) -> Callable[[], bool]:
    """Return a check, for the moment when a task's node settles, that another may follow on its slot."""
    remaining, until = request.get(BUDGET) or (0, 0.0)
    return lambda: remaining > 0 and time.monotonic() < until and not stopping()


def nonce_of(request: Any) -> str:
    """Return the nonce of the claim that a task's node has; "" where it has none."""
    nonce, _ = request.get(CLAIMED) or ("", 0)
    return str(nonce)


def _task_id(claim: Claim) -> str:
    token = claim.token
    return f"{token.run_id}.{token.node}.{token.visit}.{claim.record.attempt}"


# In the main process of the worker.

_unused_claims: deque[Token] = deque()

_unstarted_claims: dict[str, Token] = {}
"""Claims whose tasks the pool has not started, by task id: a closing pool ignores what it is given."""


def take_unused(*, pool_ended: bool = False) -> list[Token]:
    """Return the claims that no task will start, each once; after the pool's end all of them."""
    if pool_ended:
        _unused_claims.extend(_unstarted_claims.values())
    return [_unused_claims.popleft() for _ in range(len(_unused_claims))]


def continue_inline(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Handle messages as Celery does, and let nodes continue inline after each; for `Task.Strategy`."""
    handle = with_time_limits(task, app, consumer, **options)
    claims.slots = consumer.pool.limit or 1
    # Elsewhere the pool's results come in a thread that must not wait for a slot.
    is_able = consumer.hub is not None and task.acks_late

    def handle_doorbell(message: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        if is_able and body is None and BUDGET not in message.headers:
            budget = (MAX_NODES - 1, time.monotonic() + MAX_SECONDS)
            message.headers = {**message.headers, BUDGET: budget}
        setattr(message, CONSUMER, consumer)
        return handle(message, body, *args, **kwargs)

    return handle_doorbell


class ContinuingRequest(Request):
    """A request that passes its slot and its delivery on to the next visit."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap `on_success`, which Celery defines in a subclass that it makes of the class of a request."""
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _then_continue(cls.on_success)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note that the pool has started the task."""
        _unstarted_claims.pop(self.id, None)
        super().on_accepted(pid, time_accepted)

    def acknowledge(self) -> None:
        """Acknowledge the delivery; a claim that was not started, as of a revoked task, is not used."""
        if not self.acknowledged and (token := _unstarted_claims.pop(self.id, None)):
            _unused_claims.append(token)
        super().acknowledge()


def _then_continue(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def then_continue(self: ContinuingRequest, result: Any, **options: Any) -> None:
        is_failed, value, runtime = result
        if is_failed or not str(value).startswith(MARK):
            on_success(self, result, **options)
            return
        _, nonce, fence, rung_by, task_id = value.split(" ", 4)
        consumer = getattr(self.message, CONSUMER)
        queue = self.delivery_info["routing_key"]
        starts_next = not self.acknowledged and _takes_tasks(consumer, queue)
        self.acknowledged |= starts_next  # the next one does it, or the last of the sequence
        on_success(self, (is_failed, "None", runtime), **options)
        if starts_next:
            parent = self.id if rung_by == "-" else unquote(rung_by)
            _start_next(consumer, self, task_id, (nonce, int(fence)), parent)
        else:
            _unused_claims.append(_token(task_id, int(fence)))

    return then_continue


def _takes_tasks(consumer: Any, queue: str) -> bool:
    """Return whether a task would start at once: its queue is served, and no rate limit delays nodes."""
    if stopping() or consumer.blueprint.state != bootsteps.RUN or not consumer.pool.active:
        return False
    if not consumer.task_consumer.consuming_from(queue):
        return False
    return consumer.disable_rate_limits or consumer.task_buckets[NODE_TASK] is None


def _start_next(
    consumer: Any, previous: ContinuingRequest, task_id: str, claim: tuple[str, int], parent: str
) -> None:
    """Pass Celery the message of the next visit, with the delivery of the previous task."""
    message = copy(previous.message)
    message.headers = {**_headers(previous, task_id), CLAIMED: claim, "parent_id": parent}
    token = _unstarted_claims[task_id] = _token(task_id, claim[1])
    try:
        handle = consumer.strategies[NODE_TASK]
        handle(message, None, previous.on_ack, previous.on_reject, consumer.on_task_message)
    except Exception:
        log.exception(
            "node.not_started: %s goes to the queue instead; please report this.", task_id
        )
        _unstarted_claims.pop(task_id, None)
        _unused_claims.append(token)
        previous.on_ack(log, previous.connection_errors)


def _headers(previous: ContinuingRequest, task_id: str) -> dict[str, Any]:
    """Return the headers that the doorbell of the next visit would have."""
    headers = previous.message.headers
    _, previous_node, *_ = visit_of(previous.id)
    _, node, visit, attempt = visit_of(task_id)
    remaining, until = headers[BUDGET]
    return {
        **headers,
        "id": task_id,
        "shadow": f"{headers['shadow'].removesuffix(previous_node)}{node}",
        "argsrepr": f"visit={visit} attempt={attempt}",
        BUDGET: (remaining - 1, until),
    }


def _token(task_id: str, fence: int) -> Token:
    run_id, node, visit, _ = visit_of(task_id)
    return Token(run_id, node, visit, fence)
