"""Sabotage: a worker whose partitions count limits for themselves."""

from __future__ import annotations

from runner.celery import app
from runner.store.redis.partitions import PartitionedStore

__all__ = ["app"]

PartitionedStore._limit_home = lambda *_: None
