"""Start and end of runs: graphs are published, a run or child run is written, `on_end` is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

from runner.approvals.decision_keys import run_name
from runner.approvals.visit_judge import is_named
from runner.definition.model import Topology, map_of
from runner.definition.registry import CompiledGraph, Registry
from runner.errors import NotFoundError, TooManyRuns, UsageError
from runner.execution import ids
from runner.execution.results import sink_outputs
from runner.execution.telemetry import callers_trace
from runner.limits.limit import LimitShape
from runner.limits.setting import DeclaredNumbers, LimitSetting
from runner.records import codec, run_ids, size_limits, validation
from runner.records.codec import JSONMapping, JSONObject
from runner.records.listings import checked_tags
from runner.records.run import PATH, Status, outermost
from runner.records.validation import similar
from runner.store.apply_transition import short_value
from runner.store.interface import (
    Claim,
    Dispatcher,
    Reply,
    ReplyWord,
    RunSnapshot,
    Start,
    Store,
)
from runner.store.requests import ChangeLimit, ReportEnd, StartRun


class StartOptions(TypedDict, total=False):
    """The options of a start.

    The keys of the run's effects derive from its `idempotency_key`. `message_key` names the message
    of a start without that key: a message that comes twice starts one run. The run has a new id
    unless `run_id` is given. `trace` is the traceparent of the span that the run belongs to, by
    default the one open here; for `requester` see `Start`.
    """

    invocation_state: Mapping[str, object] | None
    idempotency_key: str | None
    message_key: str
    tags: Mapping[str, str] | None
    run_id: str
    on_end: str | None
    trace: str
    requester: JSONMapping | None


class RunStarter:
    """Starts runs of the graphs that this process or the store knows."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store, self._registry = store, registry
        self._published: set[str] = set()

    def publish(self, names: Sequence[str], *, replace: bool) -> None:
        """Publish this process's graphs, and their nested graphs, to the store.

        Only a worker may `replace` stored graphs: other programs may have older code, and only
        publish graphs that the store lacks, once.
        """
        missing = [
            plan.topology
            for name in names
            for plan in self._registry.family(name)
            if replace or plan.topology.fingerprint not in self._published
        ]
        if missing:
            self._store.publish(missing, replace=replace)
            self._published.update(topology.fingerprint for topology in missing)
            if replace and (any(map(_limits, missing)) or self._differ()):
                self._declare_limits([topology.graph_id for topology in missing])

    def _differ(self) -> bool:
        """Return whether graphs have declared a limit differently: one of them may no longer declare it."""
        settings = self._store.limit_settings().values()
        return any(
            len({start for start, _, _ in setting.declared}) < len(setting.declared)
            for setting in settings
        )

    def _declare_limits(self, latest: Sequence[str]) -> None:
        """Let the older declaration of a limit hold if the `latest` graphs differ from others."""
        store = self._store
        declared = None
        while declared != (current := _declarations(store, latest)):  # another worker starts
            declared = current
            for name, numbers in declared.items():
                store.do(
                    ChangeLimit(
                        name, partial(LimitSetting.declare, declarations=numbers), "", ""
                    )
                )

    def run(self, graph_id: str, task: object, options: StartOptions) -> Reply:
        """Start a run.

        Raises:
            NotFoundError: neither this process nor any worker so far knows the graph.
            UnstorableError: the task or the state can't be stored. PayloadTooLarge: they are too large.
            UsageError: the key, a tag, or the task to call at the end, can't be used.
            TooManyRuns: the number of open runs has reached its limit.
        """
        plan = self._registry.find(graph_id)
        requester = options.get("requester")
        effects = run_name(requester)
        task_value = codec.pack(task, "task")
        state = codec.pack(dict(options.get("invocation_state") or {}), "invocation_state")
        size_limits.check("task", task_value, self._store.max_bytes)
        size_limits.check("invocation_state", state, self._store.max_bytes)
        tags = codec.pack(checked_tags(options.get("tags") or {}), "tags")
        idempotency_key = _checked_key(options.get("idempotency_key"))
        key = idempotency_key
        if key is None:
            key = _checked_key(options.get("message_key"))
        on_end = options.get("on_end") or ""
        _check_on_end(on_end)
        if plan is not None:
            self.publish([graph_id], replace=False)
            check_requester(plan, requester)
        run_id = options.get("run_id")
        if not run_id:
            partition = self._store.partition(graph_id, key or effects or None, tags)
            if idempotency_key and not effects:
                effects = ids.keyed(self._store.namespace, graph_id, idempotency_key)
            run_id = ids.run_id(partition, effects)
        start = Start(
            run_id=run_id,
            graph_id=graph_id,
            fingerprint=None,
            task=task_value,
            invocation_state=state,
            tags=tags,
            idempotency_key=key,
            on_end=on_end,
            trace=options.get("trace") or callers_trace(),
            requester=requester,
        )
        reply = self._write(start, plan)
        if reply.word == "unknown_graph":
            graphs = sorted(self._store.graphs())
            raise NotFoundError(
                f"no graph {graph_id!r} is known to this store; known: {', '.join(graphs) or 'none yet'}. "
                f"Start a worker whose RUNNER_GRAPHS names its module.{similar(graph_id, graphs)}"
            )
        if reply.word == "full":
            raise TooManyRuns(reply.detail)
        return reply

    def child(self, claim: Claim, task: Any) -> Reply:
        """Start the child run that does the work of a claimed node, in the same partition."""
        path = f"{claim.graph_id}{PATH}{map_of(claim.token.node) or claim.token.node}"
        plan = self._registry.get(path)
        token = claim.token
        effects = run_ids.effect_name(token.run_id)
        is_keyed = effects != token.run_id
        letters = (
            ids.keyed(effects, token.node, token.visit, claim.record.attempt)
            if is_keyed
            else ""
        )
        start = Start(
            run_id=ids.run_id(int(token.run_id[: run_ids.PARTITION_DIGITS]), letters),
            graph_id=path,
            fingerprint=plan.topology.fingerprint,
            task=task if isinstance(task, codec.LazyValue) else codec.pack(task, "task"),
            invocation_state=claim.invocation_state,
            parent=token,
        )
        return self._write(start, plan)

    def _write(self, start: Start, plan: CompiledGraph | None) -> Reply:
        reply = self._store.do(StartRun(start))
        if plan is not None and reply.word == "unknown_graph":
            # The store was emptied, or removed a graph that had no run for a long time.
            self._published.clear()
            self.publish([outermost(start.graph_id)], replace=False)
            reply = self._store.do(StartRun(start))
        return reply


