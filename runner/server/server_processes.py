"""The list of server processes: every ten seconds, each one records that it serves, with its clock."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from runner.errors import StoreError
from runner.records.workers import EVERY
from runner.server.services import Services

log = logging.getLogger(__name__)

LEAVES_WITHIN = 1.0
"""Maximum seconds that a stopping server waits until it is off the list."""


@asynccontextmanager
async def listed(app: FastAPI) -> AsyncIterator[None]:
    """List this process from the application's start to its end; a mounted application has neither."""
    stopping = threading.Event()
    thread = threading.Thread(
        target=_stay_listed, args=(app.state.services, stopping), daemon=True
    )
    thread.start()
    yield
    stopping.set()
    thread.join(LEAVES_WITHIN)


def _stay_listed(services: Services, stopping: threading.Event) -> None:
    pid = os.getpid()
    description = {
        "name": f"server-{pid}@{socket.gethostname()}",
        "pid": pid,
        "version": version("celery-graph-runner"),
        "started": time.time_ns() // 1_000_000,
        "partitions": len(services.settings.partition_addresses),
    }
    try:
        while not stopping.is_set():
            try:
                if services.server_processes.enter(description, time.time_ns() // 1_000_000):
                    services.server_processes.tidy()
            except StoreError as error:
                log.info("presence.unwritten: %s It is written again in %d s.", error, EVERY)
            stopping.wait(EVERY)
        services.server_processes.leave(description)
    except StoreError as error:
        log.info("presence.left: %s The server is listed as gone for a day.", error)
    finally:
        services.release()
