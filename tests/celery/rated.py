"""An app that limits the rate of each of its tasks."""

from __future__ import annotations

from tests.celery.other_teams_app import app

__all__ = ["app"]

app.conf.task_annotations = {"*": {"rate_limit": "100/s"}}
