"""A freeze of a tool holds for tools of frameworks' agents, too."""

from __future__ import annotations

import pytest

from runner import GraphBuilder, Status
from runner.approvals import freezes, freezing
from runner.testing import ManualClock
from tests.execution.test_freezes import GRAPHS, Site
from tests.integrations.extras import need

need("pydantic_ai", "pydantic-ai")
need("strands", "strands")
need("langchain", "dev")
need("agents", "openai-agents")

from agents import function_tool  # noqa: E402 - only where the extra is installed
from langchain.agents import create_agent  # noqa: E402 - as above
from langchain_core.tools import StructuredTool  # noqa: E402 - as above
from strands import tool  # noqa: E402 - as above

from runner.integrations.langgraph import LangGraphNode  # noqa: E402 - as above
from runner.integrations.pydantic_ai import PydanticAIAgent  # noqa: E402 - as above
from runner.integrations.strands import StrandsAgent  # noqa: E402 - as above
from tests.integrations import (  # noqa: E402 - as above
    langgraph_graphs,
    openai_sdk_agents,
    pydantic_agents,
    strands_agents,
)

pytestmark = pytest.mark.full

CALLED: list[str] = []


@tool
def refund(order: str) -> str:
    """Pay back."""
    CALLED.append(f"refund {order}")
    return "paid"


@tool
def look(order: str) -> str:
    """Look an order up."""
    CALLED.append(f"look {order}")
    return "seen"


def of_strands():
    calls = [
        strands_agents.use("look", "t0", order="7"),
        strands_agents.use("refund", "t1", order="7"),
    ]
    return StrandsAgent(
        lambda: strands_agents.agent(calls, "done", tools=[look, refund]), name="pays"
    )


def of_pydantic_ai():
    calls = [
        pydantic_agents.call("look", "t0", order="7"),
        pydantic_agents.call("refund", "t1", order="7"),
    ]

    def build():
        built = pydantic_agents.agent(calls, "done")
        built.tool_plain(lambda order: CALLED.append(f"look {order}"), name="look")
        built.tool_plain(lambda order: CALLED.append(f"refund {order}"), name="refund")
        return built

    return PydanticAIAgent(build, name="pays")


def of_langgraph():
    calls = langgraph_graphs.reply(
        langgraph_graphs.call("look", "t0", order="7"),
        langgraph_graphs.call("refund", "t1", order="7"),
    )
    replies = [calls, langgraph_graphs.reply(content="done")]

    def compiled(checkpointer):
        tools = [
            StructuredTool.from_function(
                lambda order, name=name: CALLED.append(f"{name} {order}"),
                name=name,
                description="A tool.",
            )
            for name in ("look", "refund")
        ]
        model = langgraph_graphs.Model(replies=replies)
        return create_agent(model, tools, checkpointer=checkpointer)

    return LangGraphNode(compiled, name="pays")


def sdk_agent():
    calls = [
        openai_sdk_agents.call("look", "t0", order="7"),
        openai_sdk_agents.call("refund", "t1", order="7"),
    ]

    def made(name):
        def call(order: str) -> None:
            CALLED.append(f"{name} {order}")

        return function_tool(call, name_override=name, description_override="A tool.")

    return openai_sdk_agents.agent(calls, "done", tools=[made("look"), made("refund")])


def of_openai_agents():
    return openai_sdk_agents.node(factory=sdk_agent)


def of_nested_openai_agents():
    def build():
        nested = sdk_agent().as_tool("ask", "Ask the other agent.")
        first = openai_sdk_agents.call("ask", "t9", input="go")
        return openai_sdk_agents.agent(first, "done", tools=[nested], name="manager")

    return openai_sdk_agents.node(factory=build)


@pytest.mark.parametrize(
    "make",
    [of_strands, of_pydantic_ai, of_langgraph, of_openai_agents, of_nested_openai_agents],
)
def test_a_frozen_tool_of_a_framework_is_not_called(monkeypatch, in_redis, make):
    """No call of its batch begins, none is made twice after the thaw; another tool's freeze lets all run."""

    def graph():
        builder = GraphBuilder()
        builder.add_node(make())
        return builder.build()

    CALLED.clear()
    monkeypatch.setattr(freezes, "LOOK_EVERY", 0.0)
    monkeypatch.setitem(GRAPHS, "framework", graph)
    clock = ManualClock()
    site = Site(in_redis(clock), clock)
    freezing.freeze(site.engine, "tool:refund", "fraud", force=True)
    freezing.freeze(site.engine, "tool:other", "fraud", force=True)
    run_id = site.engine.start("framework", "go")
    assert (site.deliver(), site.sweep(16), CALLED) == (["retrying"], ["retrying"], [])

    freezing.thaw(site.engine, "tool:refund", "over")
    site.sweep(16)
    assert site.store.peek(run_id).status is Status.COMPLETED
    assert sorted(CALLED) == ["look 7", "refund 7"]
