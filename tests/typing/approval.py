"""A user's graph with its questions, effects and hooks: what its code gets has types."""

from __future__ import annotations

from typing import Any, assert_type

import pydantic

from runner import (
    AsyncClient,
    AsyncRun,
    Client,
    Graph,
    GraphBuilder,
    GraphResult,
    GraphState,
    NodeContext,
    Receipt,
    RetryPolicy,
    Run,
    Status,
    graph,
)
from runner.hooks import BeforeNodeCallEvent, HookRegistry


class Decision(pydantic.BaseModel):
    """The answer of a person."""

    approved: bool
    note: str = ""


def charge(amount: int) -> str:
    """Return the number of the payment."""
    return f"payment of {amount}"


async def fetch() -> list[int]:
    """Return what is to be paid."""
    return [1, 2]


def approve(ctx: NodeContext) -> Decision:
    """Ask with a model, and with a JSON Schema."""
    decision = ctx.interrupt(
        "approve", {"amount": 3}, response_schema=Decision, assignees=["lead"]
    )
    assert_type(decision, Decision)
    answer = ctx.interrupt("note", response_schema={"type": "string"}, expires_in=60)
    assert_type(answer, Any)
    ctx.interrupt("late", expires_inn=3)  # type: ignore[call-overload]
    return Decision(approved=decision.approved, note=str(answer))


def pay(ctx: NodeContext) -> str:
    """Run an effect once."""
    payment = ctx.once("charge", lambda: charge(3))
    assert_type(payment, str)
    ctx.once("charge", lambda: charge(3), on_unknown="rise")  # type: ignore[arg-type]
    return payment


async def collect(ctx: NodeContext) -> list[int]:
    """Await an effect that is async."""
    amounts = await ctx.once("fetch", fetch)
    assert_type(amounts, list[int])
    return amounts


def total(amounts: list[int]) -> int:
    """Take the only input, with its type."""
    return sum(amounts)


def is_large(state: GraphState) -> bool:
    """Decide on an edge by a result."""
    return bool(state.results["collect"].output)


def is_tenant(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
    """Decide on an edge by the invocation state as well."""
    return bool(invocation_state["tenant"]) and state.visit == 1


def ask_before(event: BeforeNodeCallEvent) -> None:
    """Ask in a hook."""
    if not event.interrupt("go on?", response_schema=Decision).approved:
        event.cancel_node = "not approved"


class Approvals:
    """A hook provider."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register a callback for its event."""
        assert_type(kwargs, dict[str, Any])
        registry.add_callback(BeforeNodeCallEvent, ask_before)


@graph("payments")
def payments() -> Graph:
    """Build the graph."""
    builder = GraphBuilder()
    first = builder.add_node(collect, retry=RetryPolicy(3))
    builder.add_node(total, join="any", resume="each")
    builder.add_map(charge, "charge", over="collect", on_error="continue")
    builder.add_node(approve)
    builder.add_node(pay)
    builder.add_edge(first, "total")
    builder.add_edge("collect", "charge")
    builder.add_edge("total", "approve", lambda state: bool(state.results["total"].output))
    builder.add_edge("collect", "approve", is_large)
    builder.add_edge("approve", "pay", is_tenant)
    builder.add_node(pay, "again", join="al")  # type: ignore[arg-type]
    builder.set_failure_policy("ignore")  # type: ignore[arg-type]
    builder("task")  # type: ignore[operator]
    return builder.set_hook_providers([Approvals()]).build()


assert_type(payments(), Graph)


def run_it() -> None:
    """Run in process, and start on workers."""
    result = payments()({"order": 3}, invocation_state={"tenant": "acme"})
    assert_type(result, GraphResult)
    assert_type(result.status, Status)
    run = Client().start("payments", {"order": 3})
    assert_type(run, Run)


async def run_it_async() -> None:
    """Start and answer from an async program."""
    client = AsyncClient()
    run = await client.start("payments", {"order": 3}, idempotency_key="order-3")
    assert_type(run, AsyncRun)
    assert_type(await run.status(), Status)
    async for event in run.events(follow=True):
        assert_type(event.kind, str)
    for question in await run.interrupts():
        assert_type(await client.respond(question.id, "yes", responder="ana"), Receipt)
    assert_type(await run.wait(timeout=60), GraphResult)
    assert_type(await run.again(task=None), AsyncRun)
    await client.start("payments")  # type: ignore[call-arg]
    await client.respond("id", "yes", responsible="ana")  # type: ignore[call-arg]


async def watch() -> None:
    """Leave a stream of events early."""
    stream = payments().stream_async({"order": 3})
    async for event in stream:
        if "result" not in event:
            break
    await stream.aclose()
