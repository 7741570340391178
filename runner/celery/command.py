"""`celery -A yourapp runner …`: our command line with the store and settings of an existing Celery app.

The name is `runner` because Celery's own command `graph` would hide a plugin's.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from runner.celery.config import settings_of
from runner.cli.context import CommandContext
from runner.cli.program import Program, report, runner

LEFT_OUT = ("dev", "init", "keeper", "worker")
"""Commands that make no sense for an existing app, or that Celery already has."""


class RunnerGroup(Program):
    """The commands of `runner`. Celery's program calls this group, which must exit with their codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one command and exit with its code."""
        settings = settings_of(ctx.obj.app)
        context = ctx.obj = CommandContext(
            redis_url=settings.redis_url, namespace=settings.namespace
        )
        try:
            code = super().invoke(ctx)
        except (SystemExit, click.exceptions.Exit):
            raise
        except BaseException as error:  # noqa: BLE001 - the end of the program: every error becomes a code
            code = report(error, context)
        sys.exit(int(code or 0))


commands = RunnerGroup(
    "runner",
    commands={
        name: command for name, command in runner.commands.items() if name not in LEFT_OUT
    },
    help="Look at graphs and runs, and answer questions: the commands of `runner`, for this app.",
    params=runner.params,
)
