"""The graphs of the end-to-end tests, as a user's module would register them."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress

import redis
from celery import current_task

from runner import Agent, GraphBuilder, Limit, RetryPolicy, ToolContext, graph, tool
from runner.approvals import Rule
from runner.testing import ScriptedModel
from tests.celery.shapes import drawn, each_of, repeated

GATE_SECONDS = 150


def store() -> redis.Redis:
    first, *_ = os.environ["RUNNER_REDIS_URL"].split(",")
    return redis.Redis.from_url(first)


def name_of(ctx):
    """A node that says which one it is, and what came in."""
    return [ctx.node_id, *sorted(ctx.inputs)]


def build(*edges, **nodes):
    """Build a graph of `name_of` nodes; `nodes` replace some."""
    return drawn(*edges, work=name_of, **nodes).build()


def ask(ctx):
    return ctx.interrupt("approval", {"of": ctx.node_id})


def collect(ctx):
    """Make 30,000 objects; return how often garbage was looked for, and how many objects are exempt."""
    before = sum(each["collections"] for each in gc.get_stats())
    _made = [[] for _ in range(30_000)]
    return sum(each["collections"] for each in gc.get_stats()) - before, gc.get_freeze_count()


def pid_and_gate(ctx):
    """Say which process runs this, then wait until the test opens the gate of the run."""
    with store() as client:
        client.rpush(
            f"started:{ctx.run_id}", f"{os.getpid()} {ctx.attempt} {ctx.idempotency_key}"
        )
        pause = threading.Event()
        for _ in range(GATE_SECONDS * 20):
            with suppress(redis.ConnectionError):  # tests take the store away, too
                if client.exists(f"gate:{ctx.run_id}"):
                    return ctx.attempt
            ctx.check()
            pause.wait(0.05)
    raise TimeoutError("the test never opened the gate")


@graph("chain")
def chain():
    return build("ab", "bc")


@graph("parents")
def parents():
    """Each node says which task rang for it."""
    return build(
        "ab",
        a=lambda ctx: current_task.request.parent_id,
        b=lambda ctx: current_task.request.parent_id,
    )


@graph("garbage")
def garbage():
    return build("ab", a=collect)


@graph("diamond")
def diamond():
    return build("ab", "ac", "bd", "cd")


@graph("waiting")
def waiting():
    return build("ab", "ad", "de", "bf", "ef", b=ask)


@graph("question")
def question():
    builder = GraphBuilder()
    builder.add_node(ask, "node.with.dots")
    return builder.build()


@graph("ruled")
def ruled():
    """A question that two people decide."""
    return build(
        "ab", a=lambda ctx: ctx.interrupt("pay?", rule=Rule(need=2)).response, b=gather
    )


@graph("expiring")
def expiring():
    """Two questions that nobody answers: one fails its node, the other leads elsewhere."""
    builder = GraphBuilder().set_failure_policy("continue")
    builder.add_node(
        lambda ctx: ctx.interrupt("ok?", expires_in=0.5, on_expire="fail"), "fails"
    )
    builder.add_node(
        lambda ctx: ctx.interrupt("ok?", expires_in=0.5, on_expire={"route": "lead"}), "leads"
    )
    builder.add_node(lambda ctx: "done", "lead")
    builder.add_edge("leads", "lead", on_expire=True)
    builder.set_entry_point("fails").set_entry_point("leads")
    return builder.build()


@graph("loop")
def loop():
    return repeated(3, "publish")


@graph("nested")
def nested():
    inner = build("xy", y=ask)
    return build(
        ("before", "inner"),
        ("inner", "after"),
        inner=inner,
        after=lambda ctx: ctx.inputs["inner"],
    )


def explode(ctx):
    raise ValueError(f"boom in attempt {ctx.attempt}")


@graph("failure")
def failure():
    return build("ab", "bc", b=explode)


def second_time(ctx):
    return ctx.attempt if ctx.attempt > 1 else explode(ctx)


@graph("retry")
def retry():
    builder = GraphBuilder()
    builder.add_node(second_time, "flaky", retry=RetryPolicy(max_attempts=3, backoff=0.05))
    return builder.build()


@graph("retry at once")
def retry_at_once():
    builder = GraphBuilder()
    builder.add_node(second_time, "flaky", retry=RetryPolicy(max_attempts=3, backoff=0))
    return builder.build()


@graph("deaf")
def deaf():
    """Its node hears of nothing for a second, and has half a second."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: threading.Event().wait(1), "sleep", timeout=0.5)
    return builder.build()


@graph("gated")
def gated():
    return build("ab", a=pid_and_gate)


@graph("turns")
def turns():
    builder = GraphBuilder().set_limits([Limit("one at a time", concurrency=1)])
    builder.add_node(pid_and_gate, "a")
    builder.add_node(pid_and_gate, "b")
    return builder.build()


@graph("late_question")
def late_question():
    return build("ab", a=pid_and_gate, b=ask)


@graph("crowd")
def crowd():
    """As many gates at once as fill every slot of the workers of these tests."""
    builder = GraphBuilder()
    for number in range(4):
        builder.add_node(pid_and_gate, f"gate{number}")
    return builder.build()


@graph("elsewhere")
def elsewhere():
    builder = GraphBuilder()
    builder.add_node(name_of, "here")
    builder.add_node(name_of, "there", queue="gpu", priority=0)
    builder.add_node(name_of, "later", priority=9)
    builder.add_edge("here", "there")
    builder.add_edge("there", "later")
    return builder.build()


@tool(name="weather_tool", context=True)
def weather_tool(tool_context: ToolContext) -> str:
    """Tell the weather where the person is."""
    response = tool_context.interrupt("weather_approval", reason="need location")
    return f"Weather in {response}: sunny"


def result_text(messages):
    """End with the text of the last tool result."""
    return messages[-1]["content"][0]["toolResult"]["content"][0]["text"]


def weather_agent(name="weather"):
    model = ScriptedModel([{"toolUse": {"name": "weather_tool"}}, result_text])
    return Agent(name=name, model=model, tools=[weather_tool])


@graph("agent_basic")
def agent_basic():
    builder = GraphBuilder()
    builder.add_node(weather_agent(), "weather_agent")
    return builder.build()


def list_of(ctx):
    return list(range(ctx.task))


def gated_item(ctx):
    """The third item waits at the gate of its run, the fifth for a person; the others say what they are."""
    if ctx.task == 2:
        pid_and_gate(ctx)
    return ask(ctx) if ctx.task == 4 else [ctx.task, ctx.item_index]


@graph("mapped")
def mapped():
    return each_of(list_of, gated_item, "count", concurrency=3)


def note_start(ctx):
    """Say that this node was started."""
    with store() as client:
        client.rpush(f"ran:{ctx.run_id}", f"{ctx.node_id} {ctx.attempt}")


def gather(ctx):
    note_start(ctx)
    return {"task": ctx.task}
