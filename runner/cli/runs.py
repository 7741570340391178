"""`runner run` and `runner runs`: start runs, list, show, watch and export them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from runner.cli.arguments import (
    add_options,
    by_option,
    flag,
    operator_options,
    option,
    paged,
    read_json,
    read_pages,
    requester_option,
    run_argument,
    tag_option,
    to_ms,
    to_pairs,
)
from runner.cli.context import CommandContext, command, group
from runner.cli.exits import CommandError, Exit, exit_of_run
from runner.cli.output import NARROW, Output, compact, short_time
from runner.errors import ConflictError, NotFoundError, RunnerError, StoreError
from runner.records.codec import JSONMapping
from runner.records.json_form import stamp

if TYPE_CHECKING:
    from runner.client import Run
    from runner.operations.interventions import Action
    from runner.operations.migration import MigratedRun
    from runner.operations.views import NodeView, RunView
    from runner.records.listings import Page, RunSummary

STATUSES = ("executing", "interrupted", "held", "completed", "failed", "cancelled")


timeout_option = option(
    "--timeout SECONDS",
    "Maximum seconds to wait (default: no limit).",
    type=click.FloatRange(min=0, min_open=True),
)


# -- starting ----------------------------------------------------------------------------------------


@command()
@click.argument("graph")
@option(
    "--input JSON",
    "input_text",
    "The task of the run: JSON, @file, or - for standard input (default: null).",
)
@flag("--wait", "Watch the run until it has ended, or waits only for people.")
@timeout_option
@option(
    "--idempotency-key TEXT",
    "Repeating the command with the same key returns the existing run (default: no key).",
)
@tag_option("A tag to find the run by")
@requester_option
def run(
    context: CommandContext,
    *,
    graph: str,
    input_text: str | None,
    wait: bool,
    timeout: float | None,
    idempotency_key: str | None,
    tags: dict[str, str],
    requester: str,
) -> int:
    """Start a run of GRAPH and write its id.

    With --wait, the run is watched on stderr, and stdout gets the output of `runner runs show`. The exit
    code is then 0 for completed, 1 for failed or cancelled, 3 for waiting for a person, and 8 if it is
    still running after --timeout.

    \b
    Examples:
      runner run refund --input '{"order": 1042}'
      runner run refund --input @order.json --wait
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    if timeout is not None and not wait:
        raise click.UsageError("--timeout limits --wait; use both.")
    task = read_json(input_text, "--input") if input_text is not None else None
    try:
        new_run = context.client.start(
            graph,
            task,
            idempotency_key=idempotency_key,
            tags=tags,
            requester=requester or None,
        )
    except NotFoundError as error:
        if graph in runs.commands:
            raise NotFoundError(f"{error} Did you mean `runner runs {graph}`?") from error
        raise
    if wait:
        return _wait(context, new_run, timeout)
    from runner.operations.views import StartedRun

    context.output.write(StartedRun(new_run.id, graph, new_run.status.shown), [(new_run.id,)])
    return Exit.DONE


def _wait(context: CommandContext, new_run: Run, timeout: float | None) -> int:
    from runner.cli.interrupts import command_for
    from runner.cli.run_tree import watch_until_idle
    from runner.operations.views import read_run

    output = context.output
    output.note("run", new_run.id)
    try:
        watch_until_idle(context.store, new_run.id, output, timeout=timeout)
    except KeyboardInterrupt as error:
        raise _stopped_watching(new_run.id) from error
    view = read_run(context.store, new_run.id)
    _show(output, view)
    code = exit_of_run(view.status)
    if code is Exit.WAITING:
        question = next(iter(view.interrupts), None)
        command = command_for(question) if question else f"runner runs migrate {view.run_id}"
        output.note(f"The run waits. To continue: {command}")
    return code


def _stopped_watching(run_id: str) -> CommandError:
    return CommandError(
        Exit.STOPPED,
        f"Stopped watching; run {run_id} is still running.",
        f"Watch it again: runner runs watch {run_id}",
    )


# -- looking at runs ---------------------------------------------------------------------------------


@group
def runs() -> None:
    """List, show and control runs.

    A run is one execution of a graph.
    """


