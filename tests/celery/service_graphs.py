"""The graphs of one of several services, as its environment says: names, and a queue for all of them."""

from __future__ import annotations

import os

from runner import GraphBuilder, graph

KINDS = ("chain", "diamond", "nested")


def names(service: str) -> list[str]:
    return [f"{service}-{kind}" for kind in KINDS]


def wired(edges: str, **special: object) -> GraphBuilder:
    builder = GraphBuilder()
    for node in sorted(set(edges.replace(" ", "").replace(">", ""))):
        builder.add_node(special.get(node, lambda ctx: ctx.node_id), node)
    for edge in edges.split():
        builder.add_edge(*edge.split(">"))
    return builder


def build(kind: str):
    inner = {"b": wired("x>y").build()} if kind == "nested" else {}
    builder = wired("a>b a>c b>d c>d" if kind == "diamond" else "a>b b>c", **inner)
    if queue := os.environ.get("SERVICE_QUEUE"):
        builder.set_queue(queue)
    return builder.build()


def register(service: str) -> None:
    for kind in KINDS:

        @graph(f"{service}-{kind}")
        def registered(kind=kind):
            return build(kind)


if "SERVICE" in os.environ:
    register(os.environ["SERVICE"])
