"""Graphs whose nodes raise errors that only the process of the node can load."""

from __future__ import annotations

import os
import sys
import types

from runner import GraphBuilder, RetryPolicy, graph


class OnlyHere(Exception):
    """Is read in another process with an error."""

    def __reduce__(self):
        return _load, self.args


def _load(pid):
    if pid != os.getpid():
        raise OSError("not here")
    return OnlyHere(pid)


def explode(ctx):
    if ctx.task == "memory":
        raise MemoryError("no room")
    if ctx.task == "oserror":
        raise OnlyHere(os.getpid())
    # As of a module that the node's code has loaded from somewhere.
    module = sys.modules["only_here"] = types.ModuleType("only_here")
    module.Odd = type("Odd", (Exception,), {"__module__": "only_here"})
    raise module.Odd("odd")


def single(**options):
    builder = GraphBuilder()
    builder.add_node(explode, "only", **options)
    return builder.build()


@graph("explodes")
def explodes():
    return single()


@graph("explodes-twice")
def explodes_twice():
    return single(retry=RetryPolicy(max_attempts=2, backoff=0))
