"""Sabotage: a worker that sweeps the first of several partitions alone."""

from __future__ import annotations

from runner.celery import app
from runner.store.redis.partitions import PartitionedStore

__all__ = ["app"]

PartitionedStore.sweep = lambda self, limit=100: self._partitions[0].sweep(limit)
