"""Doors in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import httpx

from tests.ports import free_port
from tests.waiting import wait_until


@contextmanager
def server(door, **settings):
    """Serve a door in a process with some settings of the environment; give the process and its address."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "runner.cli",
        "server",
        "--door",
        door,
        "--port",
        str(port),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, **settings}
    )
    url = f"http://127.0.0.1:{port}"

    def listens():
        try:
            return httpx.get(f"{url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(listens, "the server listens")
        yield process, url
    finally:
        process.kill()
        process.wait()
