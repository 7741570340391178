"""An app that accepts nothing but pickled messages."""

from __future__ import annotations

from tests.celery.other_teams_app import app

__all__ = ["app"]

app.conf.accept_content = ["pickle"]
