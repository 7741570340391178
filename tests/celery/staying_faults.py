"""Sabotage: workers that die, forget or are late between a node's settle and the start of the next one."""

from __future__ import annotations

import os
import signal

from runner.celery import heartbeat, inline_continuation
from tasks.app import app


def _die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def _forbid_beginning():
    """Let children claim further nodes while their worker stops; they begin none."""
    inline_continuation.permission()[0] = 0


def _stumble(*_):
    """Fail once before anything has changed."""
    inline_continuation.ContinuingRequest.become = BECOME
    raise RuntimeError("stumbled")


BECOME = inline_continuation.ContinuingRequest.become


def __getattr__(name):
    """Return the app of this name: one fault each, in the worker that asks for it."""
    if name in {"forgets", "starts_late"}:
        heartbeat.forbid_continuing = _forbid_beginning
    if name == "dies":
        inline_continuation.ContinuingRequest.become = _die
    elif name == "stumbles":
        inline_continuation.ContinuingRequest.become = _stumble
    elif name == "forgets":
        heartbeat.take_unused = lambda **_: []
    elif name == "starts_late":
        inline_continuation._takes_tasks = lambda *_: True
    else:
        raise AttributeError(name)
    return app
