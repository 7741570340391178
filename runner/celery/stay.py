"""Staying on the worker: a node that a settle has claimed runs next on the slot that becomes free.

It is a Celery task of its own. Only its message is made here, from that of the task before, and goes where
Celery's consumer hands each message that it fetches: to the strategy of its task. So limits, revocations,
events and the pool treat it as any other. The delivery of the doorbell that began the row is passed on from
task to task, and the last one acknowledges it: one delivery for each slot in use, as ever, so that the worker
fetches nothing for a slot that is not free.

The value of a Celery task reaches the worker's main process on every pool, so that is how a task says what
its settle has claimed. What is claimed and does not start is returned to the queue; if the worker dies, the
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
from celery.worker import state
from celery.worker.request import Request

from runner.celery.doorbells import NODE_TASK, visit_of
from runner.celery.kombu_fixes import with_time_limits
from runner.celery.shutdown import stopping
from runner.store.interface import Claim, Token

log = logging.getLogger(__name__)

ROW = 8
"""Nodes in a row on one slot; then what waits in the queue has its turn."""

SECONDS = 10.0
"""After so many seconds a row ends, too: RabbitMQ limits how long a delivery may be unacknowledged."""

STAY = "runner_stay"
"""The header that says how many more nodes may stay, and until when (`time.monotonic` of this machine)."""

CLAIMED = "runner_claimed"
"""The header of a node that stays: the nonce and the fence of its claim."""

CONSUMER = "runner_consumer"
"""The attribute of a message that is the consumer which got it."""

MARK = "runner.next"
"""How the value of a task begins that leaves a claimed node to its slot."""


# In the process that runs a node.


class Next:
    """The value of a node's task whose settle has claimed another node: Celery sends on its `repr`."""

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
    """Claims of this process whose tasks have not started. What isn't here is read again by its nonce."""

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
        """Return the claim of a task that stays. One that was returned is not that of the next doorbell."""
        with self._lock:
            claim = self._claims.pop(task_id, None)
        return claim if claim is not None and claim.record.nonce == nonce else None


claims = Claims()


def may_stay(request: Any) -> Callable[[], bool]:
    """Return what tells, when a task's node settles, whether another may stay on its slot."""
    left, until = request.get(STAY) or (0, 0.0)
    return lambda: left > 0 and time.monotonic() < until and not stopping()


def nonce_of(request: Any) -> str:
    """Return the nonce of the claim that a task's node has; "" where it has none."""
    nonce, _ = request.get(CLAIMED) or ("", 0)
    return str(nonce)


def _task_id(claim: Claim) -> str:
    token = claim.token
    return f"{token.run_id}.{token.node}.{token.visit}.{claim.record.attempt}"


# In the main process of the worker.

_unused: deque[Token] = deque()


def unused(*, pool_ended: bool = False) -> list[Token]:
    """Return the claims that no task will start, each once; after the pool's end all that are left."""
    if pool_ended:
        requests = [one for one in list(state.requests.values()) if isinstance(one, StayingRequest)]
        _unused.extend(token for request in requests if (token := request.unstarted))
    return [_unused.popleft() for _ in range(len(_unused))]


def staying(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Handle messages as Celery does, where nodes may stay after each; for `Task.Strategy`."""
    handle = with_time_limits(task, app, consumer, **options)
    claims.slots = consumer.pool.limit or 1
    # Elsewhere the pool's results come in a thread that must not wait for a slot.
    able = consumer.hub is not None and task.acks_late

    def handle_staying(message: Any, body: Any, *rest: Any, **more: Any) -> Any:
        if able and body is None and STAY not in message.headers:
            message.headers = {**message.headers, STAY: (ROW - 1, time.monotonic() + SECONDS)}
        setattr(message, CONSUMER, consumer)
        return handle(message, body, *rest, **more)

    return handle_staying


class StayingRequest(Request):
    """A request that leaves its slot, and its delivery, to the node that stays."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap `on_success`, which Celery defines in a subclass that it makes of the class of a request."""
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _then_next(cls.on_success)

    @property
    def unstarted(self) -> Token | None:
        """The claim of a request whose task has not started."""
        _, fence = self.request_dict.get(CLAIMED) or ("", 0)
        return _token(self.id, fence) if fence and self.time_start is None else None

    def acknowledge(self) -> None:
        """Acknowledge the delivery; a claim that was not started, as of a revoked task, is not used."""
        if not self.acknowledged and (token := self.unstarted):
            _unused.append(token)
        super().acknowledge()


def _then_next(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def then_next(self: StayingRequest, result: Any, **options: Any) -> None:
        failed, value, runtime = result
        if failed or not str(value).startswith(MARK):
            on_success(self, result, **options)
            return
        _, nonce, fence, rung_by, task_id = value.split(" ", 4)
        consumer = getattr(self.message, CONSUMER)
        enter = not self.acknowledged and _takes_tasks(consumer, self.delivery_info["routing_key"])
        self.acknowledged |= enter  # the next one does it, or the last in the row
        on_success(self, (failed, "None", runtime), **options)
        if enter:
            parent = self.id if rung_by == "-" else unquote(rung_by)
            _enter(consumer, self, task_id, (nonce, int(fence)), parent)
        else:
            _unused.append(_token(task_id, int(fence)))

    return then_next


def _takes_tasks(consumer: Any, queue: str) -> bool:
    """Return whether a task would start at once: its queue is served, and no rate limit delays nodes."""
    if stopping() or consumer.blueprint.state != bootsteps.RUN or not consumer.pool.active:
        return False
    if not consumer.task_consumer.consuming_from(queue):
        return False
    return consumer.disable_rate_limits or consumer.task_buckets[NODE_TASK] is None


def _enter(
    consumer: Any, before: StayingRequest, task_id: str, claimed: tuple[str, int], parent: str
) -> None:
    """Hand Celery the message of a node that stays, with the delivery of the task before."""
    message = copy(before.message)
    message.headers = {**_headers(before, task_id, claimed), "parent_id": parent}
    try:
        handle = consumer.strategies[NODE_TASK]
        handle(message, None, before.on_ack, before.on_reject, consumer.on_task_message)
    except Exception:
        log.exception(
            "node.not_started: %s goes to the queue instead; please report this.", task_id
        )
        _unused.append(_token(task_id, claimed[1]))
        before.on_ack(log, before.connection_errors)


def _headers(before: StayingRequest, task_id: str, claimed: tuple[str, int]) -> dict[str, Any]:
    """Return the headers of the doorbell of a node that stays, but for the task that rang it."""
    headers, (_, node_before, *_), (_, node, visit, attempt) = (
        before.message.headers,
        visit_of(before.id),
        visit_of(task_id),
    )
    left, until = headers[STAY]
    return {
        **headers,
        "id": task_id,
        "shadow": f"{headers['shadow'].removesuffix(node_before)}{node}",
        "argsrepr": f"visit={visit} attempt={attempt}",
        STAY: (left - 1, until),
        CLAIMED: claimed,
    }


def _token(task_id: str, fence: int) -> Token:
    run_id, node, visit, _ = visit_of(task_id)
    return Token(run_id, node, visit, fence)
