"""The application that this repository deploys, as Procfile and compose start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_serves_the_graphs_of_the_examples(empty_site):
    """Without RUNNER_GRAPHS there is something to try, and without options a hundred nodes run at once."""
    empty_site.ready(app="tasks.app:app", slots=0, RUNNER_GRAPHS="")

    graphs = set(empty_site.client.engine.store.graphs())
    assert {"notify", "orders", "refund", "refunds", "release"} <= graphs
    assert "concurrency: 100 (thread)" in empty_site.workers[0].output()


@pytest.mark.slow
def test_a_setting_chooses_other_graphs():
    """RUNNER_GRAPHS wins over the default."""
    code = "from tasks.app import settings; print(settings.graphs)"
    environment = {**os.environ, "RUNNER_GRAPHS": "shop"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "['shop']"
