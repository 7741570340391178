"""Commands that change runs: `runner runs cancel`, `retry`, `hold`, `migrate` and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from runner.cli.arguments import by_option, flag, option, read_json, run_argument
from runner.cli.context import CommandContext, command
from runner.cli.exits import HINTS, CommandError, Exit
from runner.errors import ConflictError, RunnerError, StoreError

if TYPE_CHECKING:
    from runner.client import Run
    from runner.operations.interventions import Action
    from runner.operations.migration import MigratedRun


@command()
@run_argument
@option(
    "--reason", "Why; shown in the run's reason after your name (default: none).", default=""
)
@by_option
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


@command()
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


def _change_of_node(action: Action, text: str) -> click.Command:
    @command(None, action, help=text)
    @run_argument
    @click.argument("node")
    @option("--reason", "Why; shown to others (default: none).", default="")
    @by_option
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
        engine = context.client.engine
        intervene(engine, run_id, node, action, *outputs, by=by, reason=reason)
        _write_status(context, context.client.run(run_id))

    return change


hold = _change_of_node(
    "hold",
    """Keep a node of a run from running until it is released.

    NODE may wait for other nodes, for people or for its next attempt, or be queued. Other nodes go on.
    `runner runs skip` ends a held node, too. The output is the run's status. Exit codes: 0 it is held,
    perhaps by somebody else; 4 no such run or node; 5 the node runs, or has ended.
    """,
)

release = _change_of_node(
    "release",
    """Let a node run that `runner runs hold` keeps from it.

    The output is the run's status. Exit codes: 0 nobody holds it now; 4 no such run or node; 5
    it has ended, or it isn't an operator who holds it.
    """,
)

skip = option("--output JSON", "JSON, @FILE or - (stdin).", required=True)(
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
    )
)


@command()
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


# -- migration ---------------------------------------------------------------------------------------

COLUMNS = ("RUN", "GRAPH", "NODE", "NEW NAME", "OUTCOME", "REASON", "UNUSED ANSWERS")


@command()
@click.argument("run_id", metavar="[RUN]", required=False)
@option("--graph GRAPH", "Move all its waiting runs that need it (default: only RUN).")
@option("--map OLD=NEW", "pairs", "Node OLD is now called NEW; may be repeated.", multiple=True)
@option("--drop OLD", "Remove this node; may be repeated.", multiple=True)
@flag("--dry-run", "Show the outcome for each node, and change nothing.")
def migrate(
    context: CommandContext,
    *,
    run_id: str | None,
    graph: str | None,
    pairs: tuple[str, ...],
    drop: tuple[str, ...],
    dry_run: bool,
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
    mapping = _mapping(pairs)
    if run_id is not None:
        # An error of the only run is the command's error.
        runs = [_migrate(context, run_id, mapping, drop, dry_run=dry_run)]
    else:
        runs = []
        for waiting in _waiting(context, str(graph)):
            try:
                runs.append(_migrate(context, waiting, mapping, drop, dry_run=dry_run))
            except StoreError:
                raise
            except RunnerError as error:
                runs.append(MigratedRun(waiting, moved=False, error=str(error), nodes=()))
    nothing = "No waiting run needs a migration."
    context.output.listing({"runs": runs}, COLUMNS, list(_rows(runs)), nothing)
    return Exit.CONFLICT if any(run.error for run in runs) else Exit.DONE


def _mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for pair in dict.fromkeys(pairs):
        old_name, equals, new_name = pair.partition("=")
        if not (old_name and equals and new_name):
            raise CommandError(Exit.USAGE, f"--map {pair}: write OLD=NEW, two ids of nodes.")
        if old_name in mapping:
            raise CommandError(
                Exit.USAGE, f"--map names the node {old_name} twice; nothing was changed."
            )
        mapping[old_name] = new_name
    return mapping


def _waiting(context: CommandContext, graph: str) -> list[str]:
    """List the waiting runs of a graph that began with another version of it or have held nodes."""
    from runner.execution.held_nodes import runs_of
    from runner.records.listings import RunQuery
    from runner.records.run import Status

    fingerprint = context.store.graphs().get(graph)
    if fingerprint is None:
        raise CommandError(
            Exit.NOT_FOUND, f"This store has no graph {graph!r}.", HINTS[Exit.NOT_FOUND]
        )
    waiting = list(runs_of(context.store, RunQuery(Status.NEEDS_MIGRATION)))
    asking = runs_of(context.store, RunQuery(Status.INTERRUPTED))
    older = [run for run in asking if run.fingerprint != fingerprint]
    return [run.run_id for run in waiting + older if run.graph_id == graph]


def _migrate(
    context: CommandContext,
    run_id: str,
    mapping: dict[str, str],
    drop: tuple[str, ...],
    *,
    dry_run: bool,
) -> MigratedRun:
    from runner.operations.migration import MigratedRun

    migration = context.client.run(run_id).migrate(mapping, drop=drop, dry_run=dry_run)
    return MigratedRun(run_id, moved=not dry_run, error="", nodes=tuple(migration.nodes))


def _rows(runs: list[MigratedRun]) -> Iterator[tuple[object, ...]]:
    for run in runs:
        for node in run.nodes:
            answers = " ".join(node.unused)
            yield (
                run.run_id,
                node.graph_id,
                node.node,
                node.today,
                node.becomes,
                node.reason,
                answers,
            )
        if run.error:
            yield run.run_id, "", "", "", "not moved", run.error, ""
