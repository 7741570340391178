"""The app that Procfile and docker-compose.yml start: `celery --app tasks.app:app worker`.

Without RUNNER_GRAPHS it serves the graphs of `tasks.graphs`.
"""

from __future__ import annotations

from runner.celery.application import make_app
from runner.settings import Settings

settings = Settings()
if not settings.graphs:
    settings = settings.model_copy(update={"graphs": ["tasks.graphs"]})

app = make_app(settings)
app.conf.imports = ("tasks.mail",)
