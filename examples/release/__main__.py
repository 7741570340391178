"""Run the release example to its end: a store, a real worker, one run, and two answers.

`python -m examples.release [PATH] [--commits N] [--out FILE]`. The terminal asks nothing: the
answers are sent as messages, as an approval service would send them. It ends with 0 when the notes
are written, and leaves nothing running.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import click

from examples.release.show import show
from runner.cli.dev import start_server
from runner.cli.exits import CommandError, Exit, command_error
from runner.dev.embedded import embedded_store
from runner.dev.worker_process import WorkerProcess, worker_process
from runner.errors import RunnerError
from runner.settings import Settings


@click.command()
@click.argument("path", default=".", type=click.Path(exists=True, file_okay=False))
@click.option("--commits", default=20, show_default=True, help="The maximum number of changes.")
@click.option(
    "--out", default="release-notes/NOTES.md", show_default=True, help="The file for the notes."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Also show the run in the browser, until Ctrl-C.",
)
def main(path: str, commits: int, out: str, port: int | None) -> None:
    """Run the release graph on the repository at PATH, on a real worker, to the end."""
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # stops store and worker, too, like Ctrl-C
    task = {
        "path": str(Path(path).resolve()),
        "commits": commits,
        "out": str(Path(out).resolve()),
    }
    try:
        with ExitStack() as stack:
            url = _start_store(stack)
            worker = _start_worker(stack, url)
            pages = start_server(stack, _environment(url), port) if port else ""
            if pages:
                click.echo(f"pages   {pages}&next=/runs")
            written = show(url, worker, task)
            click.echo(f"Done. The notes are in {written}")
            if pages:
                click.echo(f"The run is at {pages}&next=/runs until you press Ctrl-C.")
                with suppress(KeyboardInterrupt):
                    signal.pause()
    except (RunnerError, CommandError, TimeoutError, KeyboardInterrupt) as error:
        failure = command_error(error)
        click.echo(f"Error: {failure.message}", err=True)
        sys.exit(failure.code)
    if port is None:
        click.echo("To see it in the browser: make run PORT=8080")
    sys.exit(Exit.DONE)


def _start_store(stack: ExitStack) -> str:
    settings = Settings()
    if "redis_url" in settings.model_fields_set:
        click.echo("store   the one that RUNNER_REDIS_URL names")
        return settings.redis_url
    store = stack.enter_context(embedded_store())
    click.echo(f"store   a private one, process {store.pid}")
    return store.url


def _environment(url: str) -> dict[str, str]:
    return {"RUNNER_REDIS_URL": url, "RUNNER_GRAPHS": "examples.release.graph"}


def _start_worker(stack: ExitStack, url: str) -> WorkerProcess:
    worker = stack.enter_context(worker_process(_environment(url), concurrency=8, grace=2))
    worker.wait_ready()
    click.echo(f"worker  a Celery worker, process {worker.pid}")
    return worker


main()
