"""Real worker processes for tests, on a private store; they end with the tests."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from runner.client import Client
from runner.dev.worker_process import worker_process

SLOTS = 4

SETTINGS = {"RUNNER_LEASE": "5", "RUNNER_SWEEP_INTERVAL": "0.2"}
"""Times shorter than in production, so that a lost worker's work continues while the test waits."""


class Workers:
    """Starts one worker for each set of modules."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        """Use the store at `url`; the workers end with the stack."""
        self._url, self._stack = url, stack
        self._clients: dict[tuple[object, ...], Client] = {}

    def client(self, *modules: str, **settings: str) -> Client:
        """Return a client of the store, with a worker that has the graphs of these modules.

        Raises:
            WorkerEnded: the worker did not become ready; the message has the end of its log.
        """
        key = (*modules, *sorted(settings.items()))
        if key not in self._clients:
            environment = {
                **SETTINGS,
                "RUNNER_REDIS_URL": self._url,
                "RUNNER_GRAPHS": ",".join(modules),
                "PYTHONPATH": os.pathsep.join(
                    filter(None, sys.path)
                ),  # it imports what the test can import
                **settings,
            }
            worker = self._stack.enter_context(worker_process(environment, concurrency=SLOTS))
            worker.wait_ready()
            self._clients[key] = Client(self._url, namespace=settings.get("RUNNER_NAMESPACE"))
        return self._clients[key]
