"""The command tree, and the frame of every command: an error becomes one line and an exit code."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from typing import Any, NoReturn

import click

from runner.cli.api import api
from runner.cli.audit import audit
from runner.cli.config import config
from runner.cli.context import CommandContext, command, common_options
from runner.cli.controls import dead, freeze, limits, thaw
from runner.cli.dev import dev
from runner.cli.exits import Exit, command_error
from runner.cli.graphs import graphs
from runner.cli.init import init
from runner.cli.interrupts import interrupts
from runner.cli.keys import keys
from runner.cli.runs import run, runs
from runner.cli.server import gate, mcp, server
from runner.cli.workers import keeper, metrics, worker, workers
from runner.immutable import immutable

DISTRIBUTION = "celery-graph-runner"


class Program(click.Group):
    """The outermost group, which exits the process if it is called as a program."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one command and return its exit code, if it has one."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe, as in `runner runs list | head`. Python would complain when
            # it flushes stdout at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.DONE
        return code

    def main(self, *words: Any, **extra: Any) -> NoReturn:
        """Run one command and exit with its code; write an error as one line and a hint on stderr."""
        extra["standalone_mode"] = False
        context = extra.setdefault("obj", CommandContext(program=extra["prog_name"]))
        exit_after(partial(super().main, *words, **extra), context)


def exit_after(call: Callable[[], Any], context: CommandContext) -> NoReturn:
    """Call and exit with the returned code; write an error as one line and a hint on stderr."""
    try:
        code = call()
    except (SystemExit, click.exceptions.Exit):
        raise
    except BaseException as error:  # noqa: BLE001 - the end of the program: every error becomes a code
        if context.debug:
            traceback.print_exception(error)
        failure = command_error(error)
        context.output.note(f"Error: {failure.message}")
        if failure.hint:
            context.output.note(f"Hint: {failure.hint}")
        code = failure.code
    sys.exit(int(code or 0))


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    package_name=DISTRIBUTION, prog_name="runner", message="%(prog)s %(version)s"
)
@common_options
def runner() -> None:
    """Run graphs of agents and functions on Celery workers, and answer their questions.

    A graph has nodes, which are functions or agents, and edges between them. A run is one execution of a
    graph; the store, a Redis or Valkey server, holds all runs. Workers are the processes that run nodes.
    The broker carries the messages that wake them: it is the same Redis, unless RUNNER_BROKER_URL names
    another one. A node that needs a person asks a question, called an interrupt, and only the branch
    behind it waits for the answer.

    \b
    To begin:
      runner init my-project    create a small project: a graph and its tests
      runner dev                start a store and a worker on this machine

    On a terminal, commands write tables and trees. Without one, in a pipe or into a file, they write
    tab-separated lines; with --json they write JSON.

    Exit codes: 0 done, 1 run failed, 2 wrong usage, 3 waiting for a person, 4 not found, 5 conflict: the
    request came too late, or something exists already, 6 not allowed, 7 store or broker unreachable,
    8 timed out, 70 internal error, 130 stopped by Ctrl-C.
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is


# -- about the program -------------------------------------------------------------------------------


@immutable
class Versions:
    """The installed versions."""

    version: str
    python: str
    celery: str
    kombu: str
    redis: str


@command()
def version(context: CommandContext) -> None:
    """Show the installed versions."""
    from importlib.metadata import version as installed

    names = ("celery", "kombu", "redis")
    versions = Versions(
        installed(DISTRIBUTION), platform.python_version(), *map(installed, names)
    )
    context.output.write(
        versions,
        zip((DISTRIBUTION, "python", *names), astuple(versions), strict=True),
    )


@command()
def doctor(context: CommandContext) -> int:
    """Check store, broker, workers and settings, and suggest fixes.

    Each line has PASS, WARN or FAIL, the name of the check, details and the fix. Without a terminal the
    cells are separated by tabs.

    Exit codes: 0 no problems, or only warnings; 1 a check failed; 7 the store can't be reached.
    """
    from runner.operations.doctor import FAIL, examine, read_facts

    advice = context.output.advice
    examined = examine(read_facts(context.settings))
    checks = [replace(check, fix=advice(check.fix)) for check in examined]
    rows = [(check.result.upper(), check.name, check.detail, check.fix) for check in checks]
    context.output.listing({"checks": checks}, ("", "CHECK", "DETAIL", "FIX"), rows)
    return Exit.RUN_FAILED if any(check.result == FAIL for check in checks) else Exit.DONE


# -- the tree ----------------------------------------------------------------------------------------

for _command in (
    init,
    dev,
    worker,
    run,
    runs,
    limits,
    interrupts,
    graphs,
    workers,
    dead,
    keys,
    audit,
    freeze,
    thaw,
    doctor,
    keeper,
    server,
    api,
    mcp,
    gate,
    metrics,
    config,
    version,
):
    runner.add_command(_command)

WORDS = {
    "RUN": "RUN is the id of a run or a unique prefix: `runner run` and `runner runs list` print it.",
    "GRAPH": "GRAPH is the name of a graph: `runner graphs list` prints it.",
    "INTERRUPT": "INTERRUPT is the id of a question or a unique prefix: `runner interrupts list` prints it.",
    "LETTER": "LETTER is the id of a dead letter: `runner dead list` prints it.",
}


def _explain_words(command: click.Command) -> None:
    """Explain a command's words in capitals at the end of its help."""
    for inner in getattr(command, "commands", {}).values():
        _explain_words(inner)
    names = {
        str(parameter.metavar or parameter.name).strip("[].").upper()
        for parameter in command.params
    }
    command.epilog = "\n\n".join(line for name, line in WORDS.items() if name in names) or None


_explain_words(runner)
