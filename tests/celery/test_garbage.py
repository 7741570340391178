"""When a worker changes how often Python looks for garbage."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from runner.celery.engines import COLLECT_AFTER, PYTHONS_THRESHOLDS


def thresholds(*steps: str) -> list[list[int]]:
    """Return the thresholds of a fresh interpreter, and those after each of some steps."""
    told = "; print(json.dumps(gc.get_threshold()))"
    script = "\n".join(step + told for step in ("import gc, json", *steps))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_worker_knows_the_threshold_that_this_python_has():
    """That of a fresh interpreter is one of those that a worker raises."""
    assert thresholds()[0][0] in PYTHONS_THRESHOLDS


@pytest.mark.slow
def test_a_threshold_that_a_program_chose_stays():
    """Python's own is raised, and the others of it stay; where a program chose one, nothing changes."""
    own, _, chosen, changed = thresholds(
        "from runner.celery.engines import collect_less; own = gc.get_threshold()",
        "gc.set_threshold(5_000, 20, 10); collect_less(); assert not gc.get_freeze_count()",
        "gc.set_threshold(*own); collect_less()",
    )

    assert changed == [COLLECT_AFTER, *own[1:]]
    assert chosen == [5_000, 20, 10]
