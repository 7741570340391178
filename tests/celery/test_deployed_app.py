"""The application that this repository deploys, as Procfile and compose start it."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_it_serves_the_graphs_of_the_examples(empty_site):
    """Without RUNNER_GRAPHS there is something to try, and without options a hundred nodes run at once."""
    empty_site.ready(app="tasks.app:app", slots=0, RUNNER_GRAPHS="")

    graphs = set(empty_site.client.engine.store.graphs())
    assert {"notify", "orders", "refund", "refunds", "release"} <= graphs
    assert "concurrency: 100 (thread)" in empty_site.workers[0].output()
