"""A worker process that can't outlive this one; `runner dev`, tests and examples start workers with it."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.cli.workers import worker_command
from runner.dev.supervised_process import SupervisedProcess
from runner.errors import RunnerError

BOOT_TIMEOUT = 30.0
"""Seconds for a worker to start; usually two."""

GRACE = 5.0
"""Seconds for running nodes to finish; a node that is cut off runs again on another worker."""

READY = "worker.ready:"
"""What the worker logs once the store has its graphs and can wake it."""


class WorkerEnded(RunnerError):
    """The worker process ended by itself."""


class WorkerProcess:
    """A running worker; its log is a file, read line by line."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        log.touch()
        self._log = log.open(encoding="utf-8", errors="replace")
        self._guard = SupervisedProcess(list(command), log=log, folder=log.parent, environment=environment)
        self._partial = ""

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._guard.pid

    def lines(self) -> list[str]:
        """Return the lines that it has logged since the last call."""
        *whole, self._partial = (self._partial + self._log.read()).split("\n")
        return whole

    def alive(self, seconds: float = 0) -> bool:
        """Whether it is still running, after waiting for its end for at most this long."""
        return self._guard.alive(seconds)

    def wait_ready(self, on_line: Callable[[str], object] | None = None) -> None:
        """Return when it accepts work; `on_line` is called with each line that it logs until then.

        Raises:
            WorkerEnded: it ended, or took too long.
        """
        logged: list[str] = []
        for _ in range(round(BOOT_TIMEOUT / 0.05)):
            running = self.alive(0.05)
            for line in self.lines():
                logged.append(line)
                if on_line is not None:
                    on_line(line)
                if READY in line:
                    return
            if not running:
                break
        last = "\n".join(line for line in logged[-15:] if line.strip())
        raise WorkerEnded(f"the worker did not become ready and was stopped. The end of its log:\n{last}")

    def stop(self, grace: float = GRACE) -> None:
        """Wait for running nodes to finish, at most this many seconds, and end it."""
        if self.alive():
            os.kill(self.pid, signal.SIGTERM)
            self.alive(grace)
        self._guard.end()
        self._log.close()


@contextmanager
def worker_process(
    environment: Mapping[str, str],
    *,
    concurrency: int | None = None,
    more: Sequence[str] = (),
    grace: float = GRACE,
) -> Iterator[WorkerProcess]:
    """Run a worker for the length of a `with` block, with these variables added to the environment."""
    with tempfile.TemporaryDirectory(prefix="runner-worker-") as folder:
        command = worker_command(concurrency=concurrency, more=["--loglevel", "info", *more])
        worker = WorkerProcess(command, Path(folder) / "worker.log", environment)
        try:
            yield worker
        finally:
            worker.stop(grace)
