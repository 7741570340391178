"""LangGraph graphs, compiled as a worker would compile them."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict


class State(TypedDict):
    notes: Annotated[list[Any], operator.add]


def text(state):
    """All notes of the final state as one text."""
    return " ".join(map(str, state["notes"]))


def graph(**nodes):
    """A factory of a graph in which these nodes run at the same time."""

    def compiled(checkpointer):
        builder = StateGraph(State)
        for name, node in nodes.items():
            builder.add_node(name, node)
            builder.add_edge(START, name)
            builder.add_edge(name, END)
        return builder.compile(checkpointer=checkpointer)

    return compiled


def asks(*topics):
    """A node that asks about each topic, one after the other."""

    def node(state):
        return {"notes": [interrupt(topic) for topic in topics]}

    return node


class Model(GenericFakeChatModel):
    """A scripted chat model that takes tools; its replies are counted in the conversation."""

    replies: list[AIMessage]
    messages: Any = None

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        count = sum(isinstance(message, AIMessage) for message in messages)
        self.messages = iter([self.replies[min(count, len(self.replies) - 1)]])
        return super()._generate(messages, stop, run_manager)


def call(name, key, **arguments):
    return {"name": name, "args": arguments, "id": key, "type": "tool_call"}


def reply(*calls, content=""):
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return AIMessage(content, tool_calls=list(calls), usage_metadata=usage)
