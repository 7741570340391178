"""`runner worker` and `runner workers`: become a worker, and list those that there are."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner.cli.context import CommandContext, common_options, with_context
from runner.cli.output import clock_time, stamp

if TYPE_CHECKING:
    from runner.cli.views import WorkerView

POOLS = ("threads", "prefork", "solo")
QUIET = ("--without-gossip", "--without-mingle")
"""Workers need not know each other; that saves a second at every start."""


def worker_command(
    pool: str = "threads", concurrency: int | None = None, more: Sequence[str] = ()
) -> list[str]:
    """Return the command line of a worker.

    A command and not a call, because the CLI must not import Celery: help would take a second.
    """
    command = [sys.executable, "-m", "celery", "--app", "runner.celery", "worker", "--pool", pool, *QUIET]
    if concurrency is not None:
        command += ["--concurrency", str(concurrency)]
    return [*command, *more]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--pool",
    type=click.Choice(POOLS),
    default=POOLS[0],
    show_default=True,
    help="Run nodes in threads, in processes (prefork), or one at a time (solo).",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="Maximum number of nodes that run at the same time (default: 100 threads, or a process per CPU).",
)
@click.option(
    "--loglevel",
    default="info",
    show_default=True,
    help="The lowest level that is logged: debug, info, warning or error.",
)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- CELERY OPTIONS]")
@with_context
def worker(
    context: CommandContext, pool: str, concurrency: int | None, loglevel: str, more: tuple[str, ...]
) -> None:
    """Run nodes: become a Celery worker.

    It serves the graphs of RUNNER_GRAPHS, like `celery --app runner.celery worker`. Options after --
    are passed to Celery, for example -- --queues fast. Its name is worker-PID@HOST, unless -- --hostname
    NAME names it.
    """
    os.environ.update(context.environment())
    named = any(option == "-n" or option.startswith(("--hostname", "-n=")) for option in more)
    # Two workers of one name on one machine would be one in Celery's events and remote control. The
    # process that Celery's worker becomes has the id of this one.
    name = [] if named else ["--hostname", f"worker-{os.getpid()}@%h"]
    command = worker_command(pool, concurrency, ["--loglevel", loglevel, *name, *more])
    os.execv(command[0], command)  # noqa: S606 - a list, and no shell


@click.group()
@common_options
def workers() -> None:
    """List the workers, the processes that run nodes."""


@workers.command("list")
@with_context
def list_workers(context: CommandContext) -> None:
    """List the workers with their queues and graphs.

    A worker runs at most as many nodes at the same time as it has slots. A worker is "alive"; "gone" when
    it has not reported for half a minute: its nodes run again on other workers; "stopping" when it was
    asked to stop and still runs nodes; "hangs" when it should have stopped by now. A worker that has
    stopped is not listed.

    Without a terminal: name, process id, state, busy slots, slots, pool, queues, graphs and time of the
    last report (UTC), separated by tabs.
    """
    from runner.cli.views import read_workers

    listed, output = read_workers(context.settings.redis_url), context.output
    if output.as_json:
        output.data({"workers": listed})
    elif output.is_terminal:
        headings = ("WORKER", "STATE", "BUSY", "POOL", "QUEUES", "GRAPHS", "SEEN")
        output.table(headings, [_row(item) for item in listed], "No workers. `runner worker` starts one.")
    else:
        output.lines(_cells(item) for item in listed)


def _row(view: WorkerView) -> tuple[object, ...]:
    busy, queues, graphs = f"{view.busy}/{view.slots}", " ".join(view.queues), " ".join(view.graphs)
    return view.name, view.state, busy, view.pool, queues, graphs, clock_time(view.seen)


def _cells(view: WorkerView) -> tuple[object, ...]:
    queues, graphs, seen = ",".join(view.queues), ",".join(view.graphs), stamp(view.seen)
    return view.name, view.pid, view.state, view.busy, view.slots, view.pool, queues, graphs, seen
