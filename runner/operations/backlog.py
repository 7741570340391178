"""Nodes that wait for a worker: how many on each queue, how long, and why a run's node doesn't run yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.errors import UsageError
from runner.immutable import immutable
from runner.operations.views import NodeView, RunView, read_workers, with_items
from runner.records.json_form import span
from runner.records.run import Status, outermost
from runner.store.shared import Shared

GATE = "tool-gate"
"""The graph and queue of calls that `runner gate` holds: gates execute its nodes, and no worker does."""

MOST_KEYS = 1_000
"""The most keys of a queue with fair sharing whose waiting nodes are counted."""


@immutable
class QueueBacklog:
    """The nodes of a queue that are ready and have no slot yet, and those that run.

    `oldest_seconds` is how long the first has waited, `per_second` how many nodes of its graphs ended each
    second of the last minute; None if that isn't known. `slots` counts the slots of the queue's workers;
    nodes of other queues may run in them. `executing` is from the workers' last heartbeats.
    """

    queue: str
    graphs: tuple[str, ...]
    ready: int
    executing: int
    slots: int
    oldest_seconds: float = 0.0
    per_second: float | None = None

    def __str__(self) -> str:
        """Describe it in one line."""
        rate = "" if self.per_second is None else f" · {self.per_second:.1f} done a second"
        oldest = f" · oldest {span(1000 * self.oldest_seconds)}" if self.oldest_seconds else ""
        return f"{self.queue}: {self.ready:,} waiting{oldest}{rate} · {self.slots:,} slots"


@immutable
class Backlog:
    """Numbers of nodes on some queues: ready, executing, both together, and by queue."""

    ready: int
    executing: int
    total: int
    queues: Sequence[QueueBacklog] = ()


def read_backlog(shared: Shared, queues: Collection[str] = ()) -> Backlog:
    """Count the nodes of queues, by default of every queue that a graph names or a worker serves.

    Stopping workers are left out, because an autoscaler no longer counts them.

    Raises:
        UsageError: the queues are not on the store's server.
    """
    if not shared.settings.broker_is_store:
        raise UsageError(
            "the queues are not on the store's server, so their doorbells are not counted here. Scale by "
            "the broker's own counts."
        )
    rows = list(read_queues(shared, queues))
    ready = sum(row.ready for row in rows)
    executing = sum(row.executing for row in rows)
    return Backlog(ready, executing, ready + executing, rows)


def read_queues(shared: Shared, queues: Collection[str] = ()) -> Iterator[QueueBacklog]:
    """Read the backlog of queues, by default of all; none if they aren't on the store's server."""
    if not shared.settings.broker_is_store:
        return
    now = shared.workers.now()
    graphs = shared.graphs_by_queue()
    keys = shared.fair_keys(MOST_KEYS)
    node_queue = shared.settings.node_queue
    names = [node_queue(queue) for queue in dict.fromkeys(queues)]
    names = names or sorted(graphs.keys() - {node_queue(GATE)})
    workers = [worker for worker in read_workers(shared) if worker.state == "alive"]
    for nodes in shared.queued_nodes(names):
        name = nodes.queue
        in_turn = [key for key in keys if node_queue(key.queue) == name]
        since = [nodes.since] * bool(nodes.since) + [key.since for key in in_turn]
        of_queue = sorted({*graphs.get(name, ()), *nodes.graphs})
        rates = [rate for graph in of_queue if (rate := _rate(shared, graph)) is not None]
        yield QueueBacklog(
            name,
            tuple(of_queue),
            len(nodes.tasks) + nodes.unread + sum(key.nodes for key in in_turn),
            sum(worker.executing.get(name, 0) for worker in workers),
            sum(worker.slots for worker in workers if name in worker.queues),
            max(0, now - min(since)) / 1000 if since else 0.0,
            sum(rates) if rates else None,
        )


def _rate(shared: Shared, graph: str) -> float | None:
    """Return how many nodes of a graph ended each second between its last two samples."""
    samples = shared.history.read("hour", graph, newest=2)
    if len(samples) < 2:
        return None
    ends = [sample.get("completed", 0) + sample.get("failed", 0) for sample in samples]
    return max(0.0, ends[1] - ends[0]) * 1000 / max(1, samples[1]["at"] - samples[0]["at"])


def with_waits(shared: Shared, run: RunView) -> RunView:
    """Add to a run's ready nodes how many others are before them on their queue."""
    graph = outermost(run.graph)
    if graph == GATE:
        text = "a gate makes the call when its client sends it again"
        return _waiting(
            run, {f"{run.run_id}.{node.id}.{node.visit}": text for node in run.nodes}
        )
    is_ready = any(node.status == Status.READY and not node.progress for node in _all(run))
    if not (is_ready and shared.settings.broker_is_store):
        return run
    worker_queues = {
        queue
        for worker in read_workers(shared)
        if worker.state == "alive"
        for queue in worker.queues
    }
    waits: dict[str, str] = {}
    queues = [queue for queue, graphs in shared.graphs_by_queue().items() if graph in graphs]
    for nodes in shared.queued_nodes(queues):
        slot = (
            "no free slot"
            if nodes.queue in worker_queues
            else f"no worker serves {nodes.queue}"
        )
        for number, task in enumerate(nodes.tasks):
            visit = task.rpartition(".")[0]
            waits[visit] = f"behind {number:,} others, {slot}" if number else f"next, {slot}"
    return _waiting(run, waits)


def _all(run: RunView) -> Iterator[NodeView]:
    for node in with_items(run.nodes):
        yield node
        if node.run is not None:
            yield from _all(node.run)


def _waiting(run: RunView, waits: Mapping[str, str]) -> RunView:
    def waiting(node: NodeView) -> NodeView:
        wait = waits.get(f"{run.run_id}.{node.id}.{node.visit}", "")
        return replace(
            node,
            progress=node.progress or wait * (node.status == Status.READY),
            run=node.run and _waiting(node.run, waits),
            items=tuple(map(waiting, node.items)),
        )

    return replace(run, nodes=tuple(map(waiting, run.nodes)))
