"""A worker process beside this one, which can't outlive it; `runner dev` and the examples use it."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.cli.worker import worker_command
from runner.errors import RunnerError
from runner.guard import Guard

READY_WITHIN = 30.0
"""Seconds for a worker to boot; usually two."""

GRACE = 5.0
"""Seconds for the nodes that run to finish; what is cut off runs again elsewhere, by design."""

READY = "worker.ready:"
"""What the worker logs once the store knows its graphs and can ring it."""


class WorkerEnded(RunnerError):
    """The worker process ended by itself."""


class WorkerProcess:
    """A running worker; what it logs is read from its file, line by line."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        log.touch()
        self._log = log.open(encoding="utf-8", errors="replace")
        self._guard = Guard(list(command), log=log, folder=log.parent, environment=environment)
        self._rest = ""

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._guard.pid

    def lines(self) -> list[str]:
        """Give the lines that it has logged since the last call."""
        *whole, self._rest = (self._rest + self._log.read()).split("\n")
        return whole

    def alive(self, seconds: float = 0) -> bool:
        """Whether it still runs after that time at most."""
        return self._guard.alive(seconds)

    def wait_ready(self, each_line: Callable[[str], object] | None = None) -> None:
        """Return when it takes work; `each_line` gets what it logs until then.

        Raises:
            WorkerEnded: it ended, or took too long.
        """
        said: list[str] = []
        for _ in range(round(READY_WITHIN / 0.05)):
            running = self.alive(0.05)
            for line in self.lines():
                said.append(line)
                if each_line is not None:
                    each_line(line)
                if READY in line:
                    return
            if not running:
                break
        last = "\n".join(line for line in said[-15:] if line.strip())
        raise WorkerEnded(f"the worker did not get ready and was stopped. Its log ends:\n{last}")

    def stop(self, grace: float = GRACE) -> None:
        """Let it finish what runs, for so many seconds at most; then end it."""
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
    """Run a worker for the length of a `with` block, with that environment besides our own."""
    with tempfile.TemporaryDirectory(prefix="runner-worker-") as folder:
        command = worker_command(concurrency=concurrency, more=["--loglevel", "info", *more])
        worker = WorkerProcess(command, Path(folder) / "worker.log", environment)
        try:
            yield worker
        finally:
            worker.stop(grace)
