"""One execution of a node, with the graph's hooks around it.

Before hooks run at every start of the node, also after an answer; if one asks, the node doesn't run
yet. After hooks see a tentative result: while one asks, the outcome is stored and successors wait;
an interrupted node has no After (it has not ended).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

import pydantic

from runner import async_loop
from runner.approvals.ballots import Use
from runner.approvals.digests import Action
from runner.approvals.gate import Granted, decide
from runner.approvals.policies import CallContext, without_edits
from runner.approvals.rules import Approval, Rule, plain_name
from runner.definition.model import (
    AFTER_GRAPH,
    BEFORE_GRAPH,
    Definition,
    EdgeSpec,
    NodeSpec,
    map_of,
    shape_name,
)
from runner.definition.registry import CompiledGraph, tools_of
from runner.errors import (
    ApprovalMismatch,
    ConflictError,
    CorruptDocument,
    DataMismatch,
    LeaseLost,
    NodeFailed,
    PayloadTooLarge,
    RetryAfter,
    RunStopped,
    StoreError,
    UsageError,
)
from runner.execution import map_nodes
from runner.execution.context import ClaimedVisit, dump_outcome, load_outcome
from runner.execution.results import graph_result, sink_outputs, total_usage
from runner.hooks import (
    AfterGraphEvent,
    AfterNodeCallEvent,
    BeforeGraphEvent,
    BeforeNodeCallEvent,
    GraphEvent,
    HookRegistry,
    fire,
)
from runner.immutable import immutable
from runner.records import codec, failures, size_limits, validation
from runner.records.asking import Asker, numbered_question
from runner.records.checkpoints import Saved, load_document
from runner.records.executors import function_input
from runner.records.interrupts import Address, Interrupt
from runner.records.outcomes import Delegated, Failed, Interrupted, Outcome, Succeeded
from runner.records.run import FINAL, SKIPPED, Status, VisitEntry, status_of
from runner.store.interface import Claim, RunSnapshot

log = logging.getLogger(__name__)

STOPS = {"GreenletExit", "OutcomeException"}
"""Errors that don't fail the node: its slot was ended, or a test by pytest's `fail` or `skip`."""

# The graph's own events as hidden nodes, so that they wait, resume and survive like any other node.
#
# `@before` precedes the entry points; `@after` becomes ready when the run would end, however it
# ends. Each exists only if a provider has callbacks for its event; `@after` also exists if a tool
# may have to end work elsewhere. Their questions are the run's; but a stopping run waits for no
# person, and the questions of its last event are withdrawn.


KIND = "event"

ABANDON_WITHIN = 60.0
"""Twice the seconds that a cancelled run's end waits for work that its tools end elsewhere."""


def with_events(definition: Definition) -> Definition:
    """Add the hidden nodes that a graph's hook providers and tools need."""
    registry = HookRegistry(definition.hooks)
    if registry.callbacks_for(BeforeGraphEvent) and BEFORE_GRAPH not in definition.nodes:
        entry_edges = tuple(EdgeSpec(BEFORE_GRAPH, entry) for entry in definition.entries)
        definition = replace(
            definition,
            nodes={BEFORE_GRAPH: NodeSpec(BEFORE_GRAPH, None, KIND), **definition.nodes},
            edges=(*entry_edges, *definition.edges),
            entries=(BEFORE_GRAPH,),
        )
    if registry.callbacks_for(AfterGraphEvent) or any(
        map(_works_elsewhere, definition.nodes.values())
    ):
        after_graph = {AFTER_GRAPH: NodeSpec(AFTER_GRAPH, None, KIND)}
        definition = replace(definition, nodes={**definition.nodes, **after_graph})
    return definition


def _works_elsewhere(node: NodeSpec) -> bool:
    """Return whether a node's tools begin work that continues elsewhere while the node waits."""
    return any(hasattr(tool, "abandon") for tool in tools_of(node.executor))


