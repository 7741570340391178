"""A worker that writes the items of long lists in many requests."""

from __future__ import annotations

from runner.store.redis import requests

requests.WRITTEN = 1
