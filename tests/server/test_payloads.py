"""Payloads on every route of the API: a secret is planted wherever users and agents can write."""

from __future__ import annotations

import pytest
import redis

from runner.approvals import Action, Rule
from runner.limits.limit import Limit
from runner.server import answers, api
from runner.server.app import permission_of, routes
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from tests.contract.store.manual_worker import shape
from tests.graphs import wired
from tests.server.conftest import GRAPHS, Site, put_grant

SECRET = "planted hunter2"

ROLES = ["viewer", "operator", "admin"]
"""All roles that may not read payloads."""

BODIES = {
    "/v1/runs": {"graph": "echo", "task": SECRET},
    "/v1/runs/{run_id}:fork": {"node": "echo"},
    "/v1/runs/{run_id}:{action}": {"node": "pay", "reason": SECRET},
    "/v1/runs:batch": {"action": "retry", "filter": {"graph": "echo"}, "dry_run": False},
    "/v1/schedules": {"id": "other", "graph": "echo", "interval": 60, "task": SECRET},
    "/v1/schedules/{schedule_id}:backfill": {
        "first": "2026-01-01T00:00:00Z",
        "last": "2026-01-01T00:00:00Z",
    },
    "/v1/limits/{name}:set": {"concurrency": 2, "reason": SECRET},
    "/v1/limits/{name}:pause": {"seconds": None, "reason": SECRET},
    "/v1/limits/{name}:resume": {},
    "/v1/limits/{name}:reset": {},
    "/v1/freezes": {"kind": "graph", "name": "lost", "reason": "a fire"},
    "/v1/freezes:thaw": {"kind": "graph", "name": "lost", "reason": "it is out"},
    "/v1/webhooks": {"id": "other", "url": "http://127.0.0.1:1/hooks"},
    "/v1/questions/{question_id}:reassign": {
        "to": "eva",
        "instead_of": "ben",
        "reason": "leave",
    },
    "/v1/questions/{question_id}:withdraw": {"reason": SECRET},
}

PATHS = {
    "/v1/runs/{run_id}:retry": "failed",
    "/v1/runs/{run_id}:cancel": "stopped",
    "/v1/runs/{run_id}:{action}": "waiting",
}
"""The runs of routes that don't take a completed one."""


def pay(ctx):
    rule = Rule(eligible=["ana", "ben"], need=2, title="Pay {to}", delegate="anyone")
    action = Action("runner", "function", "pay", {"to": SECRET})
    return ctx.interrupt("pay", reason=SECRET, rule=rule, action=action, on_expire="reject")


def lose(ctx):
    raise ValueError(SECRET)


@pytest.fixture
def site(redis_url):
    graphs = {
        "payroll": lambda: wired({"pay": pay}).build(),
        "lost": lambda: wired({"lose": lose}).build(),
    }
    return Site(redis_url, GRAPHS | graphs)


