"""Runner on Celery: `celery --app runner.celery worker`, or `install(app)` for an app that exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.celery.external_tasks import CeleryTask

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CeleryTask", "install"]


def install(app: Celery) -> None:
    """Add our tasks, and the threads that our workers run beside them, to an existing Celery app.

    The `RUNNER_*` settings decide which store and graphs. The app's own settings stay as they are;
    its workers also serve the queues that the graphs name, unless `-Q` says otherwise.
    """
    from runner.celery import application  # noqa: PLC0415 - graphs that name a CeleryTask load no Celery

    application.install(app)


def __getattr__(name: str) -> Any:
    """Build the app when Celery's command asks for it; importing this package or its modules builds none."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner.celery.application import make_app  # noqa: PLC0415 - see above

    app = globals()["app"] = make_app()
    return app
