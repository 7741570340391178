"""A user's agent and its tools: a tool is called as the function that it is."""

from __future__ import annotations

from typing import Annotated, assert_type

import pydantic
from pydantic import Field

from runner import Agent, AgentResult, GraphBuilder, ToolContext, tool
from runner.testing import ScriptedModel


class Verdict(pydantic.BaseModel):
    """What the agent decides."""

    fits: bool


@tool
def search(query: str, limit: Annotated[int, Field(ge=1)] = 10) -> list[str]:
    """Search the documents."""
    return [query] * limit


@tool(name="refund", context=True)
def pay_back(amount: int, tool_context: ToolContext) -> bool:
    """Pay back an amount after a person has agreed."""
    verdict = tool_context.interrupt("refund", amount, response_schema=Verdict)
    assert_type(verdict, Verdict)
    return verdict.fits


@tool
async def look_up(name: str) -> int:
    """Look a customer up."""
    return len(name)


class Desk:
    """An object whose methods are tools."""

    @tool
    def note(self, text: str) -> str:
        """Write a note."""
        return text


assert_type(search("x", limit=2), list[str])
search(3)  # type: ignore[arg-type]
search("x", limits=2)  # type: ignore[call-arg]
assert_type(Desk().note("x"), str)
Desk().note(3)  # type: ignore[arg-type]


async def use() -> None:
    """Call an agent with a tool of each kind."""
    assert_type(await look_up("x"), int)
    agent = Agent(
        "clerk", ScriptedModel(["done"]), tools=[search, pay_back, look_up, Desk().note]
    )
    assert_type(agent("go", limits={"turns": 3}, structured_output_model=Verdict), AgentResult)
    assert_type(await agent.invoke_async("go"), AgentResult)
    stream = agent.stream_async("go")
    async for event in stream:
        print(event["data"])
    await stream.aclose()
    GraphBuilder().add_node(agent)