def planted(site):
    """Put the secret into everything, and return the ids in paths."""
    done = site.start("echo", SECRET)
    failed = site.start("lost", SECRET)
    asking, decided, withdrawn, cancelled = (site.start("payroll", SECRET) for _ in range(4))
    (question,) = asking.interrupts()
    site.client.vote(question.id, "approve", by="ana", comment=SECRET)
    site.http.post(f"/v1/questions/{question.id}:comment", json={"comment": SECRET})
    for who in ("ana", "ben"):
        site.client.vote(decided.interrupts()[0].id, "approve", by=who, comment=SECRET)
    site.client.withdraw(withdrawn.interrupts()[0].id, SECRET)
    cancelled.cancel(SECRET)
    site.work()
    put_grant(site, "g1", "payroll", {"to": {"const": SECRET}})
    site.http.post("/v1/grants/g1:revoke", json={"reason": SECRET})
    schedule = {"id": "daily", "graph": "echo", "interval": 60, "task": SECRET}
    site.http.post("/v1/schedules", json=schedule)
    store = RedisStore(site.settings.redis_url)
    store.publish([shape("a", limits={"a": [Limit("model", concurrency=1, by="input:who")]})])
    store.close()
    paused = f"/v1/limits/model:input:who:{SECRET}:pause"
    site.http.post(paused, json={"seconds": None, "reason": SECRET})
    site.add_webhook("hook")
    with redis.Redis.from_url(site.settings.redis_url) as raw:
        message = {"source": "runner:responses", "reason": SECRET, "body": SECRET}
        raw.xadd("runner:dead", message)
        lost = {"run_id": site.start("lost").id, "node": "lose", "visit": 1, "reason": SECRET}
        letter = f"node:{raw.xadd(Keys().dead, lost).decode()}"
    job = {"action": "retry", "filter": {"run_ids": [done.id]}, "dry_run": False}
    return {
        "done": done.id,
        "failed": failed.id,
        "stopped": site.start("payroll").id,
        "runs": [run.id for run in (done, failed, asking, decided, withdrawn, cancelled)],
        "question_id": question.id,
        "grant_id": "g1",
        "graph": "payroll",
        "name": "model",
        "action": "hold",
        "waiting": site.start("payroll").id,
        "schedule_id": "daily",
        "webhook_id": "hook",
        "delivery_id": "msg_1",
        "letter_id": letter,
        "job_id": site.http.post("/v1/runs:batch", json=job).json()["job_id"],
    }


def asked(site):
    """Ask every route that answers with a record, as somebody with `ROLES`; return the replies."""
    names = planted(site)
    site.as_role(*ROLES)
    replies = {}
    kinds = [
        (method, route)
        for route in routes(api.ROUTERS)
        if answers.answer_type(route.endpoint)
        for method in route.methods
    ]
    for method, route in sorted(kinds, key=lambda kind: kind[0] != "GET"):
        runs = [names[PATHS[route.path]]] if route.path in PATHS else names["runs"]
        for run_id in runs if "{run_id}" in route.path else runs[:1]:
            path = route.path_format.format(**names, run_id=run_id)
            body = BODIES.get(route.path_format)
            params = {"queue": "celery"} if path == "/v1/backlog" else None
            reply = site.http.request(method, path, json=body, params=params)
            replies.setdefault(f"{method} {route.path_format}", []).append(reply)
            if reply.status_code == 403:
                assert permission_of(route).permission in {"read", "decide"}, reply.text
    return replies


def leaks(replies):
    return {
        name
        for name, asked in replies.items()
        if any("hunter2" in reply.text for reply in asked)
    }


def test_no_route_shows_a_payload(site):
    """The secret is in no answer to people without payloads, and each route answers or refuses the roles."""
    replies = asked(site)

    assert leaks(replies) == set()
    unasked = {
        name
        for name, asked in replies.items()
        if all(reply.status_code >= 300 and reply.status_code != 403 for reply in asked)
    }
    assert unasked == {"POST /v1/runs/{run_id}:migrate"}  # it takes a graph that has changed


@pytest.mark.full
def test_without_the_redaction_the_secret_is_found(site, monkeypatch):
    """The control."""
    monkeypatch.setattr(answers, "bare", lambda record: record)

    assert leaks(asked(site)) >= {
        "GET /v1/runs/{run_id}",
        "GET /v1/runs/{run_id}/events",
        "GET /v1/questions",
        "GET /v1/questions/{question_id}",
        "GET /v1/grants",
        "GET /v1/schedules",
        "GET /v1/schedules/{schedule_id}",
        "POST /v1/schedules",
        "POST /v1/schedules/{schedule_id}:pause",
        "POST /v1/schedules/{schedule_id}:resume",
        "GET /v1/limits",
        "POST /v1/limits/{name}:set",
        "POST /v1/limits/{name}:pause",
        "GET /v1/dead",
        "GET /v1/dead/{letter_id}",
    }
