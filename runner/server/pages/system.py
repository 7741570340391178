"""The pages of graphs, workers and dead letters."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from runner.authoring.drawing import outline
from runner.definition.model import Definition
from runner.errors import CorruptDocument, NotFoundError
from runner.execution.functions import task_schema
from runner.operations.backlog import read_queues
from runner.operations.dead_letters import replay
from runner.operations.exports import question_of
from runner.operations.views import read_workers
from runner.records import codec
from runner.records.codec import JSONMapping
from runner.records.listings import InterruptQuery, RunSummary
from runner.records.messages import start_body
from runner.server.access import Known, Operates, Person, Seen
from runner.server.answers import seen_by
from runner.server.deciding import start_for
from runner.server.forms import (
    WHOLE,
    FormTexts,
    SentForm,
    answer_fields,
    answer_of,
    fields_of,
    marked,
    with_item,
    with_json,
)
from runner.server.pages.charts import charts_of
from runner.server.pages.passkeys import SignatureStep, passkeys, proof_of, signature_step
from runner.server.pages.rendering import back, page
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)

ANYTHING = {"title": "Task", "default": "null"}
"""The schema of a task that no function describes."""

RECENT = 10
"""Runs on the page of their graph."""


@router.get("/graphs")
def graphs(request: Request, person: Known, services: Served) -> HTMLResponse:
    """List the graphs in the store, with the workers that have them."""
    alive = [worker for worker in read_workers(services) if worker.state == "alive"]
    graph_rows = [
        (name, fingerprint, [worker for worker in alive if name in worker.graphs])
        for name, fingerprint in services.graphs().items()
        if person.within(name).may("see")
    ]
    return page(request, "graphs.html", person, graphs=graph_rows)


@router.get("/graphs/{graph}")
def show_graph(request: Request, graph: str, person: Seen, services: Served) -> HTMLResponse:
    """Show a graph: drawn, its latest runs, and a form that starts one."""
    return _graph(request, services, person, graph)


@router.post("/graphs/{graph}")
def start(
    request: Request, graph: str, person: Operates, services: Served, form: SentForm
) -> Response:
    """Start a run of a graph, and show it; the key of the page makes a form sent twice start one run."""
    key = form.get("key") or None
    answer_texts = answer_fields(form)
    if path := form.get("add"):
        return _graph(request, services, person, graph, with_item(answer_texts, path), {})
    task, problems = _task(_task_schema(services, graph), answer_texts)
    if problems:
        return _graph(request, services, person, graph, answer_texts, problems)
    proof = proof_of(form)
    if proof is None and "sign" in form:
        keys = passkeys(request, services, person)
        body = start_body(graph, task, person.principal, idempotency_key=key)
        step = signature_step(keys, body, form, f"/graphs/{quote(graph)}", "start")
        step = replace(step, answer=task)
        return _graph(request, services, person, graph, answer_texts, signature=step)
    run = start_for(services, person, graph, task, key=key, proof=proof)
    return back(request, f"/runs/{run.id}")


def _task(schema: JSONMapping, answer_texts: FormTexts) -> tuple[Any, FormTexts]:
    if schema is not ANYTHING:
        return answer_of(schema, answer_texts)
    try:
        return codec.load_json(answer_texts.get(WHOLE, "null")), {}
    except CorruptDocument as error:
        return None, {WHOLE: f"This is {error}."}


def _task_schema(services: Services, name: str) -> JSONMapping:
    plan = services.plan(name)
    schema = task_schema(plan.definition) if plan else None
    return ANYTHING if schema is None else {"title": "Task", **schema}


def _graph(
    request: Request,
    services: Services,
    person: Person,
    name: str,
    answer_texts: FormTexts | None = None,
    problems: FormTexts | None = None,
    signature: SignatureStep | None = None,
) -> HTMLResponse:
    fingerprint = services.graphs().get(name)
    if fingerprint is None:
        raise NotFoundError(f"no worker has published the graph {name!r:.200}.")
    shape = services.shape(name, fingerprint)
    runs = services.client.runs(graph=name, limit=RECENT).items
    fields = with_json(fields_of(_task_schema(services, name), answer_texts), answer_texts)
    return page(
        request,
        "graph.html",
        person,
        422 if problems else 200,
        graph=name,
        fingerprint=fingerprint,
        drawing=Markup(outline(shape) if shape else ""),  # noqa: S704 - our own, escaped
        has_code=isinstance(shape, Definition),
        is_refused=problems is not None,
        signature=signature,
        has_passkey=passkeys(request, services, person),
        fields=marked(fields, problems or {}),
        start_key=secrets.token_hex(16),
        backlog=[row for row in read_queues(services) if name in row.graphs],
        charts=charts_of(services, request.query_params.get("span", ""), name),
        runs=runs,
        titles=dict(_titles(services, person, name, runs)),
    )


def _titles(
    services: Services, person: Person, graph: str, runs: Iterable[RunSummary]
) -> Iterator[tuple[str, str]]:
    """Yield runs with the titles of their questions: decided ones, oldest first, then an open one."""
    read = services.store.open_interrupts
    questions = read(InterruptQuery(graph, closed=True)).items[::-1]
    for run in runs:
        questions = [*questions, *read(InterruptQuery(run=run.run_id), 1)]
    for question in questions:
        yield (
            (question.place or {}).get("root", ""),
            seen_by(person, question_of(question)).title,
        )


@router.get("/workers")
def workers(request: Request, person: Seen, services: Served) -> HTMLResponse:
    """Show the workers and keepers."""
    return page(
        request,
        "workers.html",
        person,
        workers=read_workers(services),
        backlog=list(read_queues(services)),
    )


@router.get("/dead")
def dead(request: Request, person: Seen, services: Served) -> HTMLResponse:
    """Show the newest dead letters."""
    letters = [seen_by(person, letter) for letter in services.dead_letters.all(100)]
    return page(request, "dead.html", person, letters=letters)


@router.post("/dead/{letter_id}/replay")
def replay_letter(
    request: Request, letter_id: str, person: Operates, services: Served
) -> Response:
    """Send a message again, or retry a node."""
    letters = services.dead_letters
    replay(services.client.engine, letters, letters.get(letter_id), set(), person.principal.key)
    return back(request, "/dead")


@router.post("/dead/{letter_id}/drop")
def drop_letter(request: Request, letter_id: str, _: Operates, services: Served) -> Response:
    """Delete a dead letter."""
    services.dead_letters.drop(letter_id)
    return back(request, "/dead")
