"""A map over the rows of a file: each row is a node of its own, and an unusual one asks a person.

read ── check (once for each row) ── bill
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from runner import Graph, GraphBuilder, NodeContext, graph

FILE = Path(__file__).with_name("orders.csv")
MOST = 100


class Correction(BaseModel):
    """The schema of the answer about an unusual row."""

    quantity: int = Field(ge=0, le=MOST, description="0 drops the order")


def read(ctx: NodeContext) -> list[dict[str, str]]:
    """Read the rows of the file that the task names."""
    with Path(ctx.task).open(encoding="utf-8", newline="") as rows:
        return list(csv.DictReader(rows))


def check(ctx: NodeContext) -> dict[str, Any]:
    """Check one row: `ctx.task` is the row. While a person is asked, the other rows continue."""
    row, quantity = ctx.task, int(ctx.task["quantity"])
    if quantity > MOST:
        quantity = ctx.interrupt("quantity", reason=row, response_schema=Correction).quantity
    return {"customer": row["customer"], "total": round(quantity * float(row["price"]), 2)}


def bill(ctx: NodeContext) -> dict[str, Any]:
    """Add up; the rows are in the order of the file, whatever order they ended in."""
    totals = {row["customer"]: row["total"] for row in ctx.inputs["check"] if row["total"]}
    return {"customers": totals, "total": round(sum(totals.values()), 2)}


@graph("orders")
def orders() -> Graph:
    """Build the graph."""
    builder = GraphBuilder()
    builder.add_node(read)
    builder.add_map(check, concurrency=3)
    builder.add_node(bill)
    builder.add_edge("read", "check")
    builder.add_edge("check", "bill")
    return builder.build()
