"""`runner worker`: this process becomes a Celery worker that runs nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from runner.cli.session import Session, pass_session, shared

POOLS = ("threads", "prefork", "solo")
QUIET = ("--without-gossip", "--without-mingle")
"""Workers need not know each other: that saves a second at every start."""


def worker_command(
    pool: str = "threads", concurrency: int | None = None, more: Sequence[str] = ()
) -> list[str]:
    """Write the command line of a worker; what is left out, the worker's own settings decide.

    A command and not a call: the library knows nothing of Celery, the worker is a program beside it.
    """
    command = [sys.executable, "-m", "celery", "--app", "tasks.app:app", "worker", "--pool", pool, *QUIET]
    if concurrency is not None:
        command += ["--concurrency", str(concurrency)]
    return [*command, *more]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--pool",
    type=click.Choice(POOLS),
    default=POOLS[0],
    show_default=True,
    help="How nodes run side by side: in threads, in processes (prefork), or one at a time (solo).",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="How many nodes run at the same time; else 100 threads, or a process for each processor.",
)
@click.option(
    "--loglevel",
    default="info",
    show_default=True,
    help="The least that is logged: debug, info, warning or error.",
)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- CELERY OPTIONS]")
@shared
@pass_session
def worker(
    session: Session, pool: str, concurrency: int | None, loglevel: str, more: tuple[str, ...]
) -> None:
    """Run nodes: become a Celery worker.

    It serves the graphs of RUNNER_GRAPHS, like `celery --app tasks.app:app worker`. Options after --
    go to Celery as they are, for example -- --queues fast.
    """
    os.environ.update(session.environment())
    command = worker_command(pool, concurrency, ["--loglevel", loglevel, *more])
    os.execv(command[0], command)  # noqa: S606 - a list, and no shell
