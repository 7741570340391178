"""Worker processes: `runner worker` becomes one, `runner workers` lists them, `runner metrics` counts.

`worker_process` runs a worker that can't outlive its starter, for `runner dev`, tests and examples.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.context import CommandContext, common_options, with_context
from runner.cli.output import clock_time
from runner.dev.supervised_process import SupervisedProcess
from runner.errors import RunnerError
from runner.records.json_form import stamp

if TYPE_CHECKING:
    from runner.operations.views import WorkerView

POOLS = ("threads", "async", "prefork", "solo")

LOG_LEVEL = click.option(
    "--loglevel",
    default="info",
    show_default=True,
    help="The lowest level that is logged: debug, info, warning or error.",
)


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


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--pool",
    type=click.Choice(POOLS),
    default=POOLS[0],
    show_default=True,
    help="Run nodes in threads, in processes (prefork), or one at a time (solo). With async, nodes that "
    "await hold no thread.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="Maximum number of nodes that run at the same time (default: 100 threads, 1000 with async, or a "
    "process per CPU).",
)
@LOG_LEVEL
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- CELERY OPTIONS]")
@with_context
def worker(
    context: CommandContext,
    pool: str,
    concurrency: int | None,
    loglevel: str,
    more: tuple[str, ...],
) -> None:
    """Run nodes: become a Celery worker.

    It serves the graphs of RUNNER_GRAPHS, like `celery --app runner.celery worker`. Options after --
    are passed to Celery, for example -- --queues fast. Its name is worker-PID@HOST, unless set by
    -- --hostname NAME.
    """
    named = any(option == "-n" or option.startswith(("--hostname", "-n=")) for option in more)
    # Celery's events and remote control can't tell apart two workers of one name on a machine. Celery's
    # worker replaces this process, and keeps its id.
    name = [] if named else ["--hostname", f"worker-{os.getpid()}@%h"]
    context.become(*worker_command(pool, concurrency, ["--loglevel", loglevel, *name, *more]))


@click.command()
@click.option(
    "--app",
    metavar="MODULE:APP",
    default="runner.celery:app",
    show_default=True,
    help="The Celery app of your workers, whose broker is used.",
)
@LOG_LEVEL
@with_context
def keeper(context: CommandContext, app: str, loglevel: str) -> None:
    """Apply answers, starts and timers, and run no nodes.

    A keeper does a worker's tasks other than running nodes: it applies answers and starts that come as
    messages, sweeps, so that retries, reminders and expiries come in time, and publishes notices on
    RabbitMQ. Ready nodes stay in their queues until a worker takes them. With one or two keepers, workers
    can be scaled to zero while their queues are empty. It ends at SIGTERM within seconds.
    """
    context.become("runner.celery.keeper", app, loglevel)


@click.group()
@common_options
def workers() -> None:
    """List the workers, the processes that run nodes."""


@workers.command("list")
@with_context
def list_workers(context: CommandContext) -> None:
    """List the workers with their queues and graphs.

    A worker runs at most as many nodes at the same time as it has slots. A worker is "alive"; "gone" if
    it has not reported for half a minute, so its nodes run again on other workers; "stopping" if it was
    asked to stop and still runs nodes; or "hangs" if it should have stopped by now. A worker that has
    stopped is not listed. A keeper is listed, too; it has no slots.

    Without a terminal: name, process id, state, busy slots, slots, pool, queues, graphs and time of the
    last report (UTC), separated by tabs.
    """
    from runner.operations.views import read_workers

    views = read_workers(context.installation)
    headings = ("WORKER", "STATE", "BUSY", "POOL", "QUEUES", "GRAPHS", "SEEN")
    nothing = "No workers. `runner worker` starts one."
    rows = [_row(item) for item in views]
    context.output.listing(
        {"workers": views}, headings, rows, nothing, lines=map(_cells, views)
    )


def _row(view: WorkerView) -> tuple[object, ...]:
    return (
        view.name,
        view.state,
        f"{view.busy}/{view.slots}",
        view.pool,
        " ".join(view.queues),
        " ".join(view.graphs),
        clock_time(view.seen),
    )


def _cells(view: WorkerView) -> tuple[object, ...]:
    return (
        view.name,
        view.pid,
        view.state,
        view.busy,
        view.slots,
        view.pool,
        ",".join(view.queues),
        ",".join(view.graphs),
        stamp(view.seen),
    )


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


@click.command()
@with_context
def metrics(context: CommandContext) -> None:
    """Write metrics of runs, questions and workers for Prometheus.

    The format is the text format of Prometheus, a widely used monitoring program. The numbers are read
    from the store, so one process reports for all workers. A textfile collector such as the node
    exporter's can read them from a file:

    \b
      runner metrics > runner.prom.new && mv runner.prom.new runner.prom
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from runner.operations.metrics import prometheus

    numbers = context.installation.metrics()
    if context.output.as_json:
        context.output.data({"metrics": numbers})
        return
    click.echo(prometheus(numbers), nl=False)
