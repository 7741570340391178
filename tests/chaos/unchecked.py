"""Sabotage: a worker that gives its pool every request, whatever is in it."""

from __future__ import annotations

from tasks import refusals

refusals.check = lambda _request: None
