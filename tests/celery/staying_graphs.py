"""Graphs whose nodes say how their tasks came: from the queue, or as the next on their slot."""

from __future__ import annotations

import os
import threading
from itertools import pairwise

import redis
from celery import current_task, signals
from celery.concurrency import thread

from runner import graph
from runner.celery.inline_continuation import CLAIMED
from tests.celery.graphs import build, store
from tests.waiting import wait_until

LENGTH = 20


def say(kind, task_id):
    """Say that a signal came for a node's task."""
    if task_id.count(".") > 2:
        with store() as client:
            client.rpush(f"signals:{kind}", task_id)


@signals.task_received.connect
def received(request, **_):
    say("received", request.id)


@signals.task_prerun.connect
def begins(task_id, **_):
    say("prerun", task_id)


@signals.task_success.connect
def succeeded(sender, **_):
    say("success", sender.request.id)


@signals.task_failure.connect
def failed(task_id, **_):
    say("failure", task_id)


@signals.task_postrun.connect
def ended(task_id, **_):
    say("postrun", task_id)


class ListingPool(thread.TaskPool):
    """A user's own pool, which does something for each task."""

    def on_apply(self, target, args, *others, **options):
        with store() as client:
            client.rpush("applied", args[1])
        return super().on_apply(target, args, *others, **options)


def note(ctx):
    """Say which node this is, and how its task came."""
    came = "stayed" if CLAIMED in current_task.request.__dict__ else "fetched"
    with store() as client:
        client.sadd("processes", os.getpid())
        client.rpush("tasks", f"{ctx.run_id} {ctx.node_id} {came}")
        line = f"{os.getpid()} {ctx.attempt} {threading.get_ident()}"
        client.rpush(f"started:{ctx.run_id}:{ctx.node_id}", line)
    return came


def gated(ctx):
    """As `note`, then wait until the test opens the gate of this node."""
    came = note(ctx)
    with store() as client:

        def is_open():
            ctx.check()
            try:
                return client.exists(f"gate:{ctx.run_id}:{ctx.node_id}")
            except redis.ConnectionError:  # a test has killed the server, and starts it again
                return False

        wait_until(is_open, "it is open")
    return came


def explode(ctx):
    """As `note`, then fail."""
    note(ctx)
    raise ValueError(current_task.request.id)


def sleep(ctx):
    """As `note`, then take longer than any time limit of these tests."""
    note(ctx)
    threading.Event().wait(100)


@graph("line")
def line():
    names = [f"n{number}" for number in range(LENGTH)]
    return build(*pairwise(names), **dict.fromkeys(names[1:], note), n0=gated)


@graph("wide")
def wide():
    names = [f"w{number}" for number in range(LENGTH)]
    return build(*(("first", name) for name in names), first=note, **dict.fromkeys(names, note))


@graph("short")
def short():
    return build("ab", a=note, b=note)


@graph("gates")
def gates():
    return build("ab", "bc", a=gated, b=gated, c=note)


@graph("sleeper")
def sleeper():
    return build("ab", a=gated, b=sleep)


@graph("failing")
def failing():
    return build("ab", "bc", a=gated, b=note, c=explode)
