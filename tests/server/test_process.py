"""The process that `runner server` becomes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
import pytest

from tests.logins import address_in, logged_in
from tests.ports import free_port
from tests.server.conftest import GRAPHS, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


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


def test_a_server_logs_json_on_request(redis_url):
    """With the setting each line that it writes is a JSON document."""
    port, command = free_port(), [sys.executable, "-m", "runner.cli", "server", "--port"]
    process = subprocess.Popen(
        [*command, str(port)],
        env={**os.environ, "RUNNER_REDIS_URL": redis_url, "RUNNER_LOG_FORMAT": "json"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), "it answers")
    finally:
        process.terminate()
        lines = process.communicate(timeout=30)[0].splitlines()

    assert all(map(is_json, lines))
    assert any("Uvicorn running" in line for line in lines)


def test_several_processes_are_one_server(redis_url):
    """A login and a form of one process count in each, and one that is killed is replaced."""
    port, command = (
        free_port(),
        [sys.executable, "-m", "runner.cli", "server", "--workers", "2", "--port"],
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


def test_no_vote_is_lost_with_a_killed_server(redis_url):
    """What was acknowledged before `kill -9` is there; the others are sent again, and each counts once."""
    site = Site(redis_url, GRAPHS)
    questions = {
        run.id: run.interrupts()[0]
        for run in (site.start("refund", requester="cora") for _ in range(20))
    }
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "runner.cli",
        "server",
        "--port",
        str(port),
        "--auth",
        "proxy",
    ]
    url, waiting, lost = f"http://127.0.0.1:{port}", deque(questions.values()), []
    person = {"X-Forwarded-User": "ben", "X-Forwarded-Groups": "finance"}
    for most in (10, 20):
        server = subprocess.Popen(
            [*command, "--role-of", "finance=approver"],
            env={**os.environ, "RUNNER_REDIS_URL": redis_url},
        )
        try:
            wait_until(lambda: answers(f"{url}/healthz"), "it answers")
            with ThreadPoolExecutor(4) as pool:
                votes = {}
                while waiting:
                    question = waiting.popleft()
                    headers = {
                        **person,
                        "If-Match": f'"{question.digest}"',
                        "Idempotency-Key": question.id,
                    }
                    address = f"{url}/v1/questions/{question.id}/votes"
                    vote = pool.submit(
                        httpx.post,
                        address,
                        json={"decision": "approve"},
                        headers=headers,
                        timeout=60,
                    )
                    votes[vote] = question
                for number, vote in enumerate(as_completed(votes), 1):
                    if vote.exception() is not None:
                        lost.append(votes[vote])
                    else:
                        assert vote.result().status_code == 200, vote.result().text
                    if number == most // 2 and most == 10:
                        server.kill()
        finally:
            server.kill()
            server.wait(30)
        waiting.extend(lost)

    assert lost  # the control: requests were cut
    store = site.client.engine.store
    for question in questions.values():
        assert [vote["by"] for vote in store.votes(question.id)] == ["human:|ben"]
