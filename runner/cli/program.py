"""The command tree, and what happens around every command: errors become one line and a code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from runner.cli.completion import completion
from runner.cli.config import config
from runner.cli.dead import dead
from runner.cli.dev import dev
from runner.cli.doctor import doctor
from runner.cli.exits import Exit, translated
from runner.cli.graphs import graphs
from runner.cli.init import init
from runner.cli.interrupts import interrupts
from runner.cli.metrics import metrics
from runner.cli.migrate import migrate
from runner.cli.output import one_line
from runner.cli.runs import runs
from runner.cli.session import Session, shared
from runner.cli.start import run
from runner.cli.steering import again, cancel, fork, remove, retry
from runner.cli.version import version
from runner.cli.worker import worker
from runner.cli.workers import workers


class Program(click.Group):
    """The outermost group: it alone leaves the process."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run one command and exit with its code; an error is one line and a hint on stderr."""
        extra.pop("standalone_mode", None)
        session = extra.setdefault("obj", Session())
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has seen enough, as in `runner runs list | head`. Python would complain when
            # it flushes stdout at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = Exit.DONE
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the end of the program: every error becomes a code
            code = report(error, session)
        sys.exit(int(code or 0))


def report(error: BaseException, session: Session) -> Exit:
    """Say on stderr what went wrong, and return the code to leave with."""
    said = translated(error)
    if session.debug:
        traceback.print_exception(error)
    print(f"Error: {one_line(said.message)}", file=sys.stderr)  # noqa: T201 - the last words
    if said.hint:
        print(f"Hint: {one_line(said.hint)}", file=sys.stderr)  # noqa: T201 - as above
    return said.code


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@shared
def runner() -> None:
    """Run graphs of agents and functions on Celery workers, and answer their questions.

    A graph is nodes, which are functions or agents, and edges between them. A run is one execution of a
    graph; the store, a Redis or Valkey server, keeps all runs. Workers are the processes that run nodes.
    The broker carries the messages that wake them: it is the same Redis, unless RUNNER_BROKER_URL names
    another one. A node that needs a person asks a question, called an interrupt, and only the branch
    behind it waits for the answer.

    \b
    To begin:
      runner init my-project    write a small project: a graph and its tests
      runner dev                start a store and a worker on this machine

    On a terminal, commands write for people. Without one, in a pipe or into a file, they write lines of
    cells that are separated by tabs; with --json they write JSON.

    \b
    Exit codes: 0 done, 1 run failed, 2 wrong use, 3 waiting for a person, 4 not found, 5 conflict: it
    is too late, or something stands in the way, 6 not allowed, 7 store or broker unreachable,
    8 timed out, 70 a fault of this program, 130 stopped by Ctrl-C.
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is


for _command in (
    init,
    dev,
    worker,
    run,
    runs,
    interrupts,
    graphs,
    workers,
    dead,
    doctor,
    metrics,
    config,
    completion,
    version,
):
    runner.add_command(_command)
for _command in (cancel, retry, migrate, fork, again, remove):
    runs.add_command(_command)

WORDS = {
    "RUN": "RUN is the id of a run: `runner run` and `runner runs list` write it.",
    "GRAPH": "GRAPH is the name of a graph: `runner graphs list` writes it.",
    "INTERRUPT": "INTERRUPT is the id of a question: `runner interrupts list` writes it.",
    "LETTER": "LETTER is the id of a dead letter: `runner dead list` writes it.",
}


def _explain(command: click.Command) -> None:
    """Let every help end with what its words in capitals stand for."""
    for inner in getattr(command, "commands", {}).values():
        _explain(inner)
    named = {str(each.metavar or each.name).strip("[].").upper() for each in command.params}
    command.epilog = "\n\n".join(line for word, line in WORDS.items() if word in named) or None


_explain(runner)
