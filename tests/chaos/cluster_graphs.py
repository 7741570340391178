"""Graphs for workers whose store is a cluster: their nodes talk to nobody."""

from __future__ import annotations

from celery import current_task

from runner import graph
from runner.celery.inline_continuation import CLAIMED
from tests.celery.graphs import ask, build


def came(_ctx):
    """Return how the node's task came: from the queue, or as the next one on its slot."""
    return "stayed" if CLAIMED in current_task.request.__dict__ else "fetched"


@graph("spread")
def spread():
    return build("ab", "ac", "bd", "cd", c=ask)


@graph("row")
def row():
    return build("ab", "bc", "cd", "de", a=came, b=came, c=ask, d=came, e=came)
