"""Runs made without a worker: this process is the engine that executes their nodes, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import graphs
from runner import Graph
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.store.interface import Doorbell, Store
from runner.store.redis.store import RedisStore


class Bells:
    """A dispatcher that keeps the doorbells for whoever executes the nodes next."""

    def __init__(self) -> None:
        """Nothing has rung yet."""
        self.ready: list[Doorbell] = []

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Keep them."""
        self.ready += doorbells

    def call(self, task: str, kwargs: object, task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Call nothing."""
        return False


class Filler:
    """Fills a store with runs."""

    def __init__(
        self, url: str, factories: Mapping[str, Callable[[], Graph]] | None = None
    ) -> None:
        """Publish the graphs; doorbells come back to this process, not to a queue."""
        factories = factories or {name: graphs.FACTORIES[name] for name in ("waiting", "short")}
        self.bells = Bells()
        own = Registry()
        for name, factory in factories.items():
            own.add(name, factory)
        self.store: Store = RedisStore(url, push=False)
        self.engine = Engine(self.store, self.bells, own)
        self.engine.publish(list(factories))

    def add(self, graph: str, count: int) -> None:
        """Execute so many runs of a graph until they have ended or wait."""
        for _ in range(count):
            self.start(graph, None)

    def start(self, graph: str, task: object, **options: Any) -> None:
        """Execute a run until it has ended or waits."""
        self.engine.start(graph, task, **options)
        while self.bells.ready:
            bell = self.bells.ready.pop()
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