def execute_graph_event(hooks: HookRegistry, visit: ClaimedVisit) -> Outcome:
    is_before = visit.address.node_id == BEFORE_GRAPH
    build = _before_graph if is_before else _after_graph
    questions = _fire(hooks, build(visit))
    if isinstance(questions, Failed):
        return questions
    return Interrupted(list(questions)) if questions else Succeeded(None, None)


def _fields(visit: ClaimedVisit, scope: str) -> dict[str, Any]:
    """Return the fields that the events of a visit share; questions are asked in that scope."""
    return {
        "source": visit.plan.definition,
        "invocation_state": visit.invocation_state,
        "attempt": visit.attempt,
        "asker": Asker(visit.address, scope, answers=visit.answers),
    }


def _before_graph(visit: ClaimedVisit) -> GraphEvent:
    return BeforeGraphEvent(
        task=visit.task,
        is_replay=bool(visit.answers),
        **_fields(visit, "before_graph"),
    )


def _after_graph(visit: ClaimedVisit) -> GraphEvent:
    snapshot = visit.run_snapshot()
    if snapshot is None:
        raise CorruptDocument(f"run {visit.address.run_id} is gone while its last event fires.")
    ends = status_of(replace(snapshot.record, active=0))
    if ends is Status.CANCELLED:
        _abandon(visit.plan.definition, visit)
    return AfterGraphEvent(
        result=replace(graph_result(visit.store, snapshot), status=ends),
        is_replay=bool(visit.answers),
        **_fields(visit, "after_graph"),
    )


def _abandon(definition: Definition, visit: ClaimedVisit) -> None:
    """End the work that tools have begun elsewhere, as no node of a cancelled run continues.

    The end of the run waits a while for it, but not until this step times out, which would fail the
    run.
    """
    documents = visit.store.documents(visit.address.run_id)
    context = copy_context()  # it says which loop can't be waited for
    ends = threading.Thread(
        target=context.run, args=(_end_elsewhere, definition, documents), daemon=True
    )
    ends.start()
    within = min(definition.node_timeout or ABANDON_WITHIN, ABANDON_WITHIN) / 2
    async_loop.call_blocking(ends.join, within)


def _end_elsewhere(definition: Definition, documents: Mapping[str, codec.JSON]) -> None:
    for name, stored in documents.items():
        spec = definition.nodes.get(map_of(name) or name)
        if spec is None or not _works_elsewhere(spec):
            continue
        try:
            document = load_document(stored)
            if document is not None and document.executor is not None:
                spec.executor.abandon(document.executor)
        except Exception:
            log.exception("node.abandoned: work that %s began elsewhere goes on.", name)


BEFORE = "before_node_call"

AFTER = "after_node_call"


def execute(visit: ClaimedVisit) -> Outcome:
    """Run a claimed node: hooks before, the node, hooks after. An outcome too large to store fails it."""
    outcome = _execute(visit)
    try:
        size_limits.check_outcome(visit.address.node_id, outcome, visit.store)
    except PayloadTooLarge as error:
        return refused(visit, outcome, error)
    return outcome


def refused(visit: ClaimedVisit, outcome: Outcome, error: PayloadTooLarge) -> Failed:
    """Return a failure for an outcome too large to store; only its usage is kept.

    A skipped node isn't retried: then it would run.
    """
    visit.tentative = None
    skipped = bool(getattr(outcome, "skipped", ""))
    return Failed.of(error, usage=getattr(outcome, "usage", {}), final=skipped)


