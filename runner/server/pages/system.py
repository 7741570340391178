"""The pages of graphs, workers and dead letters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from runner.authoring.drawing import draw
from runner.operations.dead import replay
from runner.operations.freezing import freeze, thaw
from runner.operations.views import read_workers
from runner.records.freezes import scope_of
from runner.server.access import ADMINISTER, OPERATE, READ, SEE, Person
from runner.server.pages.rendering import back, page
from runner.server.problems import Problem
from runner.server.services import Services, services

router = APIRouter(include_in_schema=False)

Served = Annotated[Services, Depends(services)]
Seen = Annotated[Person, Depends(SEE)]
Operates = Annotated[Person, Depends(OPERATE)]


@router.get("/graphs")
def graphs(request: Request, person: Seen, served: Served) -> HTMLResponse:
    """Show the graphs in the store, drawn where this server has their code."""
    published = served.store.graphs()
    listed: list[dict[str, Any]] = []
    for name in sorted(published):
        if "/" in name:
            continue
        plan = served.plan(name)
        drawing = Markup(draw(plan.definition, "svg")) if plan else ""  # noqa: S704 - our own, escaped
        listed.append({"name": name, "fingerprint": published[name], "drawing": drawing})
    return page(request, "graphs.html", person, graphs=listed)


@router.get("/workers")
def workers(request: Request, person: Seen, served: Served) -> HTMLResponse:
    """Show the workers and keepers."""
    return page(request, "workers.html", person, workers=read_workers(served.settings))


@router.get("/dead")
def dead(request: Request, person: Annotated[Person, Depends(READ)], served: Served) -> HTMLResponse:
    """Show the newest dead letters."""
    return page(request, "dead.html", person, letters=served.dead_letters.all(100))


@router.post("/freeze")
def freeze_all(
    request: Request,
    person: Annotated[Person, Depends(ADMINISTER)],
    served: Served,
    action: Annotated[str, Form()],
    scope: Annotated[str, Form()],
    reason: Annotated[str, Form()] = "",
) -> Response:
    """Freeze or thaw effects: `scope` is all, graph:<name> or tool:<name>."""
    change = {"freeze": freeze, "thaw": thaw}.get(action)
    if change is None:
        raise Problem(404, f"There is no action {action!r:.40}.")
    kind, _, name = scope.partition(":")
    named = scope_of(
        name if kind == "graph" else "", name if kind == "tool" else "", everything=kind == "all"
    )
    change(served.client.engine, named, reason, person.principal.key)
    return back(request, "/")


@router.post("/dead/{letter_id}/replay")
def replay_letter(request: Request, letter_id: str, _: Operates, served: Served) -> Response:
    """Send a message again, or retry a node."""
    letters = served.dead_letters
    replay(served.client.engine, letters, letters.get(letter_id), set())
    return back(request, "/dead")


@router.post("/dead/{letter_id}/drop")
def drop_letter(request: Request, letter_id: str, _: Operates, served: Served) -> Response:
    """Delete a dead letter."""
    served.dead_letters.drop(letter_id)
    return back(request, "/dead")
