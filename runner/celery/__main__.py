"""`python -m runner.celery worker …`: Celery's command for workers of our own app, and nothing else.

The program `celery` imports the commands of every installed package, Flower and a shell among them, before it
starts a worker: half of the time that the start takes.
"""

from __future__ import annotations

import sys

from celery.bin.base import CLIContext
from celery.bin.worker import worker

from runner.errors import UsageError


def main() -> None:
    """Become a worker."""
    try:
        from runner.celery import app  # noqa: PLC0415 - it is built when it is imported
    except UsageError as error:
        sys.exit(f"Error: {error}")
    context = CLIContext(app=app, no_color=False, workdir=None, quiet=False)
    worker.main(sys.argv[2:], prog_name="celery worker", obj=context)


if __name__ == "__main__":
    main()