def _execute(visit: ClaimedVisit) -> Outcome:
    try:
        hooks = HookRegistry(visit.plan.definition.hooks)
    except Exception as error:  # noqa: BLE001 - a provider that can't register fails the node
        return Failed.of(error)
    spec = visit.spec
    if spec.kind == KIND:
        if spec.executor is not None:
            chosen: Outcome = spec.executor.execute(visit)
            return chosen
        return execute_graph_event(hooks, visit)
    if visit.claim.record.handed.startswith(SKIPPED):
        return _skipped(spec, visit)
    try:
        for limit in spec.limits if map_of(visit.address.node_id) or not spec.map else ():
            limit.check_input(visit.claim.task)
    except DataMismatch as error:
        return Failed.of(error)
    if visit.tentative is not None:
        return _after(hooks, visit, load_outcome(visit.tentative))
    if not visit.plan.definition.hooks:
        return _gate(spec, visit) or _body(spec, visit)
    refusal = _before(hooks, visit)
    if isinstance(refusal, str):
        refusal = Failed(failures.record(NodeFailed(refusal)))
    return _after(hooks, visit, refusal or _gate(spec, visit) or _body(spec, visit))


def _skipped(spec: NodeSpec, visit: ClaimedVisit) -> Succeeded:
    """Return the outcome of a node that doesn't run because an operator gave its output.

    Raises:
        CorruptDocument: the output doesn't fit the declared type; the node is held again.
    """
    operator, value = codec.unpack(visit.claim.report)
    try:
        result, output = (
            spec.executor.signature.stored(value, visit)
            if spec.kind == "function"
            else codec.pack_result(value)
        )
    except DataMismatch as error:
        cause = error.__cause__
        problem = (
            validation.of_model(cause) if isinstance(cause, pydantic.ValidationError) else error
        )
        raise CorruptDocument(
            f"{plain_name(operator)} skipped it with an output that does not fit its type: {problem}. Skip "
            "it again with another output."
        ) from error
    return Succeeded(result, output, skipped=operator)


GATE = "node"
"""The scope of the question whether a node may run, and the kind of its action."""


@immutable
class _GatedNode:
    """A node as the gate sees it when asking whether it may run: its task and inputs are the action."""

    address: Address
    answers: Mapping[str, Interrupt]
    tenant: str
    idempotency_key: str

    def question(self, step: int, rule: Rule, args: Any) -> Interrupt:
        """Build the question, which can't be answered with an edit."""
        name = self.address.node_id
        return numbered_question(
            self.address,
            self.answers,
            name,
            scope=_scope(step),
            rule=without_edits(rule),
            action=self.action(args),
        )

    def action(self, args: Any) -> Action:
        """Return the action of running the node."""
        return Action(self.tenant, GATE, self.address.node_id, args)

    def earlier(self, step: int) -> list[Interrupt]:
        """List the questions that were asked about this visit."""
        return [
            question for question in self.answers.values() if question.scope == _scope(step)
        ]

    def use_key(self, step: int) -> str:
        """Return the idempotency key of the visit."""
        del step
        return self.idempotency_key

    def policy_arguments(self, args: Any) -> Any:
        """Return the task and the inputs."""
        return args

    def edited(self, approval: Approval) -> Any:
        """Refuse, because nobody can edit a node's task and inputs."""
        raise ApprovalMismatch(
            f"node {self.address.node_id!r} was decided with an edit: {approval.effect}."
        )


def _scope(step: int) -> str:
    return GATE + (f":{step}" if step else "")


