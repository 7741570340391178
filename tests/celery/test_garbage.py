"""When a worker changes how often Python looks for garbage."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from runner.celery.engines import COLLECT_AFTER, PYTHONS_THRESHOLDS


def thresholds(code: str) -> list[int]:
    """Return the thresholds of a fresh interpreter after some code."""
    script = f"import gc, json; {code}; print(json.dumps(gc.get_threshold()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return list(json.loads(done.stdout))


CHANGE = "from runner.celery.engines import collect_less; collect_less()"


def test_a_worker_knows_the_threshold_that_this_python_has():
    """That of a fresh interpreter is one of those that a worker raises."""
    assert thresholds("gc")[0] in PYTHONS_THRESHOLDS


@pytest.mark.slow
def test_a_threshold_that_a_program_chose_stays():
    """Python's own is raised, and the others of it stay; where a program chose one, nothing changes."""
    script = f"gc.set_threshold(5_000, 20, 10); {CHANGE}; assert not gc.get_freeze_count()"

    assert thresholds(CHANGE) == [COLLECT_AFTER, *thresholds("gc")[1:]]
    assert thresholds(script) == [5_000, 20, 10]
