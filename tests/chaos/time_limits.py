"""A worker with Celery's own time limits: the soft one raises in a node, the hard one kills its process."""

from __future__ import annotations

from tasks.app import app

__all__ = ["app"]

app.conf.task_soft_time_limit = 2
app.conf.task_time_limit = 4
app.conf.worker_pool_start_method = "fork"
