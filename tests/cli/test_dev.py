from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jsonschema_rs
import pytest

from runner import Client
from tests.cli.schemas import schema
from tests.logins import logged_in
from tests.ports import free_port
from tests.processes import is_alive, run_module
from tests.waiting import wait_until

HERE = Path(__file__).parent


@contextmanager
def started(folder: Path, *arguments: str):
    """Run `runner dev` in a folder, and give the process and what it says once it is ready."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "RUNNER_SWEEP_INTERVAL": "0.5"}
    port = ("--port", str(free_port()))
    command = [
        sys.executable,
        "-m",
        "runner.cli",
        "dev",
        "--graphs",
        "shop",
        "--json",
        *port,
        *arguments,
    ]
    with (
        (folder / "dev.log").open("w") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as dev,
    ):
        try:
            printed = "".join(iter(lambda: dev.stdout.readline() or "}", "}\n")) + "}"
            yield dev, json.loads(printed)
        finally:
            dev.kill()


def socket_of(ready: dict) -> Path:
    return Path(ready["redis_url"].removeprefix("unix://").partition("?")[0])


@pytest.mark.slow
def test_dev_runs_graphs_until_ctrl_c_and_keeps_its_data(tmp_path):
    """Nothing but this command is needed to run a graph; Ctrl-C ends store and worker, the data stays."""
    with started(tmp_path) as (dev, ready):
        assert jsonschema_rs.is_valid(schema("dev"), ready)
        run = Client(redis_url=ready["redis_url"]).start("shop-refund", 7)
        assert run.wait(timeout=60).status == "interrupted"

        dev.send_signal(signal.SIGINT)

        assert dev.wait(timeout=60) == 0
        assert not is_alive(ready["worker_pid"])
        assert not socket_of(ready).exists()
    with started(tmp_path) as (dev, ready):
        again = Client(redis_url=ready["redis_url"]).run(run.id)
        assert [question.name for question in again.interrupts()] == ["shop_refund"]


@pytest.mark.slow
def test_nothing_is_left_when_dev_is_killed(tmp_path):
    """Even `kill -9` of the command leaves no worker and no store behind."""
    with started(tmp_path) as (dev, ready):
        dev.kill()

        wait_until(lambda: not is_alive(ready["worker_pid"]), "the worker is gone")
        wait_until(lambda: not socket_of(ready).exists(), "the store is gone")


@pytest.mark.slow
def test_dev_says_so_when_its_worker_ends(tmp_path):
    """A worker that dies ends the command, with a code that says so."""
    with started(tmp_path) as (dev, ready):
        os.kill(ready["worker_pid"], signal.SIGKILL)

        assert dev.wait(timeout=60) == 1
        assert "The worker ended by itself" in (tmp_path / "dev.log").read_text()


@pytest.mark.slow
def test_a_second_dev_in_one_folder_is_refused(tmp_path):
    """Two stores on one folder would spoil its data: the second command says so and starts nothing."""
    with started(tmp_path):
        done = run_module("runner.cli", "dev", "--graphs", "shop", folder=tmp_path)

    assert done.returncode == 7
    assert "Another embedded store uses .runner" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_dev_without_graphs_starts_nothing(call, redis_url, tmp_path, monkeypatch):
    """Outside a project the command says which ones create a project, and run an example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNNER_GRAPHS", raising=False)
    done = call("dev", url=redis_url)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "`runner init my-project`" in done.stderr
    assert "`runner dev --demo`" in done.stderr


@pytest.mark.slow
def test_graphs_that_can_not_be_imported_end_dev_at_once(tmp_path):
    """A wrong module name is told with the worker's own words in one line, and nothing stays running."""
    done = run_module("runner.cli", "dev", "--graphs", "nowhere", folder=tmp_path)

    assert done.returncode == 1
    assert "'nowhere'" in done.stderr
    assert "\\n" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_dev_shows_two_questions_on_its_pages(tmp_path, monkeypatch):
    """One command starts a run that waits for two answers, and opens its pages in a browser."""
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with started(tmp_path, "--demo", "--open") as (_, ready):
        wait_until(lambda: opened.exists() and opened.read_text(), "the browser is opened")
        assert opened.read_text().strip() == f"{ready['pages']}&next=/inbox"
        with logged_in(opened.read_text().strip()) as http:

            def asked():
                return http.get("/v1/questions").json()["items"]

            wait_until(lambda: len(asked()) == 2, "both are asked")
            assert {question["name"] for question in asked()} == {"discount", "pay the carrier"}
            assert "pay the carrier" in http.get("/inbox", headers={"Accept": "text/html"}).text
