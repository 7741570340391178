"""`runner runs migrate`: waiting runs go on in the graph of today."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.exits import HINTS, CommandError, Exit
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.cli.forms import FateForm, MigratedForm
    from runner.migrations import Migrated

COLUMNS = ("RUN", "GRAPH", "NODE", "TODAY", "WHAT BECOMES OF IT", "WHY", "ANSWERS NOT USED")


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--graph", metavar="GRAPH", help="All its waiting runs that need it; default: only RUN.")
@click.option("--map", "pairs", multiple=True, metavar="OLD=NEW", help="OLD is NEW today; repeatable.")
@click.option("--drop", multiple=True, metavar="OLD", help="This node counts no more; repeatable.")
@click.option("--dry-run", is_flag=True, help="Say what would become of the nodes, and change nothing.")
@shared
@pass_session
def migrate(
    session: Session,
    *,
    run_id: str | None,
    graph: str | None,
    pairs: tuple[str, ...],
    drop: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Let waiting runs go on in the graph that the workers have today.

    What has completed stays, and is not run again; a waiting node goes on with
    its questions and answers where today's graph has it, too. OLD and NEW are ids of nodes; those of
    graphs inside are written outer/inner. OLD=OLD says that a node whose version has changed can use
    what it kept. What can't be moved stays as it is, and the reason is told.

    Without a terminal, a line for each node: run, graph, node, its name today, what becomes of it, why,
    and the ids of questions whose answers don't apply, separated by tabs. Exit codes: 0 all are moved; 2
    names don't fit; 4 no such run or node; 5 a run can't be moved so.
    """
    if (run_id is None) == (graph is None):
        raise CommandError(Exit.USAGE, "Give a RUN, or --graph for all waiting runs of a graph.")
    mapping = _mapping(pairs)
    wanted = [run_id] if run_id else _waiting(session, str(graph))
    alone = run_id is not None
    found = [_moved(session, each, mapping, drop, dry_run=dry_run, alone=alone) for each in wanted]
    if session.output.as_json:
        session.output.data({"runs": found})
    else:
        _write(session, found)
    return Exit.CONFLICT if any(each["error"] for each in found) else Exit.DONE


def _mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    found = dict(_pair(pair) for pair in pairs)
    if len(found) < len(set(pairs)):
        raise CommandError(Exit.USAGE, "--map names an older node twice; nothing was changed.")
    return found


def _pair(given: str) -> tuple[str, str]:
    old, equals, new = given.partition("=")
    if not (old and equals and new):
        raise CommandError(Exit.USAGE, f"--map {given}: write OLD=NEW, two ids of nodes.")
    return old, new


def _waiting(session: Session, graph: str) -> list[str]:
    """Name the waiting runs of a graph that have an older shape, or nodes that are set aside."""
    from runner.deploys import runs_of
    from runner.listings import RunQuery
    from runner.run import Status

    store = session.client.engine.store
    today = store.graphs().get(graph)
    if today is None:
        raise CommandError(
            Exit.NOT_FOUND, f"No graph {graph!r} is known to this store.", HINTS[Exit.NOT_FOUND]
        )
    held = runs_of(store, RunQuery(Status.NEEDS_MIGRATION))
    asking = (run for run in runs_of(store, RunQuery(Status.INTERRUPTED)) if run.fingerprint != today)
    return [run.run_id for run in (*held, *asking) if run.graph_id == graph]


def _moved(
    session: Session,
    run_id: str,
    mapping: dict[str, str],
    drop: tuple[str, ...],
    *,
    dry_run: bool,
    alone: bool,
) -> MigratedForm:
    """Move one run; of many, one that can't be moved is told and the others go on."""
    from runner.errors import RunnerError, StoreError

    run = session.client.run(run_id)
    try:
        done = run.migrate(mapping, drop=drop, dry_run=dry_run)
    except StoreError:
        raise
    except RunnerError as error:
        if alone:
            raise
        return {"run_id": run.id, "moved": False, "error": str(error), "nodes": []}
    return {"run_id": run.id, "moved": not dry_run, "error": "", "nodes": list(_fates(done))}


def _fates(done: Migrated) -> Iterator[FateForm]:
    for fate in done.fates:
        yield {
            "graph": fate.graph_id,
            "node": fate.node,
            "today": fate.today,
            "becomes": fate.becomes,
            "reason": fate.reason,
            "unused": list(fate.unused),
        }


def _write(session: Session, found: list[MigratedForm]) -> None:
    rows: list[tuple[object, ...]] = []
    for each in found:
        rows += [
            (each["run_id"], *list(node.values())[:-1], " ".join(node["unused"])) for node in each["nodes"]
        ]
        if each["error"]:
            rows.append((each["run_id"], "", "", "", "stays as it is", each["error"], ""))
    session.output.table(COLUMNS, rows, "No run waits that would need it.")
