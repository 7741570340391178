"""Nodes that ask, and one that counts what they have left in their process."""

from __future__ import annotations

import gc

from billiard import einfo

from runner import GraphBuilder, graph
from tests.celery.graphs import ask


def count(ctx):
    """Return the number of unreachable objects; from here on they stay until this is called again."""
    if ctx.task == "without the cache":
        einfo.Traceback.Frame.Code = einfo._Code
    left = gc.collect()
    gc.disable()
    return left


def only(node):
    builder = GraphBuilder()
    builder.add_node(node, "only")
    return builder.build()


@graph("asks")
def asks():
    return only(ask)


@graph("counts")
def counts():
    return only(count)
