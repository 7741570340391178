"""Shows one run of the release graph live, and answers its questions when it waits only for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from examples.release.answering import answer
from runner import Client, Run, Status
from runner.cli.exits import CommandError, Exit
from runner.cli.output import Output, compact, short
from runner.cli.run_tree import draw, progress, until_idle, wall_clock
from runner.dev.worker_process import WorkerProcess
from runner.operations.exports import plain
from runner.operations.views import read_run
from runner.records.interrupts import Interrupt
from runner.store.interface import Event

ANSWERS: dict[str, Any] = {
    "audience": "the people who run it",
    "approve_release": {"decision": "approve"},
}
"""The answers of this example, by the name of the question."""

SECONDS = 120.0
"""The time limit between two answers."""


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
        showing.picture("The run waits for people:")
        for question in run.interrupts():
            _answer(url, question)
        showing.until_idle()
    showing.picture("The run has ended:")
    result = run.result()
    if result.status is not Status.COMPLETED:
        raise CommandError(
            Exit.RUN_FAILED, f"the run ended as {result.status}: {result.reason}"
        )
    return str(result.results["write"].output["file"])


def _answer(url: str, question: Interrupt) -> None:
    response = ANSWERS[question.name]
    click.echo(f"Question {question.name}: {short(plain(question.reason), 70)}")
    click.echo(f"Answer, as a message on the stream runner:responses: {compact(response)}")
    receipt = answer(url, question.id, response, responder="release manager")
    click.echo(f"Receipt: {receipt['status']}\n")
    if receipt["status"] != "accepted":
        raise CommandError(
            Exit.CONFLICT, f"the answer was {receipt['status']}: {receipt['detail']}"
        )


class Showing:
    """The state of the display of a run."""

    def __init__(self, client: Client, run: Run, worker: WorkerProcess) -> None:
        self._store, self._run, self._worker = client.engine.store, run, worker
        self._output = Output()
        self._after = ""

    def until_idle(self) -> None:
        """Show events until the run has ended or waits only for people."""
        ends = time.monotonic() + SECONDS
        with progress(self._store, self._run.id, self._output) as show_events:
            for events in until_idle(self._store, self._run.id, ends, self._after):
                show_events(events)
                self._after = events[-1].position if events else self._after
                if not self._output.shows_progress and self._waits_beside_others(events):
                    self.picture("One branch waits for a person, the others continue:")
                if not self._worker.alive():
                    raise CommandError(Exit.RUN_FAILED, "the worker ended before the run did.")
        if self._run.status is Status.EXECUTING:
            raise TimeoutError(f"the run was not done after {SECONDS:g} s.")

    def _waits_beside_others(self, events: Sequence[Event]) -> bool:
        waits = any(event.kind == "node.waiting" for event in events)
        return waits and self._run.status is Status.EXECUTING

    def picture(self, heading: str) -> None:
        """Draw the current state of the run."""
        click.echo(f"\n{heading}")
        self._output.show(draw(read_run(self._store, self._run.id), wall_clock()))
        click.echo()
