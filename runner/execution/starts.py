"""Starting runs: graphs are published to the store, then a run or a child run is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.definition.model import map_of
from runner.definition.registry import PATH, Plan, Registry
from runner.errors import NotFoundError
from runner.execution import ids
from runner.execution.on_end import checked
from runner.execution.telemetry import callers_trace
from runner.records import codec, size_limits, validation
from runner.records.listings import checked_tags
from runner.store.interface import Claim, Reply, Start, Store


class RunStarter:
    """Starts runs of the graphs that this process or the store knows."""

    def __init__(self, store: Store, registry: Registry) -> None:
        """Share the engine's store and registry."""
        self._store, self._registry = store, registry
        self._published: set[str] = set()

    def publish(self, names: Sequence[str]) -> None:
        """Publish graphs of this process, and those nested in them, to the store."""
        missing = [
            plan.topology
            for name in names
            for plan in self._registry.family(name)
            if plan.topology.fingerprint not in self._published
        ]
        if missing:
            self._store.publish(missing)
            self._published.update(topology.fingerprint for topology in missing)

    def run(
        self,
        run_id: str,
        graph_id: str,
        task: object,
        *,
        state: Mapping[str, object] | None,
        key: str | None,
        tags: Mapping[str, str] | None,
        on_end: str = "",
        trace: str = "",
    ) -> Reply:
        """Start a run.

        Raises:
            NotFoundError: neither this process nor any worker so far knows the graph.
            UnstorableError: the task or the state can't be stored. PayloadTooLarge: they are too large.
            UsageError: the key, a tag, or the task to call at the end, can't be used.
        """
        plan = self._registry.find(graph_id)
        packed, given = codec.pack(task, "task"), codec.pack(dict(state or {}), "invocation_state")
        size_limits.check("task", packed, self._store.max_bytes)
        size_limits.check("invocation_state", given, self._store.max_bytes)
        start = Start(
            run_id=run_id,
            graph_id=graph_id,
            fingerprint=plan.topology.fingerprint if plan else None,
            task=packed,
            given=given,
            tags=codec.pack(checked_tags(tags or {}), "tags"),
            idempotency_key=None if key is None else validation.checked(key, "the idempotency key"),
            on_end=checked(on_end),
            trace=trace or callers_trace(),
        )
        reply = self._write(start, plan)
        if reply.word == "unknown_graph":
            names = ", ".join(sorted(self._store.graphs())) or "none yet"
            raise NotFoundError(
                f"no graph {graph_id!r} is known to this store; known: {names}. Start a worker "
                "whose RUNNER_GRAPHS names its module."
            )
        return reply

    def child(self, claim: Claim, task: Any) -> Reply:
        """Start the child run that does the work of a claimed node, in the same partition."""
        path = f"{claim.graph_id}{PATH}{map_of(claim.token.node) or claim.token.node}"
        plan = self._registry.get(path)
        start = Start(
            run_id=ids.run_id(int(claim.token.run_id[: ids.PARTITION_DIGITS])),
            graph_id=path,
            fingerprint=plan.topology.fingerprint,
            task=codec.pack(task, "task"),
            given=claim.given,
            parent=claim.token,
        )
        return self._write(start, plan)

    def _write(self, start: Start, plan: Plan | None) -> Reply:
        if plan is None:
            return self._store.start(start, ids.nonce())
        outermost = start.graph_id.split(PATH)[0]
        self.publish([outermost])
        reply = self._store.start(start, ids.nonce())
        if reply.word == "unknown_graph":
            # The store was emptied, or removed a graph that had no run for long.
            self._published.clear()
            self.publish([outermost])
            reply = self._store.start(start, ids.nonce())
        return reply
