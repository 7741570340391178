"""`/v1/questions`: list and show questions, vote on them, and what else people do to them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from runner.operations.exports import question_of
from runner.server.access import SEE, Person
from runner.server.api.documents import PAGE, Cursor, Limit, page_document, question_document
from runner.server.services import Services, services

router = APIRouter(prefix="/v1/questions", tags=["questions"])

Served = Annotated[Services, Depends(services)]
Seen = Annotated[Person, Depends(SEE)]


@router.get("", summary="List open questions, oldest first")
def list_questions(
    person: Seen,
    served: Served,
    graph: Annotated[str | None, Query()] = None,
    run: Annotated[str | None, Query()] = None,
    name: Annotated[str | None, Query()] = None,
    assignee: Annotated[str | None, Query()] = None,
    older_than: Annotated[float | None, Query(ge=0, description="Seconds since it was asked.")] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List the open questions that match all filters; those of graphs inside a graph or run are included."""
    page = served.client.interrupts(
        graph=graph, run=run, name=name, assignee=assignee, older_than=older_than, limit=limit, cursor=cursor
    )
    return page_document(page, lambda question: question_document(question_of(question), person))


@router.get("/{question_id}", summary="Show a question, open or not")
def show(question_id: str, person: Seen, served: Served, response: Response) -> Any:
    """Show a question. The ETag is its digest, which a vote repeats in If-Match."""
    question = served.client.interrupt(question_id)
    response.headers["etag"] = f'"{question.digest}"'
    return question_document(question_of(question), person)
