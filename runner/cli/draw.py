"""`runner graphs draw`: a graph as a picture, also with the states of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from runner.cli.exits import CommandError, Exit
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.cli.documents import DrawingDocument
    from runner.cli.view import RunView

FORMATS = ("text", "svg", "mermaid")


@click.command()
@click.argument("name", metavar="GRAPH")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="The format.",
)
@click.option("--run", "run_id", metavar="RUN", help="Also draw how far this run of the graph is.")
@shared
@pass_session
def draw(session: Session, name: str, form: str, run_id: str | None) -> None:
    """Draw a graph: its nodes, edges, conditions and loops.

    It is a graph of RUNNER_GRAPHS, as this folder has it. The drawing goes to stdout: redirect it into
    a file, such as `-o svg > refund.svg`.
    """
    from runner.drawing import draw as drawn
    from runner.registry import registry

    session.load_graphs()
    definition = registry.get(name).definition
    states = _states(session, name, run_id) if run_id else None
    text = drawn(definition, form, states)
    if session.output.as_json:
        document: DrawingDocument = {"name": name, "run_id": run_id, "format": form, "drawing": text}
        session.output.data(document)
    else:
        sys.stdout.write(text)


def _states(session: Session, name: str, run_id: str) -> dict[str, str]:
    from runner.cli.view import read_run

    run = read_run(session.client.engine.store, run_id)
    if run.graph != name:
        raise CommandError(
            Exit.USAGE,
            f"The run {run_id} is one of the graph {run.graph!r}, not of {name!r}.",
            f"Draw it with `runner graphs draw {run.graph} --run {run_id}`.",
        )
    return _words(run, "")


def _words(run: RunView, prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in run.nodes:
        found[f"{prefix}{node.id}"] = node.status
        if node.inner is not None:
            found |= _words(node.inner, f"{prefix}{node.id}/")
    return found
