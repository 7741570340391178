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
from runner.cli.output import one_line
from runner.cli.runs import runs
from runner.cli.session import Session, shared
from runner.cli.start import run
from runner.cli.steering import again, cancel, fork, retry
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

    A graph is nodes and edges. A run is one execution of a graph. A node that needs a person asks a
    question, an interrupt, and only the branch behind it waits for the answer.

    \b
    Exit codes: 0 done, 1 run failed, 2 usage, 3 waiting for a person, 4 not found, 5 conflict,
    6 not allowed, 7 store or broker unreachable, 8 timed out.
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
for _command in (cancel, retry, fork, again):
    runs.add_command(_command)
