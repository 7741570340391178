"""`celery -A yourapp graph …`: our command line with the store and settings of an existing Celery app."""

from __future__ import annotations

import sys
from typing import Any

import click

from runner.cli.program import report, runner
from runner.cli.session import Session
from runner.settings import Settings
from tasks.config import SETTINGS
from tasks.engines import settings_of

OURS_ALONE = ("completion", "dev", "init", "worker")
"""What has no place below an app of one's own: Celery has workers and completion itself."""


class Graph(click.Group):
    """Celery's command line calls this like a command of its own, so it must leave as ours does."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one command and leave with its exit code."""
        app = ctx.obj.app
        settings = settings_of(app) if SETTINGS in app.conf else Settings()
        session = ctx.obj = Session(redis_url=settings.redis_url)
        try:
            code = super().invoke(ctx)
        except (SystemExit, click.exceptions.Exit):
            raise
        except BaseException as error:  # noqa: BLE001 - the end of the program: every error becomes a code
            code = report(error, session)
        sys.exit(int(code or 0))


graph = Graph(
    "graph",
    commands={name: command for name, command in runner.commands.items() if name not in OURS_ALONE},
    help="Look at graphs and runs, and answer questions: the commands of `runner`, for this app.",
    params=runner.params,
)
