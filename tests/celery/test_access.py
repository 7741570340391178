"""The user of Redis that SECURITY.md gives to workers, on a real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from runner import Client, Status
from runner.celery.application import make_app
from runner.definition.registry import Registry
from runner.dev.worker_process import worker_process
from runner.settings import Settings
from tests.tcp_store import tcp_store
from tests.waiting import wait_until

RECIPE = Path(__file__).parents[2] / "SECURITY.md"

pytestmark = pytest.mark.slow


def test_a_worker_needs_no_more_than_its_user_may(tmp_path):
    """A run with a question completes, Celery's control answers, and Redis has refused nothing."""
    (rules,) = re.findall(
        r"^ACL SETUSER worker (.*)$", RECIPE.read_text(encoding="utf-8"), re.MULTILINE
    )
    alive = tmp_path / "alive"
    with tcp_store() as store, redis.Redis.from_url(store.url) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", *rules.split())
        url = f"redis://worker:SECRET@{store.tcp_url.rpartition('@')[2]}"
        settings = {
            "RUNNER_REDIS_URL": url,
            "RUNNER_GRAPHS": "tasks.graphs",
            "RUNNER_ALIVE_FILE": str(alive),
        }
        with worker_process(settings, concurrency=4) as worker:
            worker.wait_ready()
            wait_until(alive.exists, "it is listed")
            client = Client(redis_url=url, registry=Registry())
            run = client.start("refund", {"order": 1, "amount": 120})
            (question,) = run.wait(60).interrupts
            answer = {"responder": "ana", "digest": question.digest}
            assert (
                client.respond(question.id, {"decision": "approve"}, **answer).status
                == "accepted"
            )
            assert run.wait(60).status is Status.COMPLETED
            app = make_app(Settings(redis_url=url))
            wait_until(
                lambda: app.control.ping(timeout=1), "the worker answers Celery's control"
            )
            app.close()

        assert admin.execute_command("ACL", "LOG") == []
        with redis.Redis.from_url(url) as client:
            for command in (
                ("FLUSHALL",),
                ("KEYS", "*"),
                ("CONFIG", "SET", "save", ""),
                ("GET", "session:7"),
            ):
                with pytest.raises(NoPermissionError):
                    client.execute_command(*command)
