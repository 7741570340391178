"""Graphs of other frameworks' agents, as a worker imports them."""

from __future__ import annotations

import os
import sys

from mcp import StdioServerParameters

from runner import Agent, GraphBuilder, graph
from runner.integrations.mcp import mcp_tools
from runner.integrations.pydantic_ai import PydanticAIAgent
from runner.integrations.strands import StrandsAgent
from runner.testing import ScriptedModel
from tests.integrations import pydantic_agents, strands_agents


def strands_agent():
    return strands_agents.agent(
        strands_agents.use("ask", "call_0", topic="sky"),
        strands_agents.results,
    )


def pydantic_agent():
    return pydantic_agents.agent(
        pydantic_agents.call("paint", "call_0", wall="north"), pydantic_agents.results
    )


def single(adapter):
    builder = GraphBuilder()
    builder.add_node(adapter, "agent")
    return builder.build()


@graph("strands_agent")
def strands_graph():
    return single(StrandsAgent(strands_agent))


@graph("pydantic_agent")
def pydantic_graph():
    return single(PydanticAIAgent(pydantic_agent))


@graph("mcp_agent")
def mcp_graph():
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.integrations.mcp_server"],
        env={"MCP_CALLS": os.environ.get("MCP_CALLS", "")},
    )
    book = {"toolUse": {"toolUseId": "t1", "name": "book", "input": {"guests": 4}}}
    model = ScriptedModel([[book], "booked"])
    return single(Agent(name="agent", model=model, tools=mcp_tools(server)))