@command(runs, "list")
@option(
    "--status STATUS",
    "Filter by status (default: any).",
    type=click.Choice(STATUSES, case_sensitive=False),
)
@option("--graph GRAPH", "Filter by graph (default: any).")
@tag_option("Filter by tag")
@option("--text", "Filter by text in the value of a tag (default: any).", default="")
@option(
    "--since TIME",
    "Started at this time or later: 2h or 7d ago, or RFC 3339 (default: any time).",
    callback=to_ms,
)
@option("--until TIME", "Started before this time; see --since (default: now).", callback=to_ms)
@paged
def list_runs(
    context: CommandContext, *, limit: int, cursor: str | None, **filters: Any
) -> None:
    """List runs, newest first.

    A run is executing, interrupted (it waits only for people), held (a deploy changed a
    node, a document is damaged, or the next call was not approved), completed, failed or cancelled.
    Without a terminal: run id, graph, status, start time (UTC), tags, the parent of a child run, and
    "archived" for a run that is in the archive only, separated by tabs. If there are more, stderr has the
    cursor of the next page.
    """
    output = context.output
    page = read_pages(partial(_page, context, **filters), limit, cursor)
    rows: list[tuple[object, ...]] = []
    for run in page:
        archived = "archived" * run.archived
        status = str(run.status.shown)
        tags = " ".join(f"{key}={value}" for key, value in run.tags.items())
        if output.is_terminal:
            status += f", {archived}" if archived else ""
            rows.append((run.run_id, run.graph_id, status, short_time(run.created_at), tags))
        else:
            head = (run.run_id, run.graph_id, status, stamp(run.created_at), tags)
            rows.append((*head, run.parent, archived))
    nothing = "No matching runs. `runner run GRAPH` starts one."
    record = {"runs": list(page), "next": page.next}
    output.listing(record, ("RUN", "GRAPH", "STATUS", "STARTED", "TAGS"), rows, nothing)


def _page(context: CommandContext, limit: int, cursor: str, **filters: Any) -> Page[RunSummary]:
    """Read a page of the runs in the store and the archive; of a run in both, take the store's version."""
    page = context.client.runs(**filters, limit=limit, cursor=cursor)
    if context.installation.archive is None:
        return page
    from runner.records.listings import RunQuery, merged
    from runner.records.run import Status

    status = filters.pop("status")
    query = RunQuery(Status(status) if status else None, **filters)
    archive_page = context.installation.archive.runs(query, limit, cursor)
    return merged([page, archive_page], lambda run: run.position, limit)


@command(runs)
@run_argument
def show(context: CommandContext, run_id: str) -> None:
    """Show a run: its nodes, outputs, questions and decisions.

    A loop visits a node more than once; attempts count how often a visit was tried. Without a terminal,
    tab-separated lines: first the run (run, id, graph, status, reason, "archived" for a run that is in the
    archive only), then its requester and their principals (requester, principals), then its agents'
    spending from budgets per run (spent, counter, amount), then each node (node, id, status, visit, attempts,
    milliseconds, output, error, progress or wait, worker, location of an error in the code), then each open
    question (interrupt, id, node, name, people, reason), then each closed one (decided, id, node, name,
    decision).
    """
    from runner.operations.backlog import with_waits
    from runner.operations.views import archived_run, read_run

    archived_export = _archived_export(context, run_id)
    view = (
        archived_run(archived_export)
        if archived_export
        else with_waits(context.installation, read_run(context.store, run_id))
    )
    _show(context.output, view)


@command(runs)
@run_argument
@flag("--follow", "Keep watching while it waits for people, until it has ended.")
@timeout_option
def watch(context: CommandContext, run_id: str, *, follow: bool, timeout: float | None) -> int:
    """Watch a run until it has ended, or waits only for people.

    On a terminal it is a live tree of the nodes, their status and time, and the open questions, also in
    child runs. Without one, a line for each event: time since the start, kind, node and details. With
    --json, one JSON document per line.

    Exit codes: 0 completed, 1 failed or cancelled, 3 waiting for a person, 8 still running.
    """
    from runner.cli.run_tree import watch_on_stdout

    result = context.client.run(run_id)
    try:
        watch_on_stdout(context.store, run_id, context.output, follow=follow, timeout=timeout)
    except KeyboardInterrupt as error:
        raise _stopped_watching(run_id) from error
    return exit_of_run(result.status.shown)


@command(runs)
@run_argument
def export(context: CommandContext, run_id: str) -> None:
    """Write all data of a run as one JSON document.

    It has the task and state, the output or error of every visit, all questions and answers, the agents'
    messages and the events, and the same for each child run. If the run is in the archive only, the archived
    document is written.
    """
    from runner.operations.exports import read_export

    context.output.data(_archived_export(context, run_id) or read_export(context.store, run_id))


def _archived_export(context: CommandContext, run_id: str) -> JSONMapping | None:
    """Read the export of a run that is only in the archive, by its whole id."""
    if context.installation.archive is None or context.store.peek(run_id) is not None:
        return None
    return context.installation.archive.read(run_id)


