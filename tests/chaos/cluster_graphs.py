"""Graphs for workers whose store is a cluster: their nodes talk to nobody."""

from __future__ import annotations

from runner import graph
from tests.celery.graphs import ask, build


@graph("spread")
def spread():
    return build("ab", "ac", "bd", "cd", c=ask)
