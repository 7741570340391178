"""`runner workers`: who runs nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.output import clock_time, stamp
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.cli.documents import WorkerDocument
    from runner.store.roster import Worker


@click.group()
@shared
def workers() -> None:
    """Look at the workers, the processes that run nodes."""


@workers.command("list")
@shared
@pass_session
def list_workers(session: Session) -> None:
    """List the workers: what each serves, and which graphs it has.

    A worker runs as many nodes at the same time as it has slots. One that is "gone" gave no sign of life for
    half a minute: what it ran runs again elsewhere. One that is "stopping" was told to stop and still runs
    nodes; one that "hangs" should have stopped by now. A worker that has stopped is not listed.

    Without a terminal: name, process id, state, busy slots, all slots, pool, queues, graphs and last sign of
    life (UTC), separated by tabs.
    """
    from runner.store.roster import Roster

    roster, output = Roster(session.settings.redis_url), session.output
    now, found = roster.now(), roster.all()
    if output.as_json:
        output.data({"workers": [_document(worker, now) for worker in found]})
        return
    if not output.is_terminal:
        output.lines([_cells(worker, now) for worker in found])
        return
    rows = [_row(worker, now) for worker in found]
    headings = ("WORKER", "STATE", "BUSY", "POOL", "QUEUES", "GRAPHS", "SEEN")
    output.table(headings, rows, "No workers. `runner worker` starts one.")


def _row(worker: Worker, now: int) -> tuple[object, ...]:
    busy, names = f"{worker.busy}/{worker.slots}", (" ".join(worker.queues), " ".join(worker.graphs))
    return worker.name, worker.state(now), busy, worker.pool, *names, clock_time(worker.seen)


def _cells(worker: Worker, now: int) -> tuple[object, ...]:
    many = (",".join(worker.queues), ",".join(worker.graphs), stamp(worker.seen))
    return worker.name, worker.pid, worker.state(now), worker.busy, worker.slots, worker.pool, *many


def _document(worker: Worker, now: int) -> WorkerDocument:
    return {
        "name": worker.name,
        "pid": worker.pid,
        "state": worker.state(now),
        "busy": worker.busy,
        "slots": worker.slots,
        "pool": worker.pool,
        "queues": worker.queues,
        "graphs": worker.graphs,
        "events": worker.events,
        "version": worker.version,
        "started_at": stamp(worker.started),
        "seen_at": stamp(worker.seen),
    }
