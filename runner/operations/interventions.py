"""Interventions of operators: a node doesn't run until it is released, or ends with an output instead."""

from __future__ import annotations

from typing import Literal

from runner.approvals.rules import Principal
from runner.approvals.votes import principal_of
from runner.definition.model import HIDDEN, map_of
from runner.errors import ConflictError, NotFoundError
from runner.execution.engine import Engine
from runner.operations.recovery import write_retry
from runner.records import codec, size_limits, validation
from runner.records.run import EventKind, Status, existing
from runner.store.requests import Intervene

Action = Literal["hold", "release", "skip"]

KINDS = {
    "hold": EventKind.NODE_HELD,
    "release": EventKind.NODE_RELEASED,
    "skip": EventKind.NODE_OVERRIDDEN,
}
"""The event of each action."""

REFUSALS = {
    "unknown": "is not in its graph, or is an item of a map",
    "held": "is held, but not by an operator: `runner runs show` says why. Continue it with `runner runs "
    "migrate`, or release the held node of its child run",
    "skipped": "is being skipped already, with another output or operator. Hold it, then skip it again",
    "ended": "has ended, or its run stops",
    "busy": "runs now, itself or by a child run, items or an external task: wait for its end, choose a node "
    "after it or in its child run, or cancel the run",
}


def intervene(
    engine: Engine,
    run_id: str,
    node: str,
    action: Action,
    *outputs: object,
    by: Principal | str,
    reason: str = "",
) -> bool:
    """Hold a node, release it, or skip it with its output; return False for a repeat.

    Skipping a failed node retries its failed run, with the node held until it is skipped.

    Raises:
        NotFoundError: the run or the node doesn't exist. ConflictError: the node runs, or has ended.
        UnstorableError, PayloadTooLarge: the output can't be stored.
    """
    run = existing(engine.store.peek(run_id), run_id)
    values = [codec.pack(output, "output") for output in outputs]
    size_limits.check("output", values, engine.store.max_bytes)
    operator = principal_of(by or "").key
    text = validation.reason(reason)
    ((record, _, entry),) = engine.store.fetch(run_id, [node])
    if (
        outputs
        and record.held
        and not (record.hold or record.child or (entry or {}).get("error"))
    ):
        raise ConflictError(
            f"node {node!r} of run {run_id} is held because its graph has changed. Nothing was changed; "
            "migrate the run first, with `runner runs migrate`."
        )
    is_own = not (record.child or map_of(node) or node.startswith(HIDDEN))
    if outputs and is_own and record.status is run.status is Status.FAILED:
        _, retried = write_retry(
            engine.store, run.root or run_id, by=operator, held=(run_id, node)
        )
        engine.ring(retried)
    reply = engine.do(Intervene(run_id, node, KINDS[action], operator, text, values)).word
    if reply in REFUSALS:
        refusal = NotFoundError if reply == "unknown" else ConflictError
        raise refusal(f"node {node!r} of run {run_id} {REFUSALS[reply]}. Nothing was changed.")
    return reply == "done"
