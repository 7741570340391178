"""The process that `runner server` becomes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from tests.logins import address_in, logged_in
from tests.ports import free_port
from tests.waiting import wait_until


def answers(url):
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def is_json(line):
    try:
        return {"time", "level", "logger", "message"} <= set(json.loads(line))
    except ValueError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("log_format", "expected"), [("json", {True}), ("text", {False})])
def test_a_server_logs_json_on_request(redis_url, log_format, expected):
    """With the setting each line that it writes is a JSON document; control: without it none is."""
    port, command = free_port(), [sys.executable, "-m", "runner.server", "--port"]
    process = subprocess.Popen(
        [*command, str(port)],
        env={**os.environ, "RUNNER_REDIS_URL": redis_url, "RUNNER_LOG_FORMAT": log_format},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), "it answers")
    finally:
        process.terminate()
        lines = process.communicate(timeout=30)[0].splitlines()

    assert {is_json(line) for line in lines} == expected
    assert any("Uvicorn running" in line for line in lines)


@pytest.mark.slow
def test_several_processes_are_one_server(redis_url):
    """A login and a form of one process count in each, and one that is killed is replaced."""
    port, command = (
        free_port(),
        [sys.executable, "-m", "runner.server", "--workers", "2", "--port"],
    )
    server = subprocess.Popen(
        [*command, str(port)],
        env={**os.environ, "RUNNER_REDIS_URL": redis_url},
        stderr=subprocess.PIPE,
        text=True,
    )
    url, started, log = f"http://127.0.0.1:{port}", [], []

    def wait_for(number):
        while len(started) < number:
            log.append(next(server.stderr))
            started.extend(map(int, re.findall(r"Started server process \[(\d+)\]", log[-1])))

    try:
        wait_for(2)
        wait_until(lambda: answers(f"{url}/healthz"), "it answers")
        with logged_in(address_in("".join(log))) as http:
            token = http.get("/v1/me").json()["form_token"]
            headers = {"Origin": url, "X-Form-Token": token}
            sent = [http.post("/v1/runs/none:cancel", headers=headers) for _ in range(20)]
        os.kill(started[0], signal.SIGKILL)
        wait_for(3)
        wait_until(lambda: answers(f"{url}/healthz"), "it answers again")
    finally:
        server.terminate()
        server.communicate(timeout=30)

    assert {reply.status_code for reply in sent} == {404}
    assert len(set(started)) == 3
