"""Graphs of other frameworks' agents, as a worker imports them."""

from __future__ import annotations

import os
import sys

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from mcp import StdioServerParameters

from runner import Agent, GraphBuilder, graph
from runner.integrations.langgraph import LangGraphNode
from runner.integrations.mcp import mcp_tools
from runner.integrations.pydantic_ai import PydanticAIAgent
from runner.integrations.strands import StrandsAgent
from runner.testing import ScriptedModel
from tests.integrations import (
    langgraph_graphs,
    openai_sdk_agents,
    pydantic_agents,
    strands_agents,
)


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


@graph("openai_agent")
def openai_graph():
    return single(openai_sdk_agents.node(factory=openai_sdk_agents.manager))


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


@graph("langgraph_graph")
def langgraph_graph():
    asking = langgraph_graphs.graph(first=langgraph_graphs.asks("sky"))
    return single(
        LangGraphNode(asking, input=lambda _: {"notes": []}, output=langgraph_graphs.text)
    )


def pay(order: str) -> str:
    """Pay an order."""
    return f"{order} is paid"


def reviewed_agent(checkpointer):
    replies = [
        langgraph_graphs.reply(langgraph_graphs.call("pay", "t1", order="7")),
        langgraph_graphs.reply(content="done"),
    ]
    return create_agent(
        langgraph_graphs.Model(replies=replies),
        [pay],
        middleware=[HumanInTheLoopMiddleware({"pay": True})],
        checkpointer=checkpointer,
    )


def conversation(state):
    return ", ".join(str(message.content) for message in state["messages"][-2:])


@graph("langchain_agent")
def langchain_agent():
    return single(LangGraphNode(reviewed_agent, output=conversation))
