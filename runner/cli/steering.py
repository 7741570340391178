"""`runner runs cancel`, `retry`, `fork` and `again`: runs that stop, go on, or begin from another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.cli.session import Session, pass_session, shared
from runner.cli.values import read_json, read_tags
from runner.errors import ConflictError

if TYPE_CHECKING:
    from runner.client import Run


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--reason", default="cancelled by an operator", show_default=True, help="Why. It is kept with the run."
)
@shared
@pass_session
def cancel(session: Session, run_id: str, reason: str) -> None:
    """Stop a run and the graphs inside it.

    Nodes that run may end, nothing else begins, and open questions are withdrawn. It writes how the run
    stands then. Exit codes: 0 it stops; 4 no such run; 5 it had ended, or was stopping already.
    """
    run = session.client.run(run_id)
    if not run.cancel(reason):
        raise ConflictError(f"run {run_id} has ended or is stopping already; nothing was changed.")
    if session.output.as_json:
        session.output.data({"run_id": run_id, "status": str(run.status)})
    else:
        session.output.lines([(str(run.status),)])


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--node", metavar="NODE", help="Only this one of the failed nodes; else all.")
@shared
@pass_session
def retry(session: Session, run_id: str, node: str | None) -> None:
    """Let a failed or cancelled run go on.

    Nodes that failed or were cancelled run again. It writes the nodes that run again, one a line. What
    has completed is not run again. Exit codes: 0 it goes on; 2 the node has not failed; 4 no such run
    or node; 5 the run has not ended, or it has completed.
    """
    names = session.client.run(run_id).retry(node)
    if session.output.as_json:
        session.output.data({"run_id": run_id, "nodes": names})
    else:
        session.output.lines([(name,) for name in names])


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--yes", is_flag=True, help="Don't ask whether you mean it.")
@shared
@pass_session
def remove(session: Session, run_id: str, *, yes: bool) -> None:
    """Remove all that is kept of a run that has ended.

    It asks before. Task, results, questions, answers, messages and events go at once, those of the graphs
    inside with the next sweep. Without this command a run goes when its retention is over. Notices, dead
    letters, agents' sessions, logs and forks keep what they have. Exit codes: 0 it is gone; 2 it is inside
    another run; 4 no such run; 5 it has not ended.
    """
    run = session.client.run(run_id)
    if not yes:
        click.confirm(f"Remove run {run_id} for good?", abort=True, err=True)
    run.remove()
    if session.output.as_json:
        session.output.data({"run_id": run_id, "status": "removed"})
    else:
        session.output.lines([("removed", run_id)])


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--from", "node", metavar="NODE", required=True, help="The node that starts again.")
@click.option("--visit", type=click.IntRange(1), help="Which of its visits, counted from 1; else the latest.")
@click.option(
    "--input",
    "given",
    metavar="JSON",
    help="Another task for NODE: JSON, @file, or - for standard input; else the run's.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY=VALUE",
    help="A note to find it by. May be given more than once.",
)
@shared
@pass_session
def fork(
    session: Session, run_id: str, *, node: str, visit: int | None, given: str | None, tags: tuple[str, ...]
) -> None:
    """Start a run in which a node of RUN starts again, and write its id.

    What had completed and does not depend on that node is kept and not run again. RUN stays as it is.
    Exit codes: 0 it runs; 2 the node has not run yet; 4 no such run, node or visit.

    \b
    Example:
      runner runs fork RUN --from summary --input '"Say it in one sentence."'
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    edited: dict[str, Any] = {} if given is None else {"input": read_json(given, "--input")}
    _tell(session, session.client.run(run_id).fork(node, visit=visit, tags=read_tags(tags), **edited))


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--input",
    "given",
    metavar="JSON",
    help="Another task: JSON, @file, or - for standard input; else that of RUN.",
)
@shared
@pass_session
def again(session: Session, run_id: str, *, given: str | None) -> None:
    """Start a run like RUN from its beginning, and write its id."""
    edited: dict[str, Any] = {} if given is None else {"task": read_json(given, "--input")}
    _tell(session, session.client.run(run_id).again(**edited))


def _tell(session: Session, started: Run) -> None:
    if session.output.as_json:
        session.output.data({"run_id": started.id, "status": str(started.status)})
    else:
        session.output.lines([(started.id,)])