def _show(output: Output, view: RunView) -> None:
    from runner.operations.views import spendings

    def draw_tree() -> None:
        from runner.cli.run_tree import draw, wall_clock

        output.show(draw(view, wall_clock(), wrap=output.console.width < NARROW))

    head = ("run", view.run_id, view.graph, view.status, view.reason)
    rows: list[tuple[object, ...]] = [(*head, "archived") if view.archived else head]
    rows += [("requester", view.requester, *view.on_behalf_of)] if view.requester else []
    rows += [("spent", *spending) for spending in spendings(view.spent)]
    rows += _node_rows(view)
    for question in view.interrupts:
        people = ",".join(question.assignees)
        reason = compact(question.reason)
        rows.append(("interrupt", question.id, question.node_id, question.name, people, reason))
    for decided in view.decided:
        rows.append(("decided", decided.id, decided.node_id, decided.name, decided.sentence))
    output.present(view, draw_tree, rows)


def _node_rows(view: RunView, path: str = "") -> list[tuple[object, ...]]:
    from runner.operations.views import with_items

    rows: list[tuple[object, ...]] = []
    for node in with_items(view.nodes):
        name = path + node.id
        rows.append(
            (
                "node",
                name,
                node.status,
                node.visit,
                node.attempts,
                node.execution_ms,
                _outcome(node),
                node.worker,
                node.error.location if node.error else "",
            )
        )
        if node.run is not None:
            rows += _node_rows(node.run, f"{name}/")
    return rows


def _outcome(node: NodeView) -> str:
    if node.error is not None:
        return node.error.summary
    if node.output is not None:
        return compact(node.output)
    return node.progress if node.status in {"ready", "running", "retrying"} else node.wait


# -- changes ---------------------------------------------------------------------------------------


@command(runs)
@run_argument
@operator_options
def cancel(context: CommandContext, run_id: str, *, reason: str, by: str) -> None:
    """Stop a run and its child runs.

    Running nodes may finish, no other node starts, and open questions are withdrawn. The output is the
    run's status. Exit codes: 0 it stops; 4 no such run; 5 it had ended, or was stopping already.
    """
    from runner.operations.recovery import cancellation

    run = context.client.run(run_id)
    if not run.cancel(cancellation(by or "an operator", reason)):
        raise ConflictError(
            f"run {run_id} has ended or is stopping already; nothing was changed."
        )
    _write_status(context, run)


def _write_status(context: CommandContext, run: Run) -> None:
    from runner.operations.views import RunStatus

    status = run.status.shown
    context.output.write(RunStatus(run.id, status), [(status,)])


@command(runs)
@run_argument
@option("--node NODE", "The failed node to retry (default: all of them).")
@by_option
def retry(context: CommandContext, run_id: str, *, node: str | None, by: str) -> None:
    """Resume a failed or cancelled run.

    Nodes that failed or were cancelled run again; completed nodes don't. The output is the nodes that run
    again, one per line. Exit codes: 0 it runs; 2 the node has not failed; 4 no such run or node; 5 the run
    has not ended, or has completed.
    """
    nodes = context.client.run(run_id).retry(node, by=by)
    from runner.operations.views import RetriedRun

    context.output.write(RetriedRun(run_id, nodes), [(name,) for name in nodes])


def _change_of_node(action: Action, text: str, *options: Callable[[Any], Any]) -> None:
    @command(runs, action, help=text)
    @run_argument
    @click.argument("node")
    @operator_options
    @add_options(*options)
    def change(
        context: CommandContext,
        run_id: str,
        node: str,
        *,
        by: str,
        reason: str,
        output: str | None = None,
    ) -> None:
        from runner.operations.interventions import intervene

        outputs = [] if output is None else [read_json(output, "--output")]
        by = by or context.user or "operator"
        intervene(context.client.engine, run_id, node, action, *outputs, by=by, reason=reason)
        _write_status(context, context.client.run(run_id))


_change_of_node(
    "hold",
    """Keep a node of a run from running until it is released.

    NODE may wait for other nodes, for people or for its next attempt, or be queued. Other nodes go on.
    `runner runs skip` ends a held node, too. The output is the run's status. Exit codes: 0 it is held,
    perhaps by somebody else; 4 no such run or node; 5 the node runs, or has ended.
    """,
)

_change_of_node(
    "release",
    """Let a node run that `runner runs hold` keeps from it.

    The output is the run's status. Exit codes: 0 nobody holds it now; 4 no such run or node; 5
    it has ended, or it isn't an operator who holds it.
    """,
)

