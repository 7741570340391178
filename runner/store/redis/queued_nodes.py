"""The nodes whose doorbells are on a queue of the store's server, where they wait for a free slot.

A long wait has several doorbells of a node on its queue: each node counts once among the oldest messages.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from runner.errors import StoreError
from runner.immutable import immutable
from runner.records.run import outermost
from runner.records.workers import Worker
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys

MOST_READ = 1_000
"""The most messages of a queue and priority that are read, the oldest; each message behind them counts."""

VALUE = re.compile(rb'"(id|shadow|delivery_tag)": ?"([^"]*)"')


@immutable
class QueuedNodes:
    """The nodes on a queue: `tasks` are the ids of their Celery tasks, the next one first.

    `unread` counts the messages behind them, and `graphs` the tasks of each outermost graph. `since` is
    the time (ms) of the oldest doorbell, or 0.
    """

    queue: str
    tasks: Sequence[str]
    graphs: Mapping[str, int]
    unread: int
    since: int


_queues_of: dict[str, frozenset[str]] = {}
"""The queues of each shape's nodes, by its fingerprint: a shape never changes."""


def graphs_by_queue(
    connection: RedisConnection, namespace: str, workers: Iterable[Worker]
) -> dict[str, set[str]]:
    """Return the outermost graphs that use each queue as they are now, and the queues that workers serve.

    A queue has the broker's name.
    """
    keys = Keys(namespace)
    graphs: dict[str, set[str]] = defaultdict(set)
    for graph, fingerprint in connection.texts(keys.graphs).items():
        if fingerprint not in _queues_of:
            shape = connection.texts(keys.shape(fingerprint))
            nodes = [text for name, text in shape.items() if name.startswith("n:")]
            if nodes:  # otherwise it is being published or removed
                _queues_of[fingerprint] = frozenset(json.loads(node)["queue"] for node in nodes)
        for queue in _queues_of.get(fingerprint, ()):
            graphs[f"{namespace}/{queue}"].add(outermost(graph))
    for worker in workers:
        for queue in worker.queues:
            if queue.startswith(f"{namespace}/"):
                graphs.setdefault(queue, set())
    return graphs


def queued_nodes(
    connection: RedisConnection, namespace: str, queues: Iterable[str]
) -> Iterator[QueuedNodes]:
    """Read queues of the store's server, each by its name there."""
    fields = connection.texts(Keys(namespace).doorbell)
    ends = dict.fromkeys(fields[name] for name in sorted(fields) if name.isdecimal())
    for queue in queues:
        keys = [f"{queue}{end}" for end in ends]
        try:
            replies = [
                connection.call_all(("LLEN", key), ("LRANGE", key, -MOST_READ, -1))
                for key in keys
            ]
        except StoreError as error:
            if error.passing:
                raise
            continue  # the key isn't a list: `runner doctor` names it
        graphs = dict[str, str]()
        since = list[int]()
        for _, messages in replies:
            for message in reversed(messages):
                values = dict(VALUE.findall(message))
                task, graph, tag = (
                    values.get(name, b"").decode(errors="replace")
                    for name in (b"id", b"shadow", b"delivery_tag")
                )
                graphs.setdefault(task, graph.partition("/")[0])
                rung = tag.rpartition("@")[2].partition(".")[0]
                since += [int(rung) * 1000] if rung.isdecimal() else []
        unread = sum(max(0, length - MOST_READ) for length, _ in replies)
        yield QueuedNodes(
            queue, list(graphs), Counter(graphs.values()), unread, min(since, default=0)
        )
