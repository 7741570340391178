"""Runner on Celery: `celery --app runner.celery worker`, or `install(app)` for an existing app."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from runner.async_loop import around_thread_work
from runner.celery.external_tasks import CeleryTask
from runner.errors import UsageError

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CeleryTask", "around_thread_work", "install"]


def install(app: Celery) -> None:
    """Add the tasks and background threads of a runner worker to an existing Celery app.

    The `RUNNER_*` settings name the store (RUNNER_REDIS_URL) and the modules with graphs
    (RUNNER_GRAPHS). They are read from the environment when a worker starts or a client is made, so
    a settings file of the project may put its own values there. The app's own settings stay as they
    are; its workers also serve the queues of the graphs, unless `-Q` says otherwise.
    """
    from runner.celery import application  # noqa: PLC0415 - graphs that name a CeleryTask load no Celery

    application.install(app)


def __getattr__(name: str) -> Any:
    """Build the app when Celery's command asks for it, and not when this package is imported."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner.celery.application import make_app  # noqa: PLC0415 - see above

    try:
        app = globals()["app"] = make_app()
    except UsageError as error:
        if click.get_current_context(silent=True) is None:
            raise
        # Celery's command would print a traceback for a wrong setting.
        sys.exit(f"Error: {error}")
    return app
