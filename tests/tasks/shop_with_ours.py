"""The same app with our tasks installed."""

from __future__ import annotations

import tasks
from tests.tasks.shop import app

__all__ = ["app"]

tasks.install(app)
