"""The application that this repository deploys, as Procfile and compose start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def deployed(empty_site):
    """A worker of `tasks.app:app` that no setting tells which graphs to serve."""
    empty_site.add(app="tasks.app:app", RUNNER_GRAPHS="")
    empty_site.ready()
    return empty_site


@pytest.mark.slow
def test_it_serves_the_graphs_of_the_examples(deployed):
    """Without RUNNER_GRAPHS there is something to try."""
    assert {"notify", "orders", "refund", "refunds", "release"} <= set(
        deployed.client.engine.store.graphs()
    )


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
