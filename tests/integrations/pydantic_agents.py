"""pydantic-ai agents with a scripted model, built as a worker would build them."""

from __future__ import annotations

from pydantic_ai import Agent, CallDeferred, DeferredToolRequests
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage


def call(name, key, **given):
    return ToolCallPart(name, given, tool_call_id=key)


def results(messages):
    """All tool results of a conversation, as text."""
    parts = [
        part
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    return "; ".join(f"{part.tool_name} is {part.content}" for part in parts)


def scripted(*replies):
    """Give the replies in order, by the count of those already in the conversation."""

    def reply(messages, info):
        index = sum(isinstance(message, ModelResponse) for message in messages)
        given = replies[min(index, len(replies) - 1)]
        if callable(given):
            given = given(messages)
        if isinstance(given, BaseException):
            raise given
        listed = given if isinstance(given, list) else [given]
        parts = [TextPart(part) if isinstance(part, str) else part for part in listed]
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=10, output_tokens=5))

    return FunctionModel(reply)


def agent(*replies, output_type=str, **options):
    """An agent that can ask for a colour (done elsewhere) and paint (needs approval)."""
    built = Agent(
        scripted(*replies), output_type=[output_type, DeferredToolRequests], **options
    )

    @built.tool_plain
    def colour(topic: str) -> str:
        """Ask somebody."""
        raise CallDeferred(kind="question", metadata={"asked_for": topic})

    @built.tool_plain(requires_approval=True)
    def paint(wall: str) -> str:
        """Paint a wall."""
        return f"{wall} painted"

    return built
