"""Graphs of agents for the end-to-end tests: what is done in them is written down in the store.

The task of a run is the name under which it writes.
"""

from __future__ import annotations

import asyncio
import os
import threading

from runner import Agent, GraphBuilder, Swarm, ToolContext, graph, tool
from runner.hooks import (
    AfterToolCallEvent,
)
from runner.testing import ScriptedModel
from tests.celery.graphs import GATE_SECONDS, result_text, store, weather_tool

GATED = {"sequential": {3}, "concurrent": {3, 4}}
"""Which of the five calls wait for the gate; the third of them is the one in flight at the kill."""


def note(name: str, what: str, *facts: object) -> None:
    """Write down what happens, and in which process."""
    with store() as client:
        client.rpush(f"{what}:{name}", "|".join(str(fact) for fact in (os.getpid(), *facts)))


def wait_at_gate(name: str) -> None:
    with store() as client:
        pause = threading.Event()
        client.set(f"at-gate:{name}", 1)
        for _ in range(GATE_SECONDS * 20):
            if client.exists(f"gate:{name}"):
                return
            pause.wait(0.05)
    raise TimeoutError("the test never opened the gate")


def task_of(messages) -> str:
    return messages[0]["content"][0]["text"]


class Provider:
    """Registers pairs of an event and a callback."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def register_hooks(self, registry, **_):
        for event_type, callback in self.pairs:
            registry.add_callback(event_type, callback)


def one_node(executor, *hooks, name="a"):
    builder = GraphBuilder()
    builder.add_node(executor, name)
    return builder.set_hook_providers(list(hooks)).build()


# -- five calls, and a worker that is killed in the middle ---------------------------------------------


def five_calls(executor: str):
    """Build a graph of one agent with five tool calls, some of which wait for the gate."""

    @tool(context=True)
    def step(number: int, tool_context: ToolContext) -> str:
        """Do one of five things."""
        name = task_of(tool_context.agent.messages)
        note(name, "calls", number, tool_context.attempt, tool_context.idempotency_key)
        if number in GATED[executor]:
            wait_at_gate(name)
        return f"did {number}"

    def asked(messages):
        note(task_of(messages), "model", len(messages))
        return [
            {"toolUse": {"name": "step", "input": {"number": number}}} for number in range(1, 6)
        ]

    def ended(messages):
        note(task_of(messages), "model", len(messages))
        blocks = messages[-1]["content"]
        return ", ".join(block["toolResult"]["content"][0]["text"] for block in blocks)

    return one_node(
        Agent("five", ScriptedModel([asked, ended]), [step], tool_executor=executor)
    )


@graph("five_sequential")
def five_sequential():
    return five_calls("sequential")


@graph("five_concurrent")
def five_concurrent():
    return five_calls("concurrent")


@graph("five_plain")
def five_plain():
    """Control: the same five things in a function, which begins anew when its worker was lost."""

    def five(ctx):
        for number in range(1, 6):
            note(ctx.task, "calls", number, ctx.attempt, ctx.idempotency_key)
            if number == 3:
                wait_at_gate(ctx.task)
        return "done"

    return one_node(five)


# -- a failed call that a person looks at ---------------------------------------------------------------


class QuotaError(LookupError):
    """A class that every worker can import."""

    def __init__(self, message: str, *, left: int) -> None:
        super().__init__(message, {"unit": "calls"})
        self.left = left


def looked_at(make_error):
    """Build a graph whose tool fails in its first attempt; a person says whether there is another."""

    @tool(context=True)
    def buy(tool_context: ToolContext) -> str:
        """Buy something; this fails at first."""
        name = task_of(tool_context.agent.messages)
        note(name, "calls", tool_context.attempt, tool_context.idempotency_key)
        if tool_context.attempt > 1:
            return "bought"
        error = make_error()
        error.add_note("seen by the tool")
        raise error from ConnectionResetError(104, "reset")

    def look(event):
        error = event.exception
        name = task_of(event.agent.messages)
        known = isinstance(error, QuotaError)
        note(
            name,
            "looks",
            type(error).__name__,
            known,
            isinstance(error, LookupError),
            event.is_replay,
        )
        if error is None:
            return
        facts = (
            error.args,
            getattr(error, "left", None),
            error.__notes__,
            type(error.__cause__).__name__,
        )
        note(name, "errors", *facts, error.__cause__.args)
        event.retry = event.interrupt("retry", reason=str(error)) == "again"

    model = ScriptedModel([{"toolUse": {"name": "buy"}}, result_text])
    return one_node(Agent("buyer", model, [buy], hooks=[Provider((AfterToolCallEvent, look))]))


@graph("looked_at")
def looked_at_importable():
    return looked_at(lambda: QuotaError("none left", left=0))


@graph("looked_at_local")
def looked_at_local():
    """Control: an error whose class no other process can import."""

    class QuotaError(LookupError):  # the same name, but inside a function
        left = 0

    return looked_at(lambda: QuotaError("none left", {"unit": "calls"}))


# -- the events inside an agent, and an agent inside an agent ---------------------------------------------


@graph("boss")
def boss():
    @tool(context=True)
    def look(tool_context: ToolContext) -> str:
        """Look something up; a person helps."""
        note("boss", "calls", tool_context.idempotency_key)
        return tool_context.interrupt("where", reason="in which drawer?")

    def first(messages):
        note("boss", "model", task_of(messages))
        return {"toolUse": {"name": "look"}}

    def order(messages):
        note("boss", "model", task_of(messages))
        return {"toolUse": {"name": "clerk", "input": {"input": "find it"}}}

    clerk = Agent("clerk", ScriptedModel([first, result_text]), [look])
    return one_node(Agent("boss", ScriptedModel([order, result_text]), [clerk]))


@graph("team")
def team():
    """A swarm whose second agent asks."""
    handoff = {"agent_name": "weather", "message": "where is it sunny?", "context": {"day": 1}}

    def says_why(messages):
        context = messages[0]["content"][0]["text"]
        return f"{result_text(messages)}; {context.splitlines()[1]}"

    desk = Agent(
        "desk",
        ScriptedModel(
            [{"toolUse": {"name": "handoff_to_agent", "input": handoff}}, "handed over"]
        ),
    )
    weather = Agent(
        "weather",
        ScriptedModel([{"toolUse": {"name": "weather_tool"}}, says_why]),
        [weather_tool],
    )
    return Swarm([desk, weather])


# -- memory across runs -----------------------------------------------------------------------------------


@graph("remembering")
def remembering():
    def reply(messages):
        return " ".join(block["text"] for message in messages for block in message["content"])

    model = ScriptedModel([reply] * 9)
    return one_node(Agent("a", model, session_id=lambda state: state.get("customer")))


# -- what those who watch see -----------------------------------------------------------------------------


class SlowModel:
    """Says the first half of its reply, and the rest when the gate is open."""

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        yield {"messageStart": {"role": "assistant"}}
        if len(messages) > 1:
            yield {"contentBlockDelta": {"delta": {"text": "quick"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
            return
        yield {"contentBlockStart": {"start": {}}}
        await asyncio.to_thread(wait_at_gate, task_of(messages))
        for text in ("let me ", "see"):
            yield {"contentBlockDelta": {"delta": {"text": text}}}
        yield {"contentBlockStop": {}}
        yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1", "name": "load"}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


@graph("watched")
def watched():
    @tool(context=True)
    def load(tool_context: ToolContext) -> str:
        """Load what a person allows."""
        allowed = tool_context.interrupt("may I")
        tool_context.progress(0.5, "half")
        return allowed

    return one_node(Agent("reader", SlowModel(), [load]), name="reader")
