"""`python -m runner.celery worker …`: Celery's command for workers of our own app, and nothing else.

The program `celery` imports the commands of every installed package, Flower and a shell among them, before it
starts a worker: half of the time that the start takes.
"""

from __future__ import annotations

import logging
import sys

from celery.bin.base import CLIContext
from celery.bin.worker import worker

from runner.celery.config import settings_of
from runner.errors import UsageError
from runner.execution.telemetry import JsonFormatter


def main() -> None:
    """Become a worker."""
    try:
        from runner.celery import app  # noqa: PLC0415 - it is built when it is imported
    except UsageError as error:
        sys.exit(f"Error: {error}")
    quiet = settings_of(app).log_format == "json"  # Celery's banner is no JSON
    if quiet:
        log_json_until_celery_does()
    context = CLIContext(app=app, no_color=False, workdir=None, quiet=quiet)
    worker.main(sys.argv[2:], prog_name="celery worker", obj=context)


def log_json_until_celery_does() -> None:
    """Write records and warnings as JSON: Celery warns of a worker of root before it sets up its log."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(capture=True)


if __name__ == "__main__":
    main()
