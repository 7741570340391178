"""When a worker changes how often Python looks for garbage."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from runner.celery import engines


@pytest.fixture
def thresholds():
    """Python's thresholds as they are; a test may change them, and what is exempt stays exempt."""
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_a_fresh_interpreter_has_a_threshold_that_a_worker_changes():
    """The defaults that a worker looks for are those of this Python."""
    code = "import gc; print(gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)

    assert int(done.stdout) in engines.PYTHONS_THRESHOLDS


def test_a_threshold_that_a_program_chose_stays(thresholds):
    """Python's own threshold is raised, the others of it stay; a program's own is left alone."""
    engines.collect_less()
    raised = gc.get_threshold()
    gc.set_threshold(5_000, 20, 30)
    engines.collect_less()

    assert raised == (engines.COLLECT_AFTER, *thresholds[1:])
    assert gc.get_threshold() == (5_000, 20, 30)
