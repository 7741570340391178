"""Graphs whose hooks ask at each firing of one event; Redis has what their models and tools did."""

from __future__ import annotations

from functools import partial

from runner import Agent, GraphBuilder, graph, hooks, tool
from runner.testing import ScriptedModel
from tests.celery.graphs import store
from tests.graphs import AGENT_EVENTS

EVENTS = {
    event_type.__name__: event_type
    for event_type in (
        *AGENT_EVENTS,
        hooks.BeforeGraphEvent,
        hooks.BeforeNodeCallEvent,
        hooks.AfterNodeCallEvent,
        hooks.AfterGraphEvent,
    )
}
"""The events that may ask, by name."""


def build(name, note):
    """Build an agent of one tool and two turns, as a node; `note(word)` is told of each call."""

    def reply(said, messages):
        note("model")
        return said

    @tool
    def work() -> str:
        """Work."""
        note("tool")
        return "worked"

    registry = hooks.HookRegistry()
    registry.add_callback(EVENTS[name], lambda event: event.interrupt("go on?"))
    call = {"toolUse": {"name": "work", "input": {}}}
    model = ScriptedModel([partial(reply, call), partial(reply, "end")])
    builder = GraphBuilder().set_graph_id(name)
    builder.add_node(Agent("a", model, [work], hooks=[registry]), "a")
    return builder.set_hook_providers([registry]).build()


def note_in_redis(name, word):
    """Append to the list of calls of a graph."""
    with store() as client:
        client.rpush(f"calls:{name}", word)


for _name in EVENTS:
    graph(_name)(partial(build, _name, partial(note_in_redis, _name)))
