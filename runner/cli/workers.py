"""Workers: `runner worker` becomes one, `runner workers` lists them, `runner metrics` counts."""

from __future__ import annotations

import os

import click

from runner.cli.arguments import option
from runner.cli.context import CommandContext, command, group
from runner.cli.output import clock_time
from runner.dev.worker_process import worker_command
from runner.records.json_form import stamp

POOLS = ("threads", "async", "prefork", "solo")

LOG_LEVEL = option(
    "--loglevel",
    "The lowest level that is logged: debug, info, warning or error.",
    default="info",
)


@command(context_settings={"ignore_unknown_options": True})
@option(
    "--pool",
    "Run nodes in threads, in processes (prefork), or one at a time (solo). With async, nodes that "
    "await hold no thread.",
    type=click.Choice(POOLS),
    default=POOLS[0],
)
@option(
    "--concurrency",
    "Maximum number of nodes that run at the same time (default: 100 threads, 1000 with async, or a "
    "process per CPU).",
    type=click.IntRange(min=1),
)
@LOG_LEVEL
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- CELERY OPTIONS]")
def worker(
    context: CommandContext,
    pool: str,
    concurrency: int | None,
    loglevel: str,
    more: tuple[str, ...],
) -> None:
    """Run nodes: become a Celery worker.

    It serves the graphs of RUNNER_GRAPHS, like `celery --app runner.celery worker`. Options after --
    are passed to Celery, for example -- --queues fast. Its name is worker-PID@HOST, unless set by
    -- --hostname NAME.
    """
    named = any(option == "-n" or option.startswith(("--hostname", "-n=")) for option in more)
    # Celery's events and remote control can't tell apart two workers of one name on a machine. Celery's
    # worker replaces this process, and keeps its id.
    name = [] if named else ["--hostname", f"worker-{os.getpid()}@%h"]
    context.become(*worker_command(pool, concurrency, ["--loglevel", loglevel, *name, *more]))


@command()
@option(
    "--app MODULE:APP",
    "The Celery app of your workers, whose broker is used.",
    default="runner.celery:app",
)
@LOG_LEVEL
def keeper(context: CommandContext, app: str, loglevel: str) -> None:
    """Apply answers, starts and timers, and run no nodes.

    A keeper does a worker's tasks other than running nodes: it applies answers and starts that come as
    messages, sweeps, so that retries, reminders and expiries come in time, and publishes notices on
    RabbitMQ. Ready nodes stay in their queues until a worker takes them. With one or two keepers, workers
    can be scaled to zero while their queues are empty. It ends at SIGTERM within seconds.
    """
    context.become("runner.celery.keeper", app, loglevel)


@group
def workers() -> None:
    """List workers, which run nodes, and the nodes that wait."""


@command(workers, "list")
def list_workers(context: CommandContext) -> None:
    """List the workers with their queues and graphs.

    A worker runs at most as many nodes at the same time as it has slots. A worker is "alive"; "gone" if
    it has not reported for half a minute, so its nodes run again on other workers; "stopping" if it was
    asked to stop and still runs nodes; or "hangs" if it should have stopped by now. A worker that has
    stopped is not listed. A keeper is listed, too; it has no slots.

    Without a terminal: name, process id, state, busy slots, slots, pool, queues, graphs and time of the
    last report (UTC), separated by tabs.
    """
    from runner.operations.views import read_workers

    views = read_workers(context.installation)
    rows = [
        (
            view.name,
            view.state,
            f"{view.busy}/{view.slots}",
            view.pool,
            " ".join(view.queues),
            " ".join(view.graphs),
            clock_time(view.seen),
        )
        for view in views
    ]
    lines = (
        (
            view.name,
            view.pid,
            view.state,
            view.busy,
            view.slots,
            view.pool,
            ",".join(view.queues),
            ",".join(view.graphs),
            stamp(view.seen),
        )
        for view in views
    )
    context.output.listing(
        {"workers": views},
        ("WORKER", "STATE", "BUSY", "POOL", "QUEUES", "GRAPHS", "SEEN"),
        rows,
        "No workers. `runner worker` starts one.",
        lines=lines,
    )


@command(workers)
def backlog(context: CommandContext) -> None:
    """List the queues with the nodes that wait there for a worker.

    Without a terminal: queue, waiting nodes, seconds that the first of them waits, nodes of its graphs that
    ended each second of the last minute, running nodes, slots of the workers that serve it, and graphs,
    separated by tabs.
    """
    from runner.operations.backlog import read_backlog

    queues = read_backlog(context.installation).queues
    rows = [
        (
            row.queue,
            row.ready,
            round(row.oldest_seconds, 1),
            "" if row.per_second is None else round(row.per_second, 1),
            row.executing,
            row.slots,
            " ".join(row.graphs),
        )
        for row in queues
    ]
    context.output.listing(
        {"queues": queues},
        ("QUEUE", "WAITING", "OLDEST S", "DONE/S", "RUNNING", "SLOTS", "GRAPHS"),
        rows,
        "No queues: no graph is published.",
    )


@command()
def metrics(context: CommandContext) -> None:
    """Write metrics of runs, questions and workers for Prometheus.

    The format is the text format of Prometheus, a widely used monitoring program. The numbers are read
    from the store, so one process reports for all workers. A textfile collector such as the node
    exporter's can read them from a file:

    \b
      runner metrics > runner.prom.new && mv runner.prom.new runner.prom
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from runner.operations.metrics import prometheus

    numbers = context.installation.metrics()
    if context.output.as_json:
        context.output.data({"metrics": numbers})
        return
    click.echo(prometheus(numbers), nl=False)
