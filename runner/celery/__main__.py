"""`python -m runner.celery worker …`: Celery's command, limited to workers of our own app.

The program `celery` imports the commands of every installed package, including Flower and a shell,
before it starts a worker. That takes half of the start time.
"""

from __future__ import annotations

import logging
import sys

from celery.bin.base import CLIContext
from celery.concurrency import ALIASES

from runner.celery.config import settings_of
from runner.errors import UsageError
from runner.execution.telemetry import JsonFormatter


def main() -> None:
    """Run a worker."""
    ALIASES["async"] = "runner.celery.async_pool:TaskPool"
    from celery.bin.worker import worker  # noqa: PLC0415 - its options list the aliases

    try:
        from runner.celery import app  # noqa: PLC0415 - importing it builds the app
    except UsageError as error:
        sys.exit(f"Error: {error}")
    quiet = settings_of(app).log_format == "json"  # Celery's banner isn't JSON
    if quiet:
        log_json_until_celery_does()
    context = CLIContext(app=app, no_color=False, workdir=None, quiet=quiet)
    worker.main(sys.argv[2:], prog_name="celery worker", obj=context)


def log_json_until_celery_does() -> None:
    """Write records and warnings as JSON: Celery warns about running as root before it sets up its log."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(capture=True)


if __name__ == "__main__":
    main()
