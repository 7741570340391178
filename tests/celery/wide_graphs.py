"""A map of many items, each of which takes a moment."""

from __future__ import annotations

import time

from runner import graph
from tests.celery.shapes import each_of


@graph("wide")
def wide():
    return each_of(lambda ctx: list(range(ctx.task)), lambda ctx: time.sleep(0.02), "after")
