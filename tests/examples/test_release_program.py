from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.examples.repositories import make_repository
from tests.logins import logged_in
from tests.ports import free_port
from tests.processes import is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ENDLESS = """
import os, pathlib, threading

def test_endless():
    pathlib.Path({pid!r}).write_text(str(os.getpid()))
    threading.Event().wait()
"""
ROOT = Path(__file__).parents[2]


@contextmanager
def program(*arguments: str, **environment: str):
    """Run the example as `make run` does, without a terminal."""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.release", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def nothing_left(said: str) -> bool:
    return not any(is_alive(int(pid)) for pid in re.findall(r"process (\d+)", said))


def test_the_release_example_runs_to_its_end_on_a_real_worker(tmp_path):
    """Without a terminal and without a person the notes get written, and nothing is left running.

    The branch that asks for the audience waits while the others end, and each answer is a message. With a
    port the run is in the browser until Ctrl-C.
    """
    out = tmp_path / "NOTES.md"
    options = ("--commits", "1", "--out", str(out), "--port", str(free_port()))
    with program(str(make_repository(tmp_path)), *options) as running:
        said = ""
        while "Ctrl-C" not in said and running.poll() is None:
            said += running.stdout.readline()
        (address,) = re.findall(r"^pages +(\S+)$", said, re.MULTILINE)
        with logged_in(address) as http:
            assert "release" in http.get("/runs", headers={"Accept": "text/html"}).text
        running.send_signal(signal.SIGINT)
        said += running.communicate(timeout=60)[0]

    assert running.returncode == 0, said
    assert out.read_text().endswith("- Mend the lock\n")
    assert said.count("Receipt: accepted") == 2
    answered = said.index("interrupt.answered\tnotes")
    for node in ("tests", "wheel"):
        assert said.index(f"node.completed\t{node}") < answered
    wait_until(lambda: nothing_left(said), "store and worker are gone")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_example_leaves_nothing_running(tmp_path, stop):
    """Whoever stops the example in the middle, and however, has no processes to look for."""
    repository, pid = make_repository(tmp_path), tmp_path / "pid"
    (repository / "tests" / "test_tiny.py").write_text(ENDLESS.format(pid=str(pid)))
    with program(str(repository)) as running:
        said = ""
        while "\nrun " not in said and running.poll() is None:
            said += running.stdout.readline()
        wait_until(lambda: pid.exists() and pid.read_text(), "the repository's tests run")
        running.send_signal(stop)
        running.wait(timeout=60)

        wait_until(lambda: nothing_left(said), "store and worker are gone")
        wait_until(
            lambda: not is_alive(int(pid.read_text())), "the repository's tests are gone"
        )
    assert running.returncode in {130, -signal.SIGKILL}


def test_an_example_that_fails_says_so_and_leaves_nothing_running(tmp_path):
    """A run that fails ends the program with 1 and the reason."""
    (tmp_path / "broken.py").write_text("def model():\n    return object()\n")
    environment = {"PYTHONPATH": str(tmp_path), "RELEASE_MODEL": "broken:model"}
    with program(str(make_repository(tmp_path)), **environment) as running:
        said, _ = running.communicate(timeout=150)

    assert running.returncode == 1, said
    assert "Error: " in said
    wait_until(lambda: nothing_left(said), "store and worker are gone")
