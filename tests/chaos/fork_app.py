"""A worker of ours whose children are forked: they die too often to import everything again."""

from __future__ import annotations

from tasks.app import app

__all__ = ["app"]

app.conf.worker_pool_start_method = "fork"
