"""`celery -A yourapp runner …`: our command line with the store and settings of an existing Celery app.

The name is `runner` because Celery's own command `graph` would hide a plugin's.
"""

from __future__ import annotations

import re
import shlex
import sys
from functools import partial
from typing import Any

import click

from runner.celery.config import settings_of
from runner.cli.context import CommandContext
from runner.cli.program import Program, exit_after, runner

LEFT_OUT = ("dev", "init", "keeper", "worker")
"""Commands that make no sense for an existing app, or that Celery already has."""


class RunnerGroup(Program):
    """The commands of `runner`. Celery's program calls this group, which must exit with their codes."""

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        """Read the options, which may name another store than the app's."""
        if context := extra.get("obj") or extra["parent"].obj:  # none for a shell's completion
            settings = settings_of(context.app)
            called = ["celery", *sys.argv[1 : len(sys.argv) - len(words[1])]]
            public = [re.sub("(?<=://)[^/@]+(?=@)", "***", word) for word in called]
            extra["obj"] = CommandContext(
                redis_url=settings.redis_url,
                namespace=settings.namespace,
                program=shlex.join(public),
            )
        return super().make_context(*words, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run one command and exit with its code."""
        exit_after(partial(super().invoke, ctx), ctx.obj)


commands = RunnerGroup(
    "runner",
    commands={
        name: command for name, command in runner.commands.items() if name not in LEFT_OUT
    },
    help="Look at graphs and runs, and answer questions: the commands of `runner`, for this app.",
    params=runner.params,
)
