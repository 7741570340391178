"""One execution of a node with the graph's hooks around it.

Before hooks run at every start of the node, also after an answer; a question of theirs keeps the
node from running. After hooks see a tentative result: while one asks, the outcome is stored and
successors wait; an interrupted node has no After (it has not ended).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from runner import batches, codec, failures, fanout, graph_events, inputs, loops, sizes
from runner.asking import Asker
from runner.errors import CorruptDocument, LeaseLost, NodeFailed, PayloadTooLarge, RunStopped
from runner.graph import BATCH, HIDDEN
from runner.hooks import AfterNodeCallEvent, BeforeNodeCallEvent, GraphEvent, HookRegistry, fire
from runner.interrupts import Interrupt
from runner.maps import map_of, shape_name
from runner.outcomes import Delegated, Failed, Interrupted, Outcome, Saved, Succeeded
from runner.ports import Claim, RunSnapshot
from runner.registry import Plan
from runner.results import total_usage
from runner.run import FINAL, Status
from runner.visits import ClaimedVisit, dump_outcome, load_outcome

BEFORE = "before_node_call"
AFTER = "after_node_call"


def execute(plan: Plan, visit: ClaimedVisit) -> Outcome:
    """Run a claimed node: hooks before, the node, hooks after. What is too large to store fails it."""
    outcome = _execute(plan, visit)
    try:
        sizes.check_outcome(visit.address.node_id, outcome, visit.store)
    except PayloadTooLarge as error:
        return refused(visit, outcome, error)
    return outcome


def refused(visit: ClaimedVisit, outcome: Outcome, error: PayloadTooLarge) -> Failed:
    """Make a failure of what was too large to store: nothing of it is kept, but for what it used."""
    visit.tentative = None
    return Failed(failures.record(error), usage=getattr(outcome, "usage", {}))


def _execute(plan: Plan, visit: ClaimedVisit) -> Outcome:
    if visit.address.node_id == BATCH:
        return batches.choose(plan, visit)
    if plan.topology.batches:
        visit.inputs = batches.told(plan, visit)
    try:
        hooks = HookRegistry(plan.definition.hooks)
    except Exception as error:  # noqa: BLE001 - a provider that can't register fails the node
        return Failed(failures.record(error))
    if plan.node(visit.address.node_id).kind == graph_events.KIND:
        return graph_events.execute(plan.definition, hooks, visit)
    if visit.tentative is not None:
        return _after(plan, hooks, visit, load_outcome(visit.tentative))
    refused = _before(plan, hooks, visit)
    match refused:
        case Failed() if plan.topology.batches:
            return refused  # Strands fires no After where a callback before the node has raised
        case str():
            refused = Failed(failures.record(NodeFailed(refused)))
    return _after(plan, hooks, visit, refused or _body(plan, visit))


def wrapped(visit: ClaimedVisit, outcome: Interrupted | Failed) -> Saved | None:
    """The document to store with an outcome: None leaves the stored one as it is."""
    if outcome.saved is not None:
        return visit.wrap(outcome.saved)
    # A tentative outcome is stored when hooks ask about it, and removed when it has become final.
    return visit.wrap_kept() if visit.tentative is not None or visit.replays or visit.trace else None


def entry(kind: str, spent: int, usage: Mapping[str, int]) -> dict[str, Any]:
    """Begin what is stored of an ended visit; `spent` is in milliseconds."""
    found: dict[str, Any] = {"v": 1, "kind": kind, "ms": spent}
    if usage:
        found["usage"] = dict(usage)
    return found


def _body(plan: Plan, visit: ClaimedVisit) -> Outcome:
    spec = plan.node(visit.address.node_id)
    if spec.kind == "graph":
        return _graph(plan, visit)
    try:
        outcome: Outcome = fanout.execute(spec, visit) if spec.map else spec.executor.execute(visit)
    except (LeaseLost, RunStopped, CorruptDocument):
        raise
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
            raise  # from a signal: this process ends, and another one runs the node again
        outcome = Failed(failures.record(error))
    if visit.outage is not None and isinstance(outcome, Failed):
        raise visit.outage  # no fault of the node: it runs again when the store is back
    return batches.judged(plan, spec, outcome)


def _graph(plan: Plan, visit: ClaimedVisit) -> Outcome:
    """A graph as a node: a child run does the work; when it has ended, its end is the node's."""
    child = visit.claim.child
    if child is None or child.record.status not in FINAL:
        blocks = inputs.blocks(visit.task, visit.inputs)
        return Delegated(blocks if visit.inputs else visit.task)
    usage = total_usage(child.entries.values())
    if child.record.status is Status.COMPLETED:
        output = sink_outputs(child)
        return Succeeded(output, output, usage)
    alone = plan.topology.batches and batches.ended_by_itself(child)
    return Failed(failures.record(NodeFailed(_child_failure(child))), usage=usage, alone=alone)


