"""How `make bench-peers` drives the programs of other tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import approvals
from bench.peers.__main__ import FOLDER, Peer, Unavailable
from tests.waiting import wait_until

PROGRAM = """
import os, subprocess, sys
sys.path.insert(0, {folder!r})
from program import serve

server = subprocess.Popen(["sleep", "600"])  # inherits standard output, as Temporal's server does
with open({pids!r}, "w") as file:
    print(os.getpid(), server.pid, file=file)
print("Server 1.2.3 is ready", flush=True)
print('"text"', "\\n[1]\\n", flush=True)
if {fails}:
    sys.exit("no licence")

def chain():
    print("a line\\nof the library {{", flush=True)
    return [1.0]

serve({{"fake": "1"}}, {{"chain": chain}})
"""


def is_running(pid):
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def program(tmp_path):
    """Write a peer; return its command, and what gives the processes that it has started."""

    def make(*, fails):
        path, pids = tmp_path / "peer.py", tmp_path / "pids"
        path.write_text(PROGRAM.format(folder=str(FOLDER), pids=str(pids), fails=fails))
        return [sys.executable, str(path)], lambda: [
            int(pid) for pid in pids.read_text().split()
        ]

    return make


def test_a_peer_may_write_other_lines_and_leaves_no_process(program, tmp_path):
    """Lines that are no JSON objects are passed over; the end ends its server, too."""
    command, pids = program(fails=False)
    peer = Peer(command, tmp_path / "log")
    assert peer.versions == {"fake": "1"}
    assert peer.do("chain")["times"] == [1.0]
    with pytest.raises(Unavailable, match="there is no fan of it"):
        peer.do("fan")
    assert all(map(is_running, pids()))

    peer.end()
    peer.end()

    wait_until(lambda: not any(map(is_running, pids())), "all processes of the peer ended")


@pytest.mark.full
def test_a_peer_that_fails_says_why_and_leaves_no_process(program, tmp_path):
    """A program that ends before it answers is reported with its last line, and its server ends."""
    command, pids = program(fails=True)

    with pytest.raises(Unavailable, match="no licence"):
        Peer(command, tmp_path / "log")

    wait_until(lambda: not any(map(is_running, pids())), "all processes of the peer ended")


TERMINATED = """
import signal
from bench.peers.__main__ import end_all_at_termination, postgres

end_all_at_termination()
with postgres() as url:
    print(url.partition("host=")[2], flush=True)
    signal.pause()
"""


@pytest.mark.slow
def test_a_benchmark_that_is_terminated_leaves_no_postgres():
    """It isn't a child of the benchmark, so it doesn't end with it."""
    command = [sys.executable, "-c", TERMINATED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
        folder = Path(bench.stdout.readline().strip())
        pid = int((folder / "data/postmaster.pid").read_text().split()[0])
        assert is_running(pid)
        bench.terminate()

    wait_until(lambda: not is_running(pid), "Postgres has ended")
    assert not folder.exists()


@pytest.mark.slow
def test_approvals_are_asked_listed_and_decided():
    """Each column of the table has a figure of ours, and so many questions wait as were wanted."""
    figures = approvals.measure_ours([700])

    (found,) = figures.values()
    assert found["waiting"] == 700
    assert set(approvals.COLUMNS) <= set(found)
    (row,) = approvals.grids("", figures)[0].rows
    assert "-" not in row
