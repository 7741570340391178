"""The process that `runner server` becomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import httpx
import pytest

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
