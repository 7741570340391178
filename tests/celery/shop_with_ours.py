"""The same app with our tasks installed."""

from __future__ import annotations

import runner.celery
from tests.celery.shop import app

__all__ = ["app"]

runner.celery.install(app)
