"""Setting and ending freezes, and naming them in receipts; `Freezes.check` in freezes.py enforces them."""

from __future__ import annotations

from dataclasses import replace

from runner.approvals.freezes import ALL, parts_of
from runner.definition.registry import tools_of
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.execution.engine import Engine
from runner.records import validation
from runner.records.interrupts import Receipt, ReceiptStatus
from runner.store.requests import FreezeScope, ThawScope

TAKEN = frozenset({ReceiptStatus.ACCEPTED, ReceiptStatus.COUNTED})


def freeze(
    engine: Engine, scope: str, reason: str, by: str = "", *, force: bool = False
) -> None:
    """Freeze a scope: see `scope_of` in freezes.py. Every process obeys within a few seconds.

    `force` freezes a name that is unknown here, such as a tool that only a worker's code or a
    framework's agent has.

    Raises:
        ConflictError: it is frozen already. UsageError: the reason is missing or too long.
        NotFoundError: no graph or tool has this name.
    """
    _reason(reason)
    if not force and scope != ALL and scope not in engine.store.frozen():
        _check_known(engine, *scope.split(":", 1))
    if engine.store.do(FreezeScope(scope, _reason(reason), by)).word == "already":
        raise ConflictError(f"{scope} is frozen already; nothing was changed.")
    engine.freezes.refresh()


def thaw(engine: Engine, scope: str, reason: str, by: str = "") -> None:
    """End a freeze; the next sweep rings for the nodes that it has kept waiting.

    Raises:
        NotFoundError: the scope is not frozen. UsageError: the reason is missing or too long.
    """
    if engine.store.do(ThawScope(scope, _reason(reason), by)).word == "unknown":
        raise NotFoundError(f"{scope} is not frozen; nothing was changed.")
    engine.freezes.refresh()


def with_freeze(engine: Engine, receipt: Receipt) -> Receipt:
    """Add to the receipt of a taken answer which freeze keeps it from taking effect."""
    run = (
        engine.store.peek(receipt.run_id)
        if receipt.status in TAKEN and receipt.run_id
        else None
    )
    if run is None:
        return receipt
    (question,) = engine.store.interrupts([receipt.interrupt_id])
    action = (question.action if question else None) or {}
    freeze = engine.freezes.of(
        run.graph_id, str(action["tool"]) if action.get("kind") == "tool" else ""
    )
    if freeze is None:
        return receipt
    return replace(
        receipt, detail=f"{receipt.detail}; {freeze}" if receipt.detail else str(freeze)
    )


def _check_known(engine: Engine, kind: str, name: str) -> None:
    """Refuse a name that no graph or tool has: freezing it would stop nothing."""
    if kind == "tool":
        nodes = [
            node
            for plan in engine.registry.everything()
            for node in plan.definition.nodes.values()
        ]
        known_names = {tool.tool_name for node in nodes for tool in tools_of(node.executor)}
    else:
        paths = {*engine.store.graphs(), *engine.registry.names()}
        paths |= {plan.definition.id for plan in engine.registry.everything()}
        known_names = {
            path_name
            for path in paths
            for path_name in (*parts_of(path), *engine.registry.names_on(path))
        }
    if name in known_names:
        return
    nearest = validation.similar(name, known_names)
    where = "" if kind == "graph" else ": it is in no agent of the graphs that this process has"
    raise NotFoundError(
        f"no {kind} {validation.one_line(name)!r} is known here{where}. Nothing was frozen.{nearest} "
        "To freeze a name that only other code has, or that is not registered yet, force it (--force)."
    )


def _reason(reason: str) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("a freeze and a thaw need a reason.")
    return validation.reason(reason)
