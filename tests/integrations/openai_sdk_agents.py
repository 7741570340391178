"""Agents of the OpenAI Agents SDK with its own scripted model, built as a worker would build them."""

from __future__ import annotations

from agents import Agent, RunConfig, Usage, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from runner.integrations.openai_agents import OpenAIAgent

MADE: list[str] = []


def call(name, key, **given):
    return function_call(name, given, call_id=key)


def results(given):
    """All tool results of a conversation, as text."""
    return "; ".join(
        str(item["output"])
        for item in given.input
        if item.get("type") == "function_call_output"
    )


def scripted(*replies):
    """Give the replies in order, by what of them is already in the conversation."""
    listed = [reply if isinstance(reply, list) else [reply] for reply in replies]

    def reply(given):
        items = [] if isinstance(given.input, str) else given.input
        made = sum(
            item.get("type") == "function_call" or item.get("role") == "assistant"
            for item in items
        )
        left = list(listed)
        while len(left) > 1 and made >= len(left[0]):
            made -= len(left.pop(0))
        items = [item(given) if callable(item) else item for item in left[0]]
        if isinstance(items[0], Exception):
            return items[0]
        return [assistant_message(item) if isinstance(item, str) else item for item in items]

    usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
    return ScriptedModel([ModelStep.respond(reply)] * 10, default_usage=usage)


@function_tool(needs_approval=True)
def paint(wall: str) -> str:
    """Paint a wall."""
    MADE.append(wall)
    return f"{wall} painted"


def agent(*replies, tools=(paint,), name="painter", **options):
    """An agent that can paint, which needs approval."""
    return Agent(name=name, model=scripted(*replies), tools=list(tools), **options)


def manager():
    """An agent whose tool is the agent that paints."""
    painter = agent(call("paint", "call_1", wall="north"), results)
    tool = painter.as_tool("decorate", "Decorate a wall.")
    decorate = call("decorate", "call_0", input="north")
    return agent(decorate, results, tools=[tool], name="manager")


def node(*replies, factory=None, tools=(paint,), **options):
    """An adapter of such an agent, or of the one that a function builds."""
    build = factory or (lambda: agent(*replies, tools=tools))
    return OpenAIAgent(
        build, name="agent", run_config=RunConfig(tracing_disabled=True), **options
    )