def _gate(spec: NodeSpec, visit: ClaimedVisit) -> Outcome | None:
    """Ask whether the node may run, if it has a rule; return None if it may.

    The action is the node's task and inputs. A response replaces its result.
    """
    address = visit.address
    if (
        spec.approval is None
        or visit.claim.child is not None
        or visit.external_task is not None
    ):
        return None
    inputs = {item.node_id: codec.plain(item.output) for item in visit.inputs}
    args = {"task": codec.plain(visit.task), "inputs": inputs}
    node = _GatedNode(address, visit.answers, visit.store.namespace, visit.idempotency_key)
    where = (address.run_id, address.node_id, address.visit)
    try:
        context = CallContext(spec.id, *where, address.judge)
        state = async_loop.call_blocking(decide, spec.approval, node, args, context)
    except (ApprovalMismatch, ConflictError, StoreError):
        raise
    except Exception as error:  # noqa: BLE001 - users' policies may raise anything
        return Failed.of(error)
    if isinstance(state, Granted):
        visit.use(state.use(visit.idempotency_key))
    if state is None or isinstance(state, Granted):
        return None
    question = state.question
    approval = state.approval
    if approval is None:
        return Interrupted([question], keeps=True)
    match approval.decision:
        case "reject":
            comment = approval.response["rejected"]
            reason = f"{question.responder} rejected it" + (f": {comment}" if comment else "")
            return Failed(
                failures.record(NodeFailed(f"node {address.node_id!r} was not run: {reason}"))
            )
        case "respond" | "expired":
            response = codec.pack(approval.response, "the response")
            by = question.responder or "its expiry"
            return Succeeded(response, codec.plain(approval.response), skipped=by)
    if approval.effect != node.action(args).digest():
        raise ApprovalMismatch(f"node {address.node_id!r} would not run the approved action.")
    if question.used_key != visit.idempotency_key:
        visit.use(Use(question.id, approval.effect, visit.idempotency_key, "asks"))
    return None


def wrapped(visit: ClaimedVisit, outcome: Interrupted | Failed) -> Saved | None:
    """Return the document to store with an outcome; None leaves the stored one as it is."""
    if outcome.saved is not None:
        return visit.wrap(outcome.saved)
    # A tentative outcome is stored while hooks ask about it, and removed when it has become final.
    if visit.tentative is not None or visit.replays or visit.trace:
        return visit.wrap_kept()
    return None


def entry(kind: str, elapsed_ms: int, usage: Mapping[str, int]) -> VisitEntry:
    visit_entry: VisitEntry = {"v": 1, "kind": kind, "ms": elapsed_ms}
    if usage:
        visit_entry["usage"] = dict(usage)
    return visit_entry


def _body(spec: NodeSpec, visit: ClaimedVisit) -> Outcome:
    try:
        if spec.kind == "graph":
            outcome: Outcome = async_loop.call_blocking(_graph, spec, visit)
        elif spec.map:
            outcome = async_loop.call_blocking(map_nodes.execute, spec, visit)
        elif getattr(spec.executor, "is_async", False):
            outcome = spec.executor.execute(visit)
        else:
            outcome = async_loop.call_blocking(spec.executor.execute, visit)
    except (ApprovalMismatch, LeaseLost, RunStopped, CorruptDocument):
        raise
    except RetryAfter as error:
        if error.limit is None or error.limit in [limit.name for limit in spec.limits]:
            raise
        outcome = Failed.of(_no_such_limit(spec, error), final=True)
    except BaseException as error:
        exits = isinstance(error, (SystemExit, KeyboardInterrupt))
        if exits and threading.current_thread() is threading.main_thread():
            raise  # from a signal: this process ends, and another one runs the node again
        if STOPS & {base.__name__ for base in type(error).__mro__}:
            raise
        outcome = Failed.of(error)
    if visit.outage is not None and isinstance(outcome, Failed):
        raise visit.outage  # not the node's fault: it runs again when the store is back
    return outcome


def _no_such_limit(spec: NodeSpec, error: RetryAfter) -> UsageError:
    names = ", ".join(repr(limit.name) for limit in spec.limits) or "none"
    return UsageError(
        f"RetryAfter names the limit {error.limit!r:.80}, and the limits of node {spec.id!r} are: {names}. "
        "The node has failed and is not tried again; correct the name."
    )


def _graph(spec: NodeSpec, visit: ClaimedVisit) -> Outcome:
    """Run a graph as a node: a child run does the work, and its end is the node's end.

    The child's task is data, not the text that agents get: the only input, several by node id, or
    the task.
    """
    child = visit.claim.child
    if child is None or child.record.status not in FINAL:
        if spec.task is not None:
            outcome: Outcome = spec.task.execute(visit)
            if isinstance(outcome, Succeeded):
                return Delegated(codec.unpack(outcome.result))
            return outcome
        return Delegated(_child_task(visit))
    usage = total_usage(child.entries.values())
    if child.record.status is Status.COMPLETED:
        output = sink_outputs(child)
        return Succeeded(output, output, usage)
    return Failed(failures.record(NodeFailed(_child_failure(child))), usage=usage)


