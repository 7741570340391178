"""A graph whose question may be answered by many, or by nobody, in the same moment."""

from __future__ import annotations

from runner import GraphBuilder, graph


@graph("race")
def race():
    """Ask for as many seconds as the task says; give the answer back."""
    builder = GraphBuilder()
    builder.add_node(
        lambda ctx: ctx.interrupt(
            "ok?", expires_in=ctx.task, on_expire={"response": "silence"}
        ),
        "ask",
    )
    return builder.build()
