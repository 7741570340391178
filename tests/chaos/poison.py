"""Nodes that kill every process that runs them, each in a way of its own, and innocents beside them."""

from __future__ import annotations

import ctypes
import os
import resource

from runner import graph
from tests.chaos.hanging import gate, noted, one

ROOM = 64 << 20
"""Bytes that the greedy node may take beyond what its process has."""


def abort(ctx):
    noted(ctx)
    os.abort()


def segfault(ctx):
    noted(ctx)
    return ctypes.string_at(0)


def greedy(ctx):
    """Take memory as native code does, which does not ask whether it got any."""
    noted(ctx)
    pages = int(open("/proc/self/statm", encoding="ascii").read().split()[0])  # noqa: PTH123, SIM115 - one line
    bound = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.getrlimit(resource.RLIMIT_AS)[1]))
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    while True:
        ctypes.memset(libc.malloc(ROOM // 8), 1, ROOM // 8)


def innocent(ctx):
    """Take as long as the test wants; it has done nothing."""
    noted(ctx)
    gate(ctx)
    return "done"


POISONS = {"abort": abort, "segfault": segfault, "greedy": greedy}

for name, function in {**POISONS, "innocent": innocent}.items():
    graph(f"poison_{name}")(lambda function=function: one(function))
