"""A worker that kills itself at a named step of a node, once, when a test has armed that step.

The name of a step is `run/node`, or what is said below.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from celery.worker.request import Request

import runner.celery.amqp
from runner.audit.anchors import FileAnchor
from runner.celery.amqp import Relay
from runner.celery.doorbells import NODE_TASK, CeleryDispatcher, visit_of
from runner.execution.runs import RunStarter
from runner.store.interface import Token
from runner.store.redis.fast.fast_path import FastPath
from runner.store.redis.ledger import AuditLog
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import Intake
from tasks.app import app
from tests.chaos.kill_switch import reach

ANY = "any"
SEALED = ("size", "signed", "anchored")
"""What a step of sealing changes in the head of the audit."""

__all__ = ["app"]


def around(
    owner: Any,
    method: str,
    point: str,
    name: Callable[..., str],
    did_something: Callable[[Any], bool] = bool,
) -> None:
    """Make both sides of a method points; after it only where `told` finds that it did something."""
    wrapped = getattr(owner, method)

    @functools.wraps(wrapped)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        step = name(*args, **kwargs)
        reach(f"{point}.before", step)
        reply = wrapped(*args, **kwargs)
        if did_something(reply):
            reach(f"{point}.after", step)
        return reply

    setattr(owner, method, stepped)


def of_token(_: RedisStore, token: Token, *__: object) -> str:
    return f"{token.run_id}/{token.node}"


def of_task(request: Request) -> str:
    if request.task.name != NODE_TASK:
        return ANY
    run_id, node, _, _ = visit_of(request.id)
    return f"{run_id}/{node}"


def of_seal(fields: Mapping[str, object]) -> str:
    return next(name for name in (*SEALED, ANY) if name in fields or name is ANY)


def always(_: object) -> bool:
    return True


# Spawned children, our default, import everything again: too slow for so many deaths.
app.conf.worker_pool_start_method = "fork"
runner.celery.amqp.TAKE_OVER_AFTER = 2.0

around(RedisStore, "claim", "claim", lambda _, run_id, node, *__: f"{run_id}/{node}")
around(FastPath, "_claimed", "load", lambda _, node, seen, *__: f"{seen.run_id}/{node}")
for verb in ("save", "ask", "park", "retry", "expand"):
    around(RedisStore, verb, verb, of_token)
around(RedisStore, "settle", "settle", lambda _, token, *__: of_token(_, token))
around(
    RunStarter,
    "child",
    "delegate",
    lambda _, claim, *__: f"{claim.token.run_id}/{claim.token.node}",
)
around(
    CeleryDispatcher,
    "ring",
    "publish",
    lambda _, bells: f"{bells[0].run_id}/{bells[0].node}",
    always,
)
around(Request, "acknowledge", "ack", of_task, always)
around(RedisStore, "answer", "answer", lambda _, answers, *__: answers[0].interrupt_id)
around(RedisStore, "vote", "vote", lambda _, ballot, *__: ballot.interrupt_id)
around(RedisStore, "votes", "votes", lambda _, interrupt_id: interrupt_id)
around(RedisStore, "use", "use", of_token)
around(RedisStore, "spend", "spend", lambda _, run_id, *__: run_id, always)
around(
    Intake, "done", "done", lambda _, entry: json.loads(entry.body).get("interrupt_id", ANY), always
)
around(RedisStore, "start", "start", lambda _, start, *__: start.idempotency_key or ANY)
around(Relay, "_publish", "relay", lambda *_: ANY, always)
around(AuditLog, "change", "audit", lambda _, __, fields, *___: of_seal(fields))
around(FileAnchor, "write", "anchor", lambda *_: ANY, always)
around(RedisStore, "archived", "archived", lambda _, runs: next(iter(runs)), always)
# The name of a sweep is that of nothing: arm it when the next thing that is due is the right one.
around(RedisStore, "sweep", "sweep", lambda *_: ANY, lambda reply: reply.word != "0")
