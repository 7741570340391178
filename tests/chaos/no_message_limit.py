"""Sabotage: a worker that takes large messages as many at a time as small ones, and more."""

from __future__ import annotations

from runner.store.redis import streams
from tasks.app import app

__all__ = ["app"]

read = streams.StreamReader.read
assert read.__defaults__[0] == streams.HAND
streams.LARGE = 1 << 60
read.__defaults__ = (100, *read.__defaults__[1:])
