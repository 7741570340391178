"""Kills the worker that is about to call, or has just called, the task at the end of a marked run."""

from __future__ import annotations

import os
import signal

from celery.signals import after_task_publish, before_task_publish

from tests.celery.graphs import store


def die(moment: str, run_id: str) -> None:
    with store() as client:
        if client.delete(f"die:{moment}:{run_id}"):
            client.incr(f"died:{run_id}")
            os.kill(os.getpid(), signal.SIGKILL)


@before_task_publish.connect(sender="shop.done", weak=False)
def before(headers: dict[str, str], **_: object) -> None:
    die("before", headers["id"].removesuffix(".end"))


@after_task_publish.connect(sender="shop.done", weak=False)
def after(headers: dict[str, str], **_: object) -> None:
    die("after", headers["id"].removesuffix(".end"))
