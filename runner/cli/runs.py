"""`runner runs`: what runs and what ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.cli.output import Output, clock_time, compact, stamp
from runner.cli.pages import gather, paged, tell_next
from runner.cli.session import Session, pass_session, shared
from runner.cli.values import read_tags, to_ms

if TYPE_CHECKING:
    from runner.cli.view import NodeView, RunView
    from runner.listings import Page, RunSummary

STATUSES = ("executing", "interrupted", "needs_migration", "completed", "failed", "cancelled")


@click.group()
@shared
def runs() -> None:
    """Look at runs; each is one execution of a graph."""


@runs.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs that stand so.")
@click.option("--graph", metavar="GRAPH", help="Only runs of this graph.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only runs with this tag. May be given more than once.",
)
@click.option(
    "--since", metavar="TIME", callback=to_ms, help="Only runs begun since: 2h, 7d, or a time in RFC 3339."
)
@click.option("--until", metavar="TIME", callback=to_ms, help="Only runs begun before: as --since.")
@paged
@shared
@pass_session
def list_runs(
    session: Session,
    *,
    status: str | None,
    graph: str | None,
    tags: tuple[str, ...],
    since: int | None,
    until: int | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List runs, the newest first.

    A run is executing, interrupted (it waits for people only), needs_migration (a deploy changed its
    graph too much), completed, failed or cancelled. Without a terminal: run id, graph, status, time of
    start (UTC) and tags, separated by tabs. Where more follow, stderr says how to go on.
    """
    wanted: dict[str, Any] = {"status": status, "graph": graph, "since": since, "until": until}
    client = session.client
    named = read_tags(tags)
    page = gather(
        lambda few, after: client.runs(**wanted, tags=named, limit=few, cursor=after), limit, cursor
    )
    _write(session.output, page)


def _write(output: Output, page: Page[RunSummary]) -> None:
    from runner.cli.documents import run_line

    if output.as_json:
        output.data({"runs": [run_line(run) for run in page], "next": page.next})
        return
    when = clock_time if output.is_terminal else stamp
    rows = [
        (
            run.run_id,
            run.graph_id,
            run.status,
            when(run.created_at),
            " ".join(f"{k}={v}" for k, v in run.tags.items()),
        )
        for run in page
    ]
    output.table(
        ("RUN", "GRAPH", "STATUS", "STARTED", "TAGS"), rows, "No such runs. `runner run GRAPH` starts one."
    )
    tell_next(output, page.next)


@runs.command()
@click.argument("run_id", metavar="RUN")
@shared
@pass_session
def show(session: Session, run_id: str) -> None:
    """Show a run: its nodes, what they gave, what waits and for whom.

    A loop visits a node more than once; attempts count how often a visit was tried. Without a terminal,
    lines of tab-separated cells: first the run (run, id, graph, status, reason), then each node (node,
    id, status, visit, attempts, milliseconds, output or error), then each open question (interrupt, id,
    node, name, people, reason).
    """
    from runner.cli.view import read_run

    show_run(session.output, read_run(session.client.engine.store, run_id))


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--follow", is_flag=True, help="Watch on while it waits for people, until it has ended.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds at most; else any time."
)
@shared
@pass_session
def watch(session: Session, run_id: str, *, follow: bool, timeout: float | None) -> int:
    """Watch a run until it has ended, or waits for people only.

    On a terminal it is a live tree: what each node does and for how long, what waits and for whom,
    graphs inside included. Without one, a line for each event: time since the start, kind, node, and
    what it is about. With --json, an event a line.

    Exit codes: 0 completed, 1 failed or cancelled, 3 waiting for a person, 8 still going on.
    """
    from runner.cli import exits
    from runner.cli.watch import look_on

    run = session.client.run(run_id)
    try:
        look_on(session.client.engine.store, run_id, session.output, follow=follow, timeout=timeout)
    except KeyboardInterrupt as error:
        raise exits.CommandError(exits.Exit.STOPPED, f"Stopped looking on; run {run_id} goes on.") from error
    return exits.of_run(run.status)


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--after", default="", metavar="POSITION", help="Only what came after this event; else all.")
@click.option("--follow", is_flag=True, help="Wait for more, until the run has ended.")
@shared
@pass_session
def events(session: Session, run_id: str, *, after: str, follow: bool) -> None:
    """Write what happened in a run, in order, graphs inside it included.

    A line has position, time (UTC), kind, node, visit, detail and data, separated by tabs; with --json
    it is a document. To go on later, give the last position as --after.
    """
    from runner.cli.documents import event_document

    if after and not after.isdecimal():
        raise click.BadParameter(f"{after!r} is no position; it is a number.", param_hint="--after")
    output = session.output
    for event in session.client.run(run_id).events(after, follow=follow):
        found = event_document(event)
        if output.as_json:
            output.record(found)
        else:
            data = compact(found["data"]) if found["data"] is not None else ""
            output.line(event.position, found["at"], event.kind, event.node, event.visit, event.detail, data)


@runs.command()
@click.argument("run_id", metavar="RUN")
@shared
@pass_session
def export(session: Session, run_id: str) -> None:
    """Write all that is kept of a run as one JSON document.

    That is its task and state, every visit's output or error, all questions and answers, the agents'
    messages, the events, and the same of each graph inside.
    """
    from runner.cli.export import export_document

    session.client.run(run_id)
    session.output.data(export_document(session.client.engine.store, run_id))


def show_run(output: Output, run: RunView) -> None:
    """Write a run to stdout in the form that the reader wants."""
    if output.as_json:
        from runner.cli.documents import run_document

        output.data(run_document(run))
    elif output.is_terminal:
        from runner.cli.tree import draw
        from runner.cli.watch import wall_clock

        output.show(draw(run, wall_clock()))
    else:
        output.lines(_lines(run))


def _lines(run: RunView) -> list[tuple[object, ...]]:
    from runner.cli.view import shown

    asked = [
        ("interrupt", each.id, each.node_id, each.name, ",".join(each.assignees), compact(shown(each.reason)))
        for each in run.questions()
    ]
    return [("run", run.id, run.graph, run.status, run.reason), *_node_lines(run), *asked]


def _node_lines(run: RunView, path: str = "") -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = []
    for node in (each for one in run.nodes for each in one.family()):
        lines.append(("node", path + node.id, node.status, node.visit, node.attempts, node.ms, _gave(node)))
        if node.inner is not None:
            lines += _node_lines(node.inner, f"{path}{node.id}/")
    return lines


def _gave(node: NodeView) -> str:
    if node.error is not None:
        return str(node.error)
    return compact(node.output) if node.output is not None else ""
