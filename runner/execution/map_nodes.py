"""A map's own work: find the list, run the items, collect their results in order.

Meanwhile the map waits in the store; its items are nodes that any worker runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.definition.model import EdgeSpec, MapSpec, NodeSpec, item_id
from runner.errors import DefinitionError, NodeFailed
from runner.execution.context import ClaimedVisit
from runner.execution.functions import FunctionNode, function_node
from runner.records import codec, failures
from runner.records.outcomes import Expanded, Failed, Outcome, Succeeded
from runner.records.run import MapRecord, Status
from runner.store.interface import Fetched

PAGE = 500
"""Items whose results are read in one request."""

ON_ERROR = ("fail", "continue")


def mapped(spec: NodeSpec, over: object, concurrency: int | None, on_error: str) -> NodeSpec:
    """Turn a node into a map over its executor.

    Raises:
        DefinitionError: an option has a value that isn't allowed.
    """
    if on_error not in ON_ERROR:
        raise DefinitionError(
            f"map {spec.id!r}: on_error is 'fail' or 'continue', not {on_error!r}."
        )
    whole = isinstance(concurrency, int) and not isinstance(concurrency, bool)
    if concurrency is not None and (not whole or concurrency < 1):
        raise DefinitionError(
            f"map {spec.id!r}: concurrency is a whole number above 0, or None for 10,000, not "
            f"{concurrency!r}."
        )
    map_spec = MapSpec(spec.kind, _over(spec, over), concurrency, on_error == "fail")
    return replace(spec, kind=f"map of {spec.kind}", map=map_spec)


def _over(spec: NodeSpec, over: object) -> object:
    if isinstance(over, NodeSpec):
        return over.id
    if over is None or isinstance(over, str):
        return over
    function = function_node(over)
    if function is not None:
        return function
    raise DefinitionError(
        f"map {spec.id!r}: `over` must be the id of a node before it, a function of one NodeContext that "
        f"returns a list, or None for the map's only input, not {over!r}."
    )


def check(nodes: Mapping[str, NodeSpec], edges: Iterable[EdgeSpec]) -> None:
    """Check that each map has an edge from the node that it names.

    Raises:
        DefinitionError: a map names a node without an edge to it.
    """
    links = {(edge.source, edge.target) for edge in edges}
    for node, spec in nodes.items():
        over = spec.map.over if spec.map else None
        if isinstance(over, str) and (over, node) not in links:
            raise DefinitionError(
                f"map {node!r} goes over the output of {over!r}, but no edge leads from there: "
                f"add_edge({over!r}, {node!r})."
            )


def execute(spec: NodeSpec, visit: ClaimedVisit) -> Outcome:
    """Run a claimed map: hand out its items, or collect their results when all have ended."""
    progress = visit.claim.map
    if progress is None:
        return _listed(spec, visit)
    if not progress.has_ended:
        return Expanded(None)
    return _failure(visit, progress) if progress.stopped else _collected(visit, progress)


def _listed(spec: NodeSpec, visit: ClaimedVisit) -> Outcome:
    over = spec.map.over if spec.map else None
    if isinstance(over, FunctionNode):
        outcome = over.execute(visit)
        if not isinstance(outcome, Succeeded):
            return outcome
        items = codec.untyped(codec.read(outcome.result))
    else:
        items = _found(over, visit)
    if not isinstance(items, list):
        raise NodeFailed(
            f"map {spec.id!r} needs a list to go over, but got {codec.kind_of(items)}; "
            "see `over` of add_map."
        )
    return Expanded(items) if items else Succeeded([], [])


def _found(over: str | None, visit: ClaimedVisit) -> Any:
    """Find the list among the visit's inputs and return it packed, because items are stored."""
    outputs = {item.node_id: item for item in visit.inputs}
    if over is None and not outputs:
        return codec.read(visit.claim.task)
    if over is None and len(outputs) > 1:
        raise NodeFailed(
            f"map {visit.address.node_id!r} has the inputs {sorted(outputs)}; name the one to go over: "
            "add_map(..., over=...)."
        )
    if over is not None and over not in outputs:
        raise NodeFailed(
            f"map {visit.address.node_id!r} goes over the output of {over!r}, which gave it none in "
            "this visit."
        )
    item = outputs[over] if over is not None else next(iter(outputs.values()))
    return codec.pack(item.output, "the map's list", visit.check_store)


def _read(visit: ClaimedVisit, total: int) -> Iterator[tuple[int, Fetched]]:
    for start in range(0, total, PAGE):
        visit.check()
        page = range(start, min(start + PAGE, total))
        rows = visit.fetch([item_id(visit.address.node_id, index) for index in page])
        yield from zip(page, rows, strict=True)


def _collected(visit: ClaimedVisit, progress: MapRecord) -> Outcome:
    outputs: list[Any] = [
        output if record.status is Status.COMPLETED else None
        for _, (record, output, _) in _read(visit, progress.total)
    ]
    return Succeeded(outputs, outputs)


def _failure(visit: ClaimedVisit, progress: MapRecord) -> Outcome:
    """Fail the map for a failed item. No policy retries the map: the item has had its retries."""
    errors: Sequence[str] = [
        f"{item_id(visit.address.node_id, index)}: {failures.load(entry['error'])}"
        for index, (record, _, entry) in _read(visit, progress.next)
        if record.status is Status.FAILED and entry
    ]
    first_error = errors[0].rstrip(".") if errors else "an item failed"
    text = f"{first_error}. The map stopped: {progress.failed} of {progress.total} items failed"
    return Failed(
        failures.record(
            NodeFailed(f"{text}, and no more began; with on_error='continue' the others go on.")
        ),
        final=True,
    )
