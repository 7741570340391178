"""The graphs of the soak: task and answers alone say what the result is, whatever happens on the way."""

from __future__ import annotations

import threading

from runner import RetryPolicy, graph
from tests.celery.shapes import drawn, each_of, repeated

ITEMS = 12
ROUNDS = 3
SHAPES = (
    "soak_chain",
    "soak_map",
    "soak_nested",
    "soak_two",
    "soak_retry",
    "soak_loop",
    "soak_slow",
)


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


def build(*edges, **nodes):
    return drawn(*edges, work=work, **nodes).build()


@graph("soak_chain")
def chain():
    return build("ab", "bc", "cd", "dz")


@graph("soak_slow")
def slow():
    return build("ab", "ac", "bz", "cz")


@graph("soak_map")
def mapped():
    return each_of(lambda ctx: [ctx.task] * ITEMS, work, "z", concurrency=4)


@graph("soak_nested")
def nested():
    return build(("inner", "z"), inner=build("xq", q=ask), z=lambda ctx: ctx.inputs["inner"])


@graph("soak_two")
def two():
    edges = ("ab", "ac", "ad", "bz", "cz", "dz")
    return build(*edges, b=ask, c=ask, z=lambda ctx: [ctx.inputs["b"], ctx.inputs["c"]])


@graph("soak_retry")
def retry():
    builder = drawn("az", work=work)
    builder.add_node(fail_first, "f", retry=RetryPolicy(max_attempts=3, backoff=0.1))
    builder.add_edge("a", "f")
    builder.add_edge("f", "z")
    return builder.build()


@graph("soak_loop")
def loop():
    return repeated(ROUNDS, "z")


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
