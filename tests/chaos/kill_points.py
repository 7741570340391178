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
from runner.approvals.visit_judge import VisitJudge
from runner.approvals.voting import CastVote
from runner.audit.anchors import FileAnchor
from runner.celery.amqp import Relay
from runner.celery.doorbells import NODE_TASK, CeleryDispatcher, visit_of
from runner.execution.runs import RunStarter
from runner.store.interface import Request as StoreRequest
from runner.store.redis.fast.fast_path import FastPath
from runner.store.redis.ledger import AuditLog
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import StreamReader
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    ClaimVisit,
    ExpandMap,
    ParkVisit,
    RetryVisit,
    SaveCheckpoint,
    SettleVisit,
    SpendBudget,
    StartRun,
    UseDecision,
    VisitRequest,
)
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


def of_token(request: VisitRequest) -> str:
    return f"{request.token.run_id}/{request.token.node}"


REQUESTS: dict[type[StoreRequest[Any]], Callable[[Any], str]] = {
    ClaimVisit: lambda request: f"{request.run_id}/{request.node}",
    SaveCheckpoint: of_token,
    AskQuestions: of_token,
    ParkVisit: of_token,
    RetryVisit: of_token,
    ExpandMap: of_token,
    SettleVisit: of_token,
    UseDecision: of_token,
    AnswerQuestions: lambda request: request.answers[0].interrupt_id,
    CastVote: lambda request: request.ballot.interrupt_id,
    SpendBudget: lambda request: request.run_id,
    StartRun: lambda request: request.start.idempotency_key or ANY,
}
"""The requests that are points, each by its verb, and the name of the step."""


def around_requests() -> None:
    """Make both sides of these requests points."""
    do = RedisStore.do

    @functools.wraps(do)
    def stepped(store: RedisStore, request: StoreRequest[Any]) -> Any:
        name_of = REQUESTS.get(type(request))
        if name_of is None:
            return do(store, request)
        step = name_of(request)
        reach(f"{request.verb}.before", step)
        reply = do(store, request)
        reach(f"{request.verb}.after", step)
        return reply

    RedisStore.do = stepped


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

around_requests()
around(
    FastPath,
    "_claimed",
    "load",
    lambda _, node, seen, *__, **___: f"{seen.run_id}/{node}",
)
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
around(VisitJudge, "_read", "votes", lambda _, answer: answer.id)
around(
    StreamReader,
    "done",
    "done",
    lambda _, entry: json.loads(entry.body).get("interrupt_id", ANY),
    always,
)
around(Relay, "_publish", "relay", lambda *_: ANY, always)
around(AuditLog, "change", "audit", lambda _, __, fields, *___: of_seal(fields))
around(FileAnchor, "write", "anchor", lambda *_: ANY, always)
around(RedisStore, "archived", "archived", lambda _, runs: next(iter(runs)), always)
# The name of a sweep is that of nothing: arm it when the next thing that is due is the right one.
around(RedisStore, "sweep", "sweep", lambda *_: ANY, lambda reply: reply.count > 0)