_change_of_node(
    "skip",
    """End a node with an output, without running it.

    NODE is held, or could be. Its open questions are withdrawn, and the nodes after it go on. If NODE
    has failed, and so has its run, the run is retried with this output. The output of the command is
    the run's status. Exit codes: as `runner runs hold`.

    \b
    Example:
      runner runs skip RUN charge --output '{"amount": 0}' --reason "paid by hand"
    """,
    option("--output JSON", "JSON, @FILE or - (stdin).", required=True),
)


@command(runs)
@run_argument
@flag("--yes", "Don't ask for confirmation.")
def remove(context: CommandContext, run_id: str, *, yes: bool) -> None:
    """Delete a run that has ended, with all its data.

    It asks for confirmation. Task, results, questions, answers, messages and events are deleted at once,
    child runs with the next sweep. Without this command a run is deleted when its retention is
    over. Notices, dead letters, agents' sessions, logs and forks are not deleted. Exit codes: 0 it was
    deleted; 2 it is a child run; 4 no such run; 5 it has not ended.
    """
    run = context.client.run(run_id)
    if not yes:
        click.confirm(f"Delete run {run_id} permanently?", abort=True, err=True)
    run.remove()
    from runner.operations.views import RunStatus

    context.output.write(RunStatus(run_id, "removed"), [("removed", run_id)])


# -- migrating ---------------------------------------------------------------------------------------

COLUMNS = ("RUN", "GRAPH", "NODE", "NEW NAME", "OUTCOME", "REASON", "UNUSED ANSWERS")


@command(runs)
@click.argument("run_id", metavar="[RUN]", required=False)
@option("--graph GRAPH", "Move all its waiting runs that need it (default: only RUN).")
@option(
    "--map OLD=NEW",
    "mapping",
    "Node OLD is now called NEW; may be repeated.",
    multiple=True,
    callback=to_pairs,
)
@option("--drop OLD", "Remove this node; may be repeated.", multiple=True)
@flag("--dry-run", "Show the outcome for each node, and change nothing.")
def migrate(
    context: CommandContext,
    *,
    run_id: str | None,
    graph: str | None,
    **changes: Any,
) -> int:
    """Move waiting runs to the current version of their graph.

    Completed nodes stay completed. A waiting node keeps its questions and answers if the current graph
    has it, too. OLD and NEW are ids of nodes, in inner graphs written outer/inner. OLD=OLD
    means that a node whose version has changed can use its stored state. A run that can't be moved is
    not changed, and the reason is shown.

    Without a terminal, a line for each node: run, graph, node, its new name, the outcome, the reason,
    and the ids of questions whose answers don't apply, separated by tabs. Exit codes: 0 all were moved;
    2 names don't fit; 4 no such run or node; 5 a run can't be moved.
    """
    from runner.operations.migration import MigratedRun

    if (run_id is None) == (graph is None):
        raise CommandError(
            Exit.USAGE, "Name a RUN, or use --graph for all waiting runs of a graph."
        )
    runs = []
    for waiting in [str(run_id)] if graph is None else _waiting(context, graph):
        try:
            nodes = context.client.run(waiting).migrate(**changes).nodes
            runs.append(
                MigratedRun(waiting, moved=not changes["dry_run"], error="", nodes=tuple(nodes))
            )
        except RunnerError as error:
            # An error of the only run is the command's error.
            if graph is None or isinstance(error, StoreError):
                raise
            runs.append(MigratedRun(waiting, moved=False, error=str(error), nodes=()))
    nothing = "No waiting run needs a migration."
    context.output.listing({"runs": runs}, COLUMNS, list(_rows(runs)), nothing)
    return Exit.CONFLICT if any(run.error for run in runs) else Exit.DONE


def _waiting(context: CommandContext, graph: str) -> list[str]:
    """List the waiting runs of a graph that began with another version of it or have held nodes."""
    from runner.execution.held_nodes import runs_of
    from runner.records.listings import RunQuery
    from runner.records.run import Status

    fingerprint = context.store.graphs().get(graph)
    if fingerprint is None:
        raise NotFoundError(f"this store has no graph {graph!r}.")
    waiting = list(runs_of(context.store, RunQuery(Status.NEEDS_MIGRATION)))
    asking = runs_of(context.store, RunQuery(Status.INTERRUPTED))
    older = [run for run in asking if run.fingerprint != fingerprint]
    return [run.run_id for run in waiting + older if run.graph_id == graph]


def _rows(runs: list[MigratedRun]) -> Iterator[tuple[object, ...]]:
    cells_of = attrgetter("graph_id", "node", "today", "becomes", "reason")
    for run in runs:
        for node in run.nodes:
            yield run.run_id, *cells_of(node), " ".join(node.unused)
        if run.error:
            yield run.run_id, "", "", "", "not moved", run.error, ""
