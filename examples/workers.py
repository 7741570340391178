"""A private store and a real worker for an example; both stop when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runner import Client
from runner.dev.embedded import embedded_store
from runner.dev.worker_process import worker_process


@contextmanager
def client_with_worker(module: str) -> Iterator[Client]:
    """Start a store and a worker with the graphs of a module, and yield a client."""
    with embedded_store() as store:
        settings = {"RUNNER_REDIS_URL": store.url, "RUNNER_GRAPHS": module}
        with worker_process(settings, concurrency=4, grace=2) as worker:
            worker.wait_ready()
            yield Client(redis_url=store.url)
