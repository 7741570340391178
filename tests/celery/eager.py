"""An app whose tasks run where they are called, as some have it for their tests."""

from __future__ import annotations

from tests.celery.other_teams_app import app

__all__ = ["app"]

app.conf.task_always_eager = True
