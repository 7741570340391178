"""Graphs of each kind that ask one question, as a worker imports them; each notes its effect in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agents import function_tool
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from mcp import StdioServerParameters
from strands import ToolContext
from strands import tool as strands_tool

from runner import Agent, graph, tool
from runner.approvals import Action, Auth, Rule
from runner.integrations.langgraph import LangGraphNode
from runner.integrations.mcp import mcp_tools
from runner.integrations.pydantic_ai import PydanticAIAgent
from runner.integrations.strands import StrandsAgent
from runner.testing import ScriptedModel
from tests.graphs import wired
from tests.integrations import (
    langgraph_graphs,
    openai_sdk_agents,
    pydantic_agents,
    strands_agents,
)

RULE = Rule(eligible=["ana"])


def pay(order: str) -> str:
    """Pay an order."""
    with Path(os.environ["EFFECTS"]).open("a", encoding="utf-8") as file:
        file.write(f"{order}\n")
    return f"{order} is paid"


def asking(order, rule=RULE):
    def ask(ctx):
        action = Action("runner", "function", "pay", {"order": order})
        assert ctx.interrupt("pay", rule=rule, action=action).approved
        return pay(order)

    return wired({"asker": ask}).build()


@graph("function")
def function():
    return asking("function")


@graph("login")
def login():
    return asking("login", Rule(eligible=["ana"], auth=Auth(level=2)))


@graph("agent")
def agent():
    use = {"toolUse": {"name": "pay", "input": {"order": "agent"}}}
    model = ScriptedModel([use, strands_agents.results])
    tools = [tool(approval=RULE)(pay)]
    return wired({"asker": Agent(name="asker", model=model, tools=tools)}).build()


@graph("strands")
def strands():
    @strands_tool(context=True)
    def ask(order: str, tool_context: ToolContext) -> str:
        """Ask a person."""
        assert tool_context.interrupt("pay", reason={"order": order}) == "yes"
        return pay(order)

    use = strands_agents.use("ask", "call_0", order="strands")
    return wired(
        {
            "asker": StrandsAgent(
                lambda: strands_agents.agent(use, strands_agents.results, tools=[ask])
            )
        }
    ).build()


@graph("pydantic_ai")
def pydantic_ai():
    def build():
        call = pydantic_agents.call("pay", "call_0", order="pydantic_ai")
        agent = pydantic_agents.agent(call, pydantic_agents.results)
        agent.tool_plain(requires_approval=True)(pay)
        return agent

    return wired({"asker": PydanticAIAgent(build)}).build()


@graph("langgraph")
def langgraph():
    def ask(state):
        assert langgraph_graphs.interrupt("pay") == "yes"
        return {"notes": [pay("langgraph")]}

    node = LangGraphNode(
        langgraph_graphs.graph(ask=ask),
        input=lambda _: {"notes": []},
        output=langgraph_graphs.text,
    )
    return wired({"asker": node}).build()


@graph("langchain")
def langchain():
    def build(checkpointer):
        call = langgraph_graphs.call("pay", "call_0", order="langchain")
        replies = [langgraph_graphs.reply(call), langgraph_graphs.reply(content="paid")]
        return create_agent(
            langgraph_graphs.Model(replies=replies),
            [pay],
            middleware=[HumanInTheLoopMiddleware({"pay": True})],
            checkpointer=checkpointer,
        )

    return wired({"asker": LangGraphNode(build, approval=RULE)}).build()


@graph("openai_agents")
def openai_agents():
    def build():
        call = openai_sdk_agents.call("pay", "call_0", order="openai_agents")
        tools = [function_tool(needs_approval=True)(pay)]
        payer = openai_sdk_agents.agent(call, openai_sdk_agents.results, tools=tools)
        give = openai_sdk_agents.call("give", "call_0", input="pay")
        tools = [payer.as_tool("give", "Give an order to another agent.")]
        return openai_sdk_agents.agent(
            give, openai_sdk_agents.results, tools=tools, name="manager"
        )

    return wired({"asker": openai_sdk_agents.node(factory=build, approval=RULE)}).build()


def of_mcp_server(tool, **arguments):
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.integrations.mcp_server"],
        env={name: os.environ[name] for name in ("MCP_CALLS", "MCP_TASKS")},
    )
    call = {"toolUse": {"name": tool, "input": arguments}}
    model = ScriptedModel([call, strands_agents.results])
    return wired({"asker": Agent(name="asker", model=model, tools=mcp_tools(server))}).build()


@graph("mcp_server")
def mcp_server():
    return of_mcp_server("book", guests=4)


@graph("mcp_task")
def mcp_task():
    return of_mcp_server("cook", dish="fish")


@graph("mcp_wait")
def mcp_wait():
    return of_mcp_server("cook", dish="nothing")