def _child_failure(child: RunSnapshot) -> str:
    errors = [
        f"{node}: {failures.load(entry['error'])}"
        for (node, _), entry in child.entries.items()
        if entry.get("error")
    ]
    reason = child.record.reason or "; ".join(errors)
    found = "; ".join(errors) or reason
    return f"the graph inside ended as {child.record.status} (run {child.record.run_id}): {found}"


def sink_outputs(child: RunSnapshot) -> Any:
    """The output of a graph: its only sink's output, or those of all sinks by node id.

    Sinks are the completed nodes none of whose edges was taken.
    """
    done = {
        node: child.outputs.get((node, record.visit))
        for node, record in child.nodes.items()
        if record.status is Status.COMPLETED
        and "1" not in record.edges
        and not (node.startswith(HIDDEN) or map_of(node))
    }
    return next(iter(done.values())) if len(done) == 1 else done


def _before(plan: Plan, hooks: HookRegistry, visit: ClaimedVisit) -> Interrupted | Failed | str | None:
    """Fire the hooks before: their questions, their error, why the node is cancelled, or nothing."""
    # Where others do the work, the node is started once more when they have ended: it was announced.
    announced = visit.claim.child is not None or visit.work is not None
    if announced or not hooks.callbacks_for(BeforeNodeCallEvent):
        return None
    asker = Asker(visit.address, BEFORE, answers=visit.answers)
    event = BeforeNodeCallEvent(
        source=plan.definition,
        node_id=visit.address.node_id,
        invocation_state=visit.invocation_state,
        attempt=visit.attempt,
        is_replay=_knows(visit, BEFORE),
        asker=asker,
    )
    asked = _fire(hooks, event)
    if isinstance(asked, Failed):
        return asked
    if asked:
        # Nothing of the node has run: what it asked before and waits for stays open.
        return Interrupted(list(asked), keeps=True)
    if event.cancel_node:
        return event.cancel_node if isinstance(event.cancel_node, str) else "node cancelled by user"
    return None


def _after(plan: Plan, hooks: HookRegistry, visit: ClaimedVisit, outcome: Outcome) -> Outcome:
    """Fire the hooks after a node that has ended; one that waits is left as it is."""
    if not isinstance(outcome, (Succeeded, Failed)) or not hooks.callbacks_for(AfterNodeCallEvent):
        return outcome
    result = (
        codec.unpack(outcome.output) if isinstance(outcome, Succeeded) else failures.restore(outcome.error)
    )
    event = AfterNodeCallEvent(
        source=plan.definition,
        node_id=visit.address.node_id,
        invocation_state=visit.invocation_state,
        attempt=visit.attempt,
        is_replay=visit.replays,
        result=result,
        asker=Asker(visit.address, AFTER, answers=visit.answers),
    )
    asked = _fire(hooks, event)
    if isinstance(asked, Failed):
        visit.tentative = None
        return asked
    visit.tentative = dump_outcome(outcome) if asked else None
    return Interrupted(list(asked)) if asked else outcome


def _fire(hooks: HookRegistry, event: GraphEvent) -> Sequence[Interrupt] | Failed:
    try:
        found: Sequence[Interrupt] = loops.run(fire(event, hooks.callbacks_for(type(event))))
    except Exception as error:  # noqa: BLE001 - an error in a user's callback fails the node
        return Failed(failures.record(error))
    return found


def _knows(visit: ClaimedVisit, scope: str) -> bool:
    return any(answer.scope == scope for answer in visit.answers.values())


def unchanged(plan: Plan, claim: Claim) -> bool:
    """Tell whether a claimed node is what it was when its run began, as far as its graph says."""
    if claim.fingerprint == plan.topology.fingerprint:
        return True
    node = plan.topology.nodes.get(shape_name(claim.token.node))
    return node is not None and node.signature == claim.signature
