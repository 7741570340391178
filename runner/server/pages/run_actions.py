"""Actions on a run on its page: each shows its effects first, and then needs a confirmation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from runner.definition.model import BRACKETS, HIDDEN, UNDO
from runner.errors import CorruptDocument
from runner.immutable import immutable
from runner.operations import interventions
from runner.operations.recovery import ForkOptions, plan_fork, plan_retry, running_again
from runner.operations.views import NodeView, RunView, read_run
from runner.records import codec
from runner.records.codec import JSONObject
from runner.records.run import Records, Status, existing
from runner.server.access import Operates
from runner.server.answers import seen_by
from runner.server.api import runs
from runner.server.deciding import cancelled_by, requested_by
from runner.server.pages.rendering import back, page
from runner.server.parameters import FormText, QueryText
from runner.server.problems import Problem
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)

Action = Literal["cancel", "retry", "again", "fork", "migrate"]

TITLES = {
    "cancel": "Cancel the run",
    "retry": "Retry what failed",
    "again": "Run again from the beginning",
    "fork": "Fork from a node",
    "migrate": "Migrate to the present graph",
}

HINTS = {
    "cancel": "No other node starts. A cancelled run can be continued with a retry.",
    "retry": "The same run continues; completed nodes don't run again.",
    "again": "A new run of the same graph; this one is not changed.",
    "fork": "A new run with copies of the completed nodes; this one doesn't change.",
    "migrate": "The same run goes on in the graph that the workers have now.",
}

IDLE = {Status.WAITING, Status.READY, Status.RETRYING, Status.HELD}


@immutable
class Effect:
    """The effect of an action on the nodes or questions in `names`."""

    words: str
    names: tuple[str, ...]


def actions(run: RunView, *, final: bool, changed: bool) -> list[tuple[Action, str]]:
    """List the actions that are possible for a run in its status."""
    is_undone = any(node.visit and node.id.startswith(UNDO) for node in run.nodes)
    possible: Mapping[Action, bool] = {
        "retry": run.status in {"failed", "cancelled"} and not is_undone,
        "migrate": changed and run.status in {"interrupted", "held"},
        "fork": any(node.visit for node in run.nodes),
        "again": True,
        "cancel": not final,
    }
    return [
        (action, {"again": "Run again"}.get(action, action.capitalize()))
        for action, is_possible in possible.items()
        if is_possible
    ]


@router.get("/runs/{run_id}/plan/{action}")
def show_plan(
    request: Request,
    run_id: str,
    action: Action,
    person: Operates,
    services: Served,
    node: QueryText = "",
) -> HTMLResponse:
    """Show the effects of an action, with the form that does it; nothing is changed."""
    run = seen_by(person, read_run(services.store, run_id))
    forkable = [node_view.id for node_view in run.nodes if node_view.visit]
    if action == "fork" and not node and len(forkable) == 1:
        node = forkable[0]
    outcome = services.client.run(run_id).migrate(dry_run=True) if action == "migrate" else None
    return page(
        request,
        "plan.html",
        person,
        run=run,
        action=action,
        title=TITLES[action],
        hint=HINTS[action],
        node=node,
        forkable=forkable,
        effects=list(_effects(services, run, action, node)),
        outcome=outcome,
    )


def _effects(services: Services, run: RunView, action: Action, node: str) -> Iterator[Effect]:
    names = _names(services, run)
    match action:
        case "cancel":
            yield from _cancelled(run, names)
        case "retry":
            records = plan_retry(services.store, run.run_id)[0].records
            yield from _next_steps(names, records, "Run again at once", "Stay as they are")
        case "fork" if node:
            copies = plan_fork(services.store, run.run_id, node, None, ForkOptions("")).records
            yield from _next_steps(
                names, copies, "Start at once", "Are copied, and not run again"
            )
        case "again":
            yield Effect("Run, from the beginning", tuple(names))


def _names(services: Services, run: RunView) -> list[str]:
    """Name all nodes of the run's graph, including those it has not reached."""
    record = existing(services.store.peek(run.run_id), run.run_id)
    topology = services.store.topology(record.graph_id, record.fingerprint)
    names = topology.nodes if topology is not None else [node.id for node in run.nodes]
    return [
        name for name in names if not name.startswith(HIDDEN) and not name.endswith(BRACKETS)
    ]


