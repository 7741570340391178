"""Sabotage: a worker in which a node that is a graph keeps its slot until the graph has ended."""

from __future__ import annotations

import threading

from runner.execution.engine import Engine
from tasks.app import app
from tests.celery.graphs import store

__all__ = ["app"]

execute = Engine.execute


def hold(self, *claim):
    """Do as the engine does, but stay while the child runs."""
    delivery = execute(self, *claim)
    if delivery.child:
        pause = threading.Event()
        with store() as client:
            client.rpush("holding", delivery.child)
        while not self.store.peek(delivery.child).is_final:
            pause.wait(0.05)
    return delivery


Engine.execute = hold
