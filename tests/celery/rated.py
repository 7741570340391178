"""An app that limits the rate of each of its tasks, unless its worker ignores such limits."""

from __future__ import annotations

import os

from tests.celery.other_teams_app import app

__all__ = ["app"]

app.conf.task_annotations = {"*": {"rate_limit": "100/s"}}
app.conf.worker_disable_rate_limits = "UNRATED" in os.environ
