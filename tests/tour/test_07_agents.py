"""An agent is a node, too. Its tools may ask, and it goes on in the middle of its work."""

from __future__ import annotations

from runner import Agent, GraphBuilder, ToolContext, tool
from runner.testing import ScriptedModel

counted = {"model": 0}


@tool(context=True)
def book(city: str, tool_context: ToolContext) -> str:
    """Book a room in a city."""
    return f"{tool_context.interrupt('which hotel?', reason=city)} in {city} is booked"


def asks_for_the_tool(messages):
    counted["model"] += 1
    return {"toolUse": {"name": "book", "input": {"city": "Oslo"}}}


def says_what_the_tool_said(messages):
    counted["model"] += 1
    return messages[-1]["content"][0]["toolResult"]["content"][0]["text"]


def test_a_tool_asks_and_the_agent_goes_on():
    """After the answer the model is not asked again for what it has said: the agent goes on with the tool."""
    counted["model"] = 0
    builder = GraphBuilder()
    builder.add_node(
        Agent(
            name="clerk",
            model=ScriptedModel([asks_for_the_tool, says_what_the_tool_said]),
            tools=[book],
        )
    )
    graph = builder.build()

    question = graph("A room in Oslo, please.").interrupts[0]
    assert (question.name, question.reason, counted["model"]) == ("which hotel?", "Oslo", 1)

    result = graph(
        [{"interruptResponse": {"interruptId": question.id, "response": "Grand Hotel"}}]
    )
    assert result.results["clerk"].output == "Grand Hotel in Oslo is booked"
    assert counted["model"] == 2


def test_an_agent_reads_the_nodes_before_it():
    """What nodes before it returned is in the agent's prompt, in the order of the edges."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: "rain", "weather")
    builder.add_node(
        Agent(
            name="clerk",
            model=ScriptedModel([lambda messages: messages[0]["content"][-1]["text"]]),
        )
    )
    builder.add_edge("weather", "clerk")

    assert builder.build()("Shall I go out?").results["clerk"].output == "  - Agent: rain"
