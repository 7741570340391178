"""One run of the release graph, shown as it goes and answered when nothing else is left to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from examples.release.answering import answer
from runner import Client, Run, Status
from runner.cli.exits import CommandError, Exit
from runner.cli.output import Output, compact, short
from runner.cli.process import WorkerProcess
from runner.cli.tree import draw
from runner.cli.view import read_run, shown
from runner.cli.watch import teller, until_idle, wall_clock
from runner.interrupts import Interrupt
from runner.ports import Event

ANSWERS: dict[str, Any] = {"audience": "the people who run it", "approve_release": {"decision": "approve"}}
"""What the people of this example say, by the name of the question."""

SECONDS = 120.0
"""How long one stretch between two answers may take."""


def show(url: str, worker: WorkerProcess, task: dict[str, Any]) -> str:
    """Start a run, show it to its end, and return the file that it wrote.

    Raises:
        CommandError: the run or the worker failed. TimeoutError: it took too long.
    """
    client = Client(redis_url=url)
    run = client.start("release", task)
    click.echo(f"run     {run.id}")
    showing = Showing(client, run, worker)
    showing.until_idle()
    while run.status is Status.INTERRUPTED:
        showing.picture("Only people can go on now:")
        for asked in run.interrupts():
            _answer(url, asked)
        showing.until_idle()
    showing.picture("The run has ended:")
    result = run.result()
    if result.status is not Status.COMPLETED:
        raise CommandError(Exit.RUN_FAILED, f"the run ended as {result.status}: {result.reason}")
    return str(result.results["write"].output["file"])


def _answer(url: str, asked: Interrupt) -> None:
    response = ANSWERS[asked.name]
    click.echo(f"Question {asked.name}: {short(shown(asked.reason), 70)}")
    click.echo(f"Answer, as a message on the stream runner:responses: {compact(response)}")
    receipt = answer(url, asked.id, response, responder="release manager")
    click.echo(f"Receipt: {receipt['status']}\n")
    if receipt["status"] != "accepted":
        raise CommandError(Exit.CONFLICT, f"the answer was {receipt['status']}: {receipt['detail']}")


class Showing:
    """What has been shown of a run so far."""

    def __init__(self, client: Client, run: Run, worker: WorkerProcess) -> None:
        self._store, self._run, self._worker = client.engine.store, run, worker
        self._output = Output()
        self._after = ""

    def until_idle(self) -> None:
        """Show what happens until the run has ended or only people can go on."""
        ends = time.monotonic() + SECONDS
        with teller(self._store, self._run.id, self._output) as tell:
            for events in until_idle(self._store, self._run.id, ends, self._after):
                tell(events)
                self._after = events[-1].position if events else self._after
                if not self._output.shows_progress and self._waits_beside_others(events):
                    self.picture("One branch waits for a person, the others go on:")
                if not self._worker.alive():
                    raise CommandError(Exit.RUN_FAILED, "the worker ended before the run did.")
        if self._run.status is Status.EXECUTING:
            raise TimeoutError(f"the run was not done after {SECONDS:g} s.")

    def _waits_beside_others(self, events: Sequence[Event]) -> bool:
        asked = any(event.kind == "node.waiting" for event in events)
        return asked and self._run.status is Status.EXECUTING

    def picture(self, heading: str) -> None:
        """Draw the run as it stands."""
        click.echo(f"\n{heading}")
        self._output.show(draw(read_run(self._store, self._run.id), wall_clock()))
        click.echo()