def _within(run: RunView, prefix: str = "") -> Iterator[tuple[str, NodeView]]:
    for node in run.nodes:
        for item in (node, *node.items):
            yield prefix + item.id, item
            if item.run is not None:
                yield from _within(item.run, f"{prefix}{item.id}/")


def _cancelled(run: RunView, names: Sequence[str]) -> Iterator[Effect]:
    nodes = list(_within(run))
    yield Effect(
        "Run now, and may finish",
        tuple(name for name, node in nodes if node.status == Status.RUNNING),
    )
    yield Effect("Are cancelled", tuple(name for name, node in nodes if node.status in IDLE))
    begun = {name for name, node in nodes if node.status != Status.PENDING}
    yield Effect("Never start", tuple(name for name in names if name not in begun))
    yield Effect(
        "Questions that are withdrawn", tuple(question.title for question in run.interrupts)
    )


def _next_steps(
    names: Sequence[str], records: Records, begun_title: str, done_title: str
) -> Iterator[Effect]:
    """Describe a run that continues; nodes not reached have no record."""
    yield Effect(begun_title, tuple(running_again(records)))
    for words, status in (
        ("Wait for their turn", Status.PENDING),
        (done_title, Status.COMPLETED),
        ("Stay failed", Status.FAILED),
    ):
        yield Effect(
            words, tuple(name for name in names if records.node(name).status is status)
        )


def _json(text: str, what: str) -> JSONObject:
    """Read an optional field of a form as a change; an empty field changes nothing."""
    if not text.strip():
        return {}
    try:
        return {what: codec.load_json(text)}
    except CorruptDocument as error:
        raise Problem(422, f"The {what} is {error}.") from error


@router.post("/runs/{run_id}/cancel")
def cancel(
    request: Request,
    run_id: str,
    person: Operates,
    services: Served,
    reason: FormText = "",
) -> Response:
    """Stop a run."""
    if not services.client.run(run_id).cancel(cancelled_by(person, reason)):
        raise Problem(409, "The run has ended or is stopping already; nothing was changed.")
    return back(request, f"/runs/{quote(run_id)}")


@router.post("/runs/{run_id}/node/{action}")
def change_node(
    request: Request,
    run_id: str,
    action: interventions.Action,
    person: Operates,
    services: Served,
    node: FormText,
    reason: FormText = "",
    output: FormText = "",
) -> Response:
    """Hold a node, release it, or skip it with an output."""
    body = runs.NodeChange(node=node, reason=reason, **_json(output, "output"))
    runs.change_node(run_id, action, body, person, services)
    return back(request, f"/runs/{quote(run_id)}?node={quote(node)}")


@router.post("/runs/{run_id}/retry")
def retry(request: Request, run_id: str, person: Operates, services: Served) -> Response:
    """Run failed nodes again."""
    services.client.run(run_id).retry(by=person.principal)
    return back(request, f"/runs/{quote(run_id)}")


@router.post("/runs/{run_id}/again")
def again(
    request: Request,
    run_id: str,
    person: Operates,
    services: Served,
    task: FormText = "",
) -> Response:
    """Start a run like this one, with another task if one is given."""
    options = requested_by(services, person, **_json(task, "task"))
    return back(request, f"/runs/{services.client.run(run_id).again(**options).id}")


@router.post("/runs/{run_id}/fork")
def fork(
    request: Request,
    run_id: str,
    person: Operates,
    services: Served,
    node: FormText,
    value: Annotated[str, Form(alias="input")] = "",
) -> Response:
    """Start a new run from a node of this one, with another input if one is given."""
    options = requested_by(services, person, **_json(value, "input"))
    return back(request, f"/runs/{services.client.run(run_id).fork(node, **options).id}")


@router.post("/runs/{run_id}/migrate")
def migrate(request: Request, run_id: str, _: Operates, services: Served) -> Response:
    """Move a waiting run to the present version of its graph."""
    services.client.run(run_id).migrate()
    return back(request, f"/runs/{quote(run_id)}")
