"""A graph whose runs take every kind of step, and what must be true of any of them afterwards.

Whatever dies on the way: the results are those of a run that nothing happened to.
"""

from __future__ import annotations

import json
import threading
from collections import Counter

from runner import Agent, GraphBuilder, RetryPolicy, ToolContext, graph, tool
from runner.records.interrupts import Address
from runner.testing import ScriptedModel
from tests.celery.graphs import build, name_of, store
from tests.chaos.kill_switch import reach


def note(ctx) -> None:
    """Write down that a node's code was started, and with which key."""
    with store() as client:
        client.rpush(
            f"journey:{ctx.run_id}",
            f"{ctx.node_id} {ctx.visit} {ctx.attempt} {ctx.idempotency_key}",
        )


def noted(ctx):
    note(ctx)
    return name_of(ctx)


def pay(ctx):
    """Do something outside, between two points."""
    note(ctx)
    here = f"{ctx.run_id}/{ctx.node_id}"

    def charge():
        reach("effect.before", here)
        with store() as client:
            client.incr(f"charged:{ctx.idempotency_key}")
        reach("effect.after", here)
        return "paid"

    return ctx.once("charge", charge)


def ask(ctx):
    note(ctx)
    return ctx.interrupt("approval", {"of": ctx.node_id})


def flaky(ctx):
    note(ctx)
    if ctx.attempt == 1:
        raise ValueError("the first time")
    return "at last"


def item(ctx):
    note(ctx)
    return ctx.task * 10


@tool(name="look", context=True)
def look(tool_context: ToolContext) -> str:
    """Ask a person where to look."""
    return f"looked {tool_context.interrupt('where', reason='somewhere?')}"


@tool
def stroll() -> str:
    """Take a moment, so that the other call's question is asked while this one is at work."""
    threading.Event().wait(0.05)
    return "strolled"


def summed_up(messages):
    """End with the texts of both results."""
    return ", ".join(
        block["toolResult"]["content"][0]["text"] for block in messages[-1]["content"]
    )


@graph("journey")
def journey():
    """Seven ways to work for a node, side by side, and one that waits for all of them."""
    model = ScriptedModel(
        [[{"toolUse": {"name": "look"}}, {"toolUse": {"name": "stroll"}}], summed_up]
    )
    builder = GraphBuilder()
    builder.add_node(noted, "begin")
    builder.add_node(pay, "pay")
    builder.add_node(ask, "ask")
    builder.add_node(flaky, "flaky", retry=RetryPolicy(max_attempts=2, backoff=0.05))
    builder.add_node(Agent(name="agent", model=model, tools=[look, stroll]), "agent")
    builder.add_node(build("xy", x=noted, y=noted), "inner")
    builder.add_node(lambda ctx: [1, 2], "list")
    builder.add_map(item, "map")
    builder.add_node(noted, "end")
    for name in ("pay", "ask", "flaky", "agent", "inner", "list"):
        builder.add_edge("begin", name)
    builder.add_edge("list", "map")
    for name in ("pay", "ask", "flaky", "agent", "inner", "map"):
        builder.add_edge(name, "end")
    return builder.build()


@graph("errand")
def errand():
    """A short journey: a payment and a question side by side."""
    builder = GraphBuilder()
    for node, function in {"begin": noted, "pay": pay, "ask": ask, "end": noted}.items():
        builder.add_node(function, node)
    for name in ("pay", "ask"):
        builder.add_edge("begin", name)
        builder.add_edge(name, "end")
    return builder.build()


@graph("slow")
def slow():
    """One node that takes a while."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: threading.Event().wait(0.1), "a")
    return builder.build()


@graph("deadline")
def deadline():
    """A question that expires by itself."""
    builder = GraphBuilder()
    builder.add_node(
        lambda ctx: ctx.interrupt("soon", expires_in=3, on_expire={"response": "nobody came"}),
        "ask",
    )
    builder.add_node(noted, "end")
    builder.add_edge("ask", "end")
    return builder.build()


EVERY = 1.0
"""Seconds between two reminders of the question in `reminding`."""


@graph("reminding")
def reminding():
    """A question that reminds all the time."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.interrupt("still?", remind_every=EVERY), "ask")
    return builder.build()


ANSWER = "there"


def question_of(run_id: str, node: str) -> str:
    """Name the question that a function of that node asks in its first visit."""
    return Address(run_id, node, 1).interrupt_id("function", "approval")


class People:
    """Everybody who is asked on a site: each question gets one answer, sent as any program would."""

    def __init__(self, site) -> None:
        self.site, self.answered = site, set()

    def answer(self) -> None:
        for question in self.site.client.interrupts(limit=1000).items:
            if question.name != "soon" and question.id not in self.answered:
                self.answered.add(question.id)
                self.site.send(
                    json.dumps({"v": 1, "interrupt_id": question.id, "response": ANSWER})
                )


def outputs(run) -> dict[str, object]:
    return {name: node.output for name, node in run.result().results.items()}


def commits(run) -> Counter:
    """Count the times that each visit was committed, in the words of the store's own events."""
    return Counter(
        (event.node, event.visit) for event in run.events() if event.kind == "node.completed"
    )


def lost(run) -> Counter:
    """Count the leases that each node has lost."""
    return Counter(event.node for event in run.events() if event.kind == "node.lost")


def starts(site, run) -> Counter:
    """Count the starts of each node's code."""
    return Counter(line[0] for line in lines(site, run))


def lines(site, run) -> list[list[str]]:
    return [line.decode().split() for line in site.redis.lrange(f"journey:{run.id}", 0, -1)]


def keys(site, run) -> dict[str, set[str]]:
    """Collect the idempotency keys that each visit was started with."""
    by_visit: dict[str, set[str]] = {}
    for node, visit, _, key in lines(site, run):
        by_visit.setdefault(f"{node}.{visit}", set()).add(key)
    return by_visit
