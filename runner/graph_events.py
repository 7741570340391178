"""The graph's own events as hidden nodes, so that they wait, resume and survive like any other.

`@before` stands ahead of the entry points; `@after` becomes ready when the run would end, however
it ends. Each exists only where a provider has callbacks for its event. Their questions are the
run's; but a run that stops waits for nobody, and what its last event asks is withdrawn.
"""

from __future__ import annotations

from dataclasses import replace

from runner import failures, loops
from runner.asking import Asker
from runner.errors import CorruptDocument
from runner.graph import AFTER_GRAPH, BEFORE_GRAPH, Definition, EdgeSpec, NodeSpec
from runner.hooks import AfterGraphEvent, BeforeGraphEvent, GraphEvent, HookRegistry, fire
from runner.outcomes import Failed, Interrupted, Outcome, Succeeded
from runner.results import graph_result
from runner.run import status_of
from runner.visits import ClaimedVisit

KIND = "event"


def with_events(definition: Definition) -> Definition:
    """Add the hidden nodes that a graph's hook providers need."""
    if not definition.hooks:
        return definition
    registry = HookRegistry(definition.hooks)
    if registry.callbacks_for(BeforeGraphEvent):
        first = tuple(EdgeSpec(BEFORE_GRAPH, entry) for entry in definition.entries)
        definition = replace(
            definition,
            nodes={BEFORE_GRAPH: NodeSpec(BEFORE_GRAPH, None, KIND), **definition.nodes},
            edges=(*first, *definition.edges),
            entries=(BEFORE_GRAPH,),
        )
    if registry.callbacks_for(AfterGraphEvent):
        last = {AFTER_GRAPH: NodeSpec(AFTER_GRAPH, None, KIND)}
        definition = replace(definition, nodes={**definition.nodes, **last})
    return definition


def execute(definition: Definition, hooks: HookRegistry, visit: ClaimedVisit) -> Outcome:
    """Fire the event that a hidden node stands for."""
    before = visit.address.node_id == BEFORE_GRAPH
    asker = Asker(visit.address, "before_graph" if before else "after_graph", answers=visit.answers)
    event = _before(definition, visit, asker) if before else _after(definition, visit, asker)
    try:
        asked = loops.run(fire(event, hooks.callbacks_for(type(event))))
    except Exception as error:  # noqa: BLE001 - an error in a user's callback fails the run
        return Failed(failures.record(error))
    return Interrupted(list(asked)) if asked else Succeeded(None, None)


def _before(definition: Definition, visit: ClaimedVisit, asker: Asker) -> GraphEvent:
    return BeforeGraphEvent(
        source=definition,
        invocation_state=visit.invocation_state,
        task=visit.task,
        is_replay=bool(visit.answers),
        attempt=visit.attempt,
        asker=asker,
    )


def _after(definition: Definition, visit: ClaimedVisit, asker: Asker) -> GraphEvent:
    snapshot = visit.run_snapshot()
    if snapshot is None:
        raise CorruptDocument(f"run {visit.address.run_id} is gone while its last event fires.")
    ends = status_of(replace(snapshot.record, active=0))
    return AfterGraphEvent(
        source=definition,
        invocation_state=visit.invocation_state,
        result=replace(graph_result(visit.store, snapshot), status=ends),
        is_replay=bool(visit.answers),
        attempt=visit.attempt,
        asker=asker,
    )
