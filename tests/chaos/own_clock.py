"""Sabotage: a process that imports this takes the time from its own clock, not from the store's."""

from __future__ import annotations

import time

from runner.store.redis.store import RedisStore

_open = RedisStore.__init__


def with_own_clock(self, *arguments, **named):
    _open(self, *arguments, **named)
    self.clock = lambda: time.time_ns() // 1_000_000


RedisStore.__init__ = with_own_clock