def check_requester(plan: CompiledGraph, requester: JSONMapping | None) -> None:
    """Check that the requester is known for a run of a graph whose rules exclude them.

    Raises:
        UsageError: the requester is unknown.
    """
    if plan.for_requester and not is_named(requester):
        raise UsageError(
            f"node {plan.for_requester!r} of graph {plan.definition.id!r} is approved by a rule that "
            "excludes the run's requester, so nothing was started: pass requester, or by for a run made from "
            "another one."
        )


def _limits(topology: Topology) -> list[LimitShape]:
    return [limit for node in topology.nodes.values() for limit in node.limits]


def _declarations(store: Store, latest: Sequence[str]) -> dict[str, list[DeclaredNumbers]]:
    """Return all graphs' declarations of each limit, the `latest` graphs last."""
    declarations: dict[str, list[DeclaredNumbers]] = {}
    graphs = store.graphs()
    for graph in sorted(graphs, key=lambda graph: (graph in latest, graph)):
        topology = store.topology(graph, graphs[graph])
        for limit in _limits(topology) if topology else ():
            declarations.setdefault(limit.name, []).append(limit.numbers)
    return declarations


def _checked_key(key: str | None) -> str | None:
    return None if key is None else validation.checked(key, "the idempotency key")


LONGEST = 1000
"""Maximum length of a task's name with its queue."""


# The callback of a run's end: a worker calls the Celery task that the start named as `on_end`. It
# is called at least once for the last end of a run: a worker may die after the call and before
# recording it. The task id is the same at every repeat.


def _check_on_end(on_end: str) -> None:
    """Refuse an `on_end` that is neither `task` nor `task@queue`; "" means no task."""
    task, separator, queue = on_end.partition("@")
    if on_end and (
        not task or bool(separator) != bool(queue) or len(on_end) > LONGEST or " " in on_end
    ):
        raise UsageError(
            f'on_end is {on_end[:80]!r}; give the name of a Celery task, such as "shop.done", or with its '
            'queue "shop.done@shop". Nothing was started.'
        )


def call_on_end(store: Store, dispatcher: Dispatcher, run_id: str, end: int) -> ReplyWord:
    """Call the task of a run that has ended: "end_reported", "left" to another process, or "stale".

    Raises:
        StoreError: the broker or the store can't be reached; workers get the doorbell again.
    """
    snapshot = store.read(run_id)
    if snapshot is None or not snapshot.record.unreported or snapshot.record.ends != end:
        return "stale"
    task_id = f"{run_id}.end" if end == 1 else f"{run_id}.end.{end}"
    was_called = dispatcher.call(snapshot.record.on_end, arguments(snapshot), task_id)
    return store.do(ReportEnd(run_id, end)).word if was_called else "left"


def arguments(snapshot: RunSnapshot) -> JSONObject:
    """Build the task's arguments; the output only for a completed run, and only if small."""
    record = snapshot.record
    output = sink_outputs(snapshot) if record.status is Status.COMPLETED else None
    return {
        "run_id": record.run_id,
        "graph": record.graph_id,
        "status": str(record.status),
        "output": short_value(output),
        "tags": dict(snapshot.tags),
    }
