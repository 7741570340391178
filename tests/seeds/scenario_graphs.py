"""Graphs under Strands' names, of the shapes that Strands tests interrupts with; workers import them."""

from __future__ import annotations

import itertools
import json

import runner.compat.strands
from runner import graph

runner.compat.strands.install()

import strands.models  # noqa: E402
from strands import Agent, ToolContext, tool  # noqa: E402
from strands.hooks import BeforeNodeCallEvent, BeforeToolCallEvent  # noqa: E402
from strands.multiagent import GraphBuilder, Swarm  # noqa: E402


class Eager(strands.models.Model):
    """Calls each tool once, hands over to the next agent if there is one, and then says what it was told."""

    def __init__(self, successor=""):
        self.successor = successor

    def get_config(self):
        return {}

    def update_config(self, **config):
        raise NotImplementedError

    def structured_output(self, output_model, prompt, system_prompt=None, **options):
        raise NotImplementedError

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        called = [
            b["toolUse"]["name"] for m in messages for b in m["content"] if "toolUse" in b
        ]
        names = [spec["name"] for spec in tool_specs or () if spec["name"] not in called]
        calls = [(name, {}) for name in names if name != "handoff_to_agent"]
        if not calls and self.successor and "handoff_to_agent" in names:
            calls = [
                (
                    "handoff_to_agent",
                    {"agent_name": self.successor, "message": str(messages[1:])},
                )
            ]
        yield {"messageStart": {"role": "assistant"}}
        for name, arguments in calls:
            use = {"toolUseId": f"use-{name}", "name": name}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {
                "contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}
            }
            yield {"contentBlockStop": {}}
        if not calls:
            yield {
                "contentBlockDelta": {"delta": {"text": str([m["content"] for m in messages])}}
            }
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}
        usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


@tool
def clock() -> str:
    """Tell the time."""
    return "12:01"


@tool
def sky() -> str:
    """Tell the weather."""
    return "sunny"


@tool(context=True)
def ask_day(tool_context: ToolContext) -> str:
    """Ask for the day."""
    return tool_context.interrupt("day", reason="which day?")


@tool(context=True)
def ask_sky(tool_context: ToolContext) -> str:
    """Ask for the weather."""
    return tool_context.interrupt("sky", reason="which weather?")


@tool(context=True)
def ask_time(tool_context: ToolContext) -> str:
    """Ask for the time."""
    return tool_context.interrupt("time", reason="which time?")


class Gate:
    """Asks before nodes and tools of some names, and cancels them unless the answer is "yes"."""

    def __init__(self, *names):
        self.names = names

    def register_hooks(self, registry, **options):
        registry.add_callback(BeforeNodeCallEvent, self.before_node)
        registry.add_callback(BeforeToolCallEvent, self.before_tool)

    def before_node(self, event):
        if event.node_id in self.names and event.interrupt(event.node_id) != "yes":
            event.cancel_node = "rejected"

    def before_tool(self, event):
        if event.tool_use["name"] in self.names and event.interrupt("call") != "yes":
            event.cancel_tool = "rejected"


def agent(name, *tools, successor="", **options):
    return Agent(name=name, model=Eager(successor), tools=list(tools), **options)


def fan(*providers, day, weather):
    """A node and three after it."""
    builder = GraphBuilder()
    nodes = (agent("info"), day, agent("time", clock), weather)
    for node, name in zip(nodes, ("info", "day", "time", "weather"), strict=True):
        builder.add_node(node, name)
    for name in ("day", "time", "weather"):
        builder.add_edge("info", name)
    builder.set_entry_point("info")
    builder.set_hook_providers(list(providers))
    builder.set_max_node_executions(10)
    return builder.build()


def chain(*nodes):
    builder = GraphBuilder()
    for node in nodes:
        builder.add_node(node, node.name if isinstance(node, Agent) else "inner")
    names = list(builder.nodes)
    for source, target in itertools.pairwise(names):
        builder.add_edge(source, target)
    builder.set_max_node_executions(10)
    return builder.build()


@graph("swarm_hook")
def swarm_hook():
    members = [agent("info", successor="weather"), agent("weather", sky)]
    return Swarm(members, hooks=[Gate("weather")])


@graph("graph_hook")
def graph_hook():
    gate = Gate("day", "weather")
    return fan(gate, day=agent("day", clock), weather=agent("weather", sky))


@graph("swarm_tool")
def swarm_tool():
    return Swarm([agent("weather", ask_sky)])


@graph("graph_tool")
def graph_tool():
    return fan(day=agent("day", ask_day), weather=Swarm([agent("weather", ask_sky)]))


@graph("swarm_of_two")
def swarm_of_two():
    return Swarm([agent("weather", ask_sky, successor="sum"), agent("sum")])


@graph("graph_in_graph")
def graph_in_graph():
    return chain(chain(agent("weather", ask_sky)), agent("sum"))


@graph("agent_hook")
def agent_hook():
    return chain(agent("a", clock, sky, hooks=[Gate("clock")]))


@graph("agent_tools")
def agent_tools():
    return chain(agent("a", ask_time, ask_day, sky, hooks=[Gate("ask_time")]))