def _child_task(visit: ClaimedVisit) -> codec.JSON | codec.LazyValue:
    """Choose the task of a nested graph. A large value is passed on in its stored form."""
    if len(visit.inputs) < 2:
        value = visit.inputs[0].value if visit.inputs else visit.claim.task
        if isinstance(value, codec.LazyValue) and value.is_plain:
            return value
    return function_input(visit.task, visit.inputs)[1] if visit.inputs else visit.task


def _child_failure(child: RunSnapshot) -> str:
    errors = [
        f"{node}: {failures.load(entry['error'])}"
        for (node, _), entry in child.entries.items()
        if entry.get("error")
    ]
    reason = child.record.reason or "; ".join(errors)
    cause = "; ".join(errors) or reason
    return (
        f"the graph inside ended as {child.record.status} (run {child.record.run_id}): {cause}"
    )


def _before(hooks: HookRegistry, visit: ClaimedVisit) -> Interrupted | Failed | str | None:
    """Fire the hooks before a node; return their questions or error, or why the node is cancelled."""
    # If a child run or an external task did the work, these hooks saw the node when that was sent.
    is_repeat = visit.claim.child is not None or visit.external_task is not None
    if is_repeat or not hooks.callbacks_for(BeforeNodeCallEvent):
        return None
    event = BeforeNodeCallEvent(
        node_id=visit.address.node_id,
        is_replay=any(answer.scope == BEFORE for answer in visit.answers.values()),
        **_fields(visit, BEFORE),
    )
    questions = _fire(hooks, event)
    if isinstance(questions, Failed):
        return questions
    if questions:
        # The node has not run: its earlier open questions stay open.
        return Interrupted(list(questions), keeps=True)
    if event.cancel_node:
        if isinstance(event.cancel_node, str):
            return event.cancel_node
        return "node cancelled by user"
    return None


def _after(hooks: HookRegistry, visit: ClaimedVisit, outcome: Outcome) -> Outcome:
    """Fire the hooks after a node that has ended; a waiting node's outcome is returned unchanged."""
    if not isinstance(outcome, (Succeeded, Failed)) or not hooks.callbacks_for(
        AfterNodeCallEvent
    ):
        return outcome
    result = (
        codec.unpack(codec.read(outcome.output))
        if isinstance(outcome, Succeeded)
        else failures.restore(outcome.error)
    )
    event = AfterNodeCallEvent(
        node_id=visit.address.node_id,
        is_replay=visit.replays,
        result=result,
        **_fields(visit, AFTER),
    )
    questions = _fire(hooks, event)
    if isinstance(questions, Failed):
        visit.tentative = None
        return questions
    visit.tentative = dump_outcome(outcome) if questions else None
    return Interrupted(list(questions)) if questions else outcome


def _fire(hooks: HookRegistry, event: GraphEvent) -> Sequence[Interrupt] | Failed:
    try:
        questions: Sequence[Interrupt] = async_loop.run(
            fire(event, hooks.callbacks_for(type(event)))
        )
    except ApprovalMismatch:
        raise
    except Exception as error:  # noqa: BLE001 - an error in a user's callback fails the node
        return Failed.of(error)
    return questions


def unchanged(plan: CompiledGraph, claim: Claim) -> bool:
    """Return whether a claimed node is unchanged since its run began, as far as its graph declares."""
    if claim.fingerprint == plan.topology.fingerprint:
        return True
    node = plan.topology.nodes.get(shape_name(claim.token.node))
    return node is not None and node.signature == claim.signature
