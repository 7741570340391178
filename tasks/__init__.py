"""The Celery skin: doorbells become engine calls. Importing this builds no app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.celery_task import CeleryTask

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CeleryTask", "install"]


def install(app: Celery) -> None:
    """Add our tasks, and what our workers do besides, to an existing Celery app.

    The `RUNNER_*` settings decide which store and graphs. The app's own settings stay as they are;
    its workers also serve the queues that the graphs name, unless `-Q` says otherwise.
    """
    from tasks.worker import equip  # noqa: PLC0415 - Celery is imported when it is needed

    equip(app)
