"""A worker process that can't outlive its starter, for `runner dev`, tests and examples."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.dev.supervised_process import SupervisedProcess
from runner.errors import RunnerError

BOOT_TIMEOUT = 30.0
"""Seconds within which a worker must start; it usually needs two."""

GRACE = 5.0
"""Seconds for running nodes to finish; an interrupted node runs again on another worker."""

READY = "worker.ready:"
"""The line that a worker logs once the store has its graphs and can wake it."""


class WorkerEnded(RunnerError):
    """The worker process ended by itself."""


class WorkerProcess:
    """A running worker; its log is a file, read line by line."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        log.touch()
        self._log = log.open(encoding="utf-8", errors="replace")
        self._guard = SupervisedProcess(
            list(command), log=log, folder=log.parent, environment=environment
        )
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
        """Return whether it still runs, after waiting for its end for at most this many seconds."""
        return self._guard.alive(seconds)

    def wait_ready(self, on_line: Callable[[str], object] | None = None) -> None:
        """Wait until it accepts work; `on_line` is called with each line that it logs until then.

        Raises:
            WorkerEnded: the worker ended, or took too long.
        """
        lines: list[str] = []
        for _ in range(round(BOOT_TIMEOUT / 0.05)):
            running = self.alive(0.05)
            for line in self.lines():
                lines.append(line)
                if on_line is not None:
                    on_line(line)
                if READY in line:
                    return
            if not running:
                break
        tail = "\n".join(line for line in lines[-15:] if line.strip())
        raise WorkerEnded(
            f"the worker did not become ready and was stopped. The end of its log:\n{tail}"
        )

    def stop(self, grace: float = GRACE) -> None:
        """Wait for running nodes to finish, at most this many seconds, and end the worker."""
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
    grace: float = GRACE,
) -> Iterator[WorkerProcess]:
    """Run a worker for the length of a `with` block, with these variables added to the environment."""
    with tempfile.TemporaryDirectory(prefix="runner-worker-") as folder:
        options = worker_command(concurrency=concurrency, more=["--loglevel", "info"])
        command = [sys.executable, "-m", *options]
        worker = WorkerProcess(command, Path(folder) / "worker.log", environment)
        try:
            yield worker
        finally:
            worker.stop(grace)


def worker_command(
    pool: str = "threads", concurrency: int | None = None, more: Sequence[str] = ()
) -> list[str]:
    """Return the module to run as a worker, and its arguments.

    The worker is a command, not a call, since the CLI must not import Celery: help would take a second.
    """
    command = ["runner.celery", "worker", "--pool", pool]
    if concurrency is not None:
        command += ["--concurrency", str(concurrency)]
    return [*command, *more]
