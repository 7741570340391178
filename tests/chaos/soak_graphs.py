"""The graphs of the soak: task and answers alone say what the result is, whatever happens on the way."""

from __future__ import annotations

import threading

from runner import GraphBuilder, RetryPolicy, graph

ITEMS = 12
ROUNDS = 3
SHAPES = ("soak_chain", "soak_map", "soak_nested", "soak_two", "soak_retry", "soak_loop", "soak_slow")


def work(ctx):
    """Take a moment, longer for some tasks, and give back what came in."""
    pause = threading.Event()
    for _ in range(ctx.task % 7 + (30 if ctx.graph_id == "soak_slow" else 0)):
        ctx.check()
        pause.wait(0.02)
    return ctx.task


def ask(ctx):
    return ctx.interrupt("approve", {"task": ctx.task})


def fail_first(ctx):
    work(ctx)
    if ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    return ctx.task


def build(edges, **nodes):
    builder = GraphBuilder()
    for node in dict.fromkeys("".join(edges.split())):
        builder.add_node(nodes.get(node, work), node)
    for source, target in edges.split():
        builder.add_edge(source, target)
    return builder


@graph("soak_chain")
def chain():
    return build("ab bc cd dz").build()


@graph("soak_slow")
def slow():
    return build("ab ac bz cz").build()


@graph("soak_map")
def mapped():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: [ctx.task] * ITEMS, "list")
    builder.add_map(work, "m", concurrency=4)
    builder.add_node(lambda ctx: len(ctx.inputs["m"]), "z")
    builder.add_edge("list", "m")
    builder.add_edge("m", "z")
    return builder.build()


@graph("soak_nested")
def nested():
    builder = GraphBuilder()
    builder.add_node(build("xq", q=ask).build(), "inner")
    builder.add_node(lambda ctx: ctx.inputs["inner"], "z")
    builder.add_edge("inner", "z")
    return builder.build()


@graph("soak_two")
def two():
    return build("ab ac ad bz cz dz", b=ask, c=ask, z=lambda ctx: [ctx.inputs["b"], ctx.inputs["c"]]).build()


@graph("soak_retry")
def retry():
    builder = build("az")
    builder.add_node(fail_first, "f", retry=RetryPolicy(max_attempts=3, backoff=0.1))
    builder.add_edge("a", "f")
    builder.add_edge("f", "z")
    return builder.build()


@graph("soak_loop")
def loop():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.visit, "write")
    builder.add_node(lambda ctx: ctx.inputs["write"], "review")
    builder.add_node(lambda ctx: ctx.inputs["review"], "z")
    builder.add_edge("write", "review")
    builder.add_edge("review", "write", lambda state: state.results["review"].output < ROUNDS)
    builder.add_edge("review", "z", lambda state: state.results["review"].output >= ROUNDS)
    builder.set_entry_point("write")
    return builder.build()


def expected(shape: str, task: int, answers: dict[str, object]) -> object:
    """What the last node of a run gives; `answers` are by the node that asked."""
    match shape:
        case "soak_map":
            return ITEMS
        case "soak_loop":
            return ROUNDS
        case "soak_nested":
            return answers.get("q")
        case "soak_two":
            return [answers.get("b"), answers.get("c")]
    return task
