"""Limits over four partitions on two servers, while the processes that claim are killed and frozen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def count(*options):
    """Have a few hundred claims counted, in a program of its own."""
    command = [sys.executable, "-m", "tests.chaos.limit_claims", "--seconds", "120", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.sample
@pytest.mark.timeout(400)
def test_no_limit_is_exceeded_whatever_dies():
    """No more nodes are at work than a key has slots, every run ends, and then every slot is free."""
    tally = count("--claims", "300", "--faults", "4")

    assert tally["claims"] >= 300
    assert tally["killed"] + tally["frozen"] >= 4
    assert (tally["overshoot"], tally["taken"]) == (0, 0)


@pytest.mark.timeout(400)
def test_partitions_that_count_alone_exceed_a_limit():
    """Control: where each partition counts a key for itself, more nodes are at work."""
    assert count("--claims", "500", "--alone")["overshoot"] > 0
