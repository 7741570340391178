"""`runner run`: start a run, and look on if asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.cli import exits
from runner.cli.session import Session, pass_session, shared
from runner.cli.values import read_json, read_tags

if TYPE_CHECKING:
    from runner.client import Run


@click.command()
@click.argument("graph")
@click.option(
    "--input",
    "given",
    metavar="JSON",
    help="The task that the run is given: JSON, @file, or - for standard input; else null.",
)
@click.option("--wait", is_flag=True, help="Watch until it has ended, or waits for people only.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="With --wait: seconds at most; else any time.",
)
@click.option("--idempotency-key", metavar="TEXT", help="Started again with this TEXT, it is one run.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY=VALUE",
    help="A note to find the run by. May be given more than once.",
)
@shared
@pass_session
def run(
    session: Session,
    *,
    graph: str,
    given: str | None,
    wait: bool,
    timeout: float | None,
    idempotency_key: str | None,
    tags: tuple[str, ...],
) -> int:
    """Start a run of GRAPH and write its id.

    With --wait the exit code says how it stands then: 0 done, 1 failed or cancelled, 3 waiting for a
    person, 8 still going on after --timeout; and stdout has what `runner runs show` shows.

    \b
    Examples:
      runner run refund --input '{"order": 1042}'
      runner run refund --input @order.json --wait
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to --wait; give both.")
    task = read_json(given, "--input") if given is not None else None
    options = {"idempotency_key": idempotency_key, "tags": read_tags(tags)}
    started = _start(session, graph, task, options)
    return _look_on(session, started, timeout) if wait else _tell(session, started, graph)


def _start(session: Session, graph: str, task: Any, options: dict[str, Any]) -> Run:
    """The store's graphs count first: they are what the workers run. Else those of this folder."""
    from runner.errors import NotFoundError

    try:
        return session.client.start(graph, task, **options)
    except NotFoundError:
        if session.graphs or not session.settings.graphs:
            raise
    session.load_graphs()
    return session.client.start(graph, task, **options)


def _tell(session: Session, started: Run, graph: str) -> int:
    if session.output.as_json:
        session.output.data({"run_id": started.id, "graph": graph, "status": str(started.status)})
    else:
        session.output.lines([(started.id,)])
    return exits.Exit.DONE


def _look_on(session: Session, started: Run, timeout: float | None) -> int:
    from runner.cli.runs import show_run
    from runner.cli.view import read_run
    from runner.cli.watch import watch

    store, output = session.client.engine.store, session.output
    output.note("run", started.id)
    try:
        watch(store, started.id, output, timeout=timeout)
    except KeyboardInterrupt as error:
        said = f"Stopped looking on; run {started.id} goes on."
        raise exits.CommandError(exits.Exit.STOPPED, said, f"See `runner runs show {started.id}`.") from error
    view = read_run(store, started.id)
    show_run(output, view)
    code = exits.of_run(view.status)
    if code is exits.Exit.WAITING:
        first = next(view.questions(), None)
        advice = f"runner interrupts respond {first.id} --response JSON" if first else "runner runs show"
        output.note(f"The run waits. Go on with: {advice}")
    return code
