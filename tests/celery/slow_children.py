"""An app whose child processes start only when a test allows it."""

from __future__ import annotations

import threading

from billiard.process import current_process

from runner.celery.application import RunnerApp, install
from runner.celery.config import celery_config
from runner.settings import Settings
from tests.celery.graphs import store

GATE = "gate:children"


class SlowApp(RunnerApp):
    """Children import it from here, to unpickle the app."""


def wait_for_gate() -> None:
    pause = threading.Event()
    with store() as client:
        client.incr("children")
        while not client.exists(GATE):
            pause.wait(0.1)


if current_process().name != "MainProcess":
    wait_for_gate()

app = SlowApp("runner")
app.config_from_object(celery_config(Settings()))
install(app)
