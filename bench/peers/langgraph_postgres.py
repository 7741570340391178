"""LangGraph with its Postgres checkpointer, in this process: `langgraph_postgres.py URL async|sync`.

The second argument is LangGraph's `durability`: whether the next step waits until the last one is stored.
"""

from __future__ import annotations

import operator
import sys
import time
import uuid
from importlib.metadata import version
from itertools import islice
from typing import Annotated, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from program import ANSWERS, FIRST, LENGTH, STEPS, WIDTH, approval_jobs, flow_jobs, serve
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

URL, DURABILITY = sys.argv[1:]
PACKAGES = ("langgraph", "langgraph-checkpoint-postgres")


class State(TypedDict):
    """What nodes share: how many have run, and when the one after the question did."""

    count: Annotated[int, operator.add]
    at: Annotated[list[float], operator.add]


def step(_: State) -> dict:
    """Do nothing."""
    return {"count": 1}


def ask(_: State) -> dict:
    """Ask."""
    interrupt("go")
    return {"count": 1}


def moment(_: State) -> dict:
    """Say when it runs."""
    return {"at": [time.time()]}


def chain(saver: PostgresSaver, length: int) -> object:
    """Build a chain."""
    builder = StateGraph(State)
    for place in range(length):
        builder.add_node(f"n{place}", step)
        builder.add_edge(f"n{place - 1}" if place else START, f"n{place}")
    builder.add_edge(f"n{length - 1}", END)
    return builder.compile(checkpointer=saver)


def fan(saver: PostgresSaver) -> object:
    """Build a fan with a join."""
    builder = StateGraph(State)
    names = [f"n{place}" for place in range(WIDTH)]
    for name in ("first", "join", *names):
        builder.add_node(name, step)
    builder.add_edge(START, "first")
    for name in names:
        builder.add_edge("first", name)
    builder.add_edge(names, "join")
    builder.add_edge("join", END)
    return builder.compile(checkpointer=saver)


def asking(saver: PostgresSaver) -> object:
    """Build a question with a node after it."""
    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("after", moment)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "after")
    return builder.compile(checkpointer=saver)


def main() -> None:
    """Serve."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(URL, min_size=4, max_size=8, kwargs=options) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        graphs = {
            "chain": chain(saver, LENGTH),
            "flow": chain(saver, STEPS),
            "fan": fan(saver),
            "asking": asking(saver),
        }

        def run(name: str, task: object, thread: str) -> dict:
            config = {"configurable": {"thread_id": thread}, "recursion_limit": LENGTH + 10}
            return graphs[name].invoke(task, config, durability=DURABILITY)

        def whole(name: str, nodes: int) -> None:
            count = run(name, {"count": 0, "at": []}, uuid.uuid4().hex)["count"]
            if count != nodes:
                raise ValueError(f"{count} nodes ran, not {nodes}")

        def resume() -> list[float]:
            times = []
            for _ in range(ANSWERS):
                thread = uuid.uuid4().hex
                run("asking", {"count": 0, "at": []}, thread)
                sent = time.time()
                (at,) = run("asking", Command(resume=True), thread)["at"]
                times.append((at - sent) * 1000)
            return times

        def begin() -> str:
            thread = uuid.uuid4().hex
            run("asking", {"count": 0, "at": []}, thread)
            return thread

        def page() -> list:
            # The library has no list of what waits: the newest checkpoints are read, and their states.
            newest = [each.config["configurable"] for each in saver.list(None, limit=4 * FIRST)]
            threads = dict.fromkeys(each["thread_id"] for each in newest)
            states = (
                graphs["asking"].get_state({"configurable": {"thread_id": thread}})
                for thread in threads
            )
            return list(islice((state for state in states if state.interrupts), FIRST))

        def decide(thread: str) -> float:
            return run("asking", Command(resume=True), thread)["at"][0]

        serve(
            {name: version(name) for name in PACKAGES},
            {
                "chain": lambda: whole("chain", LENGTH),
                "fan": lambda: whole("fan", WIDTH + 2),
                "resume": resume,
                **flow_jobs(lambda: whole("flow", STEPS)),
                **approval_jobs(begin, page, decide),
            },
        )


main()
