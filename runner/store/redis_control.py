"""What people do to runs that have ended or wait, in the Redis store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.graph import Topology
from runner.ports import Reply, Rewrite
from runner.store import rewriting
from runner.store.reader import Reader
from runner.store.shapes import topology_of


class RedisControl:
    """The part of the Redis store that lets runs go on with other records."""

    _reader: Reader
    _reply: Callable[..., Reply]

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        found = self._reader.shape(fingerprint)
        return topology_of(graph_id, fingerprint, found) if found else None

    def rewrite(self, runs: Sequence[Rewrite]) -> Reply:
        return self._reply("rewrite", *(part for each in runs for part in rewriting.arguments(each)))
