"""`/v1/grants`: make decisions on future calls from a question, list them, vote on them, revoke them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from runner.approvals import granting
from runner.approvals.granting import GrantView
from runner.approvals.grants import GrantRecord
from runner.errors import GrantRefused
from runner.records.codec import JSONObject
from runner.records.interrupts import Receipt, ReceiptStatus
from runner.records.listings import Page
from runner.server.access import Allow, Decides, Lists, Person
from runner.server.answers import record_router
from runner.server.api.documents import ONE_PAGE, RequestBody
from runner.server.api.questions import Signed, answered, matched
from runner.server.deciding import grant
from runner.server.parameters import OptionalQueryText
from runner.server.problems import Problem
from runner.server.services import Served, Services

router = record_router("/v1", "grants")


class NewGrant(RequestBody):
    """Bounds of a grant for calls like the one that a question shows; see `Client.grant` in the reference."""

    bounds: JSONObject
    uses: int = 1
    sums: dict[str, int | float] = Field(default_factory=dict)
    lifetime: float | None = Field(
        default=None, description="Seconds; by default as long as the rule allows."
    )
    requesters: list[str] = Field(default_factory=list)
    graphs: list[str] = Field(default_factory=list)
    comment: str = ""


class GrantVoteRequest(Signed):
    """A vote on a grant that waits for more votes."""

    decision: Literal["approve", "reject"] = "approve"
    comment: str = ""


class Revocation(RequestBody):
    """The reason for revoking a grant."""

    reason: str = Field(min_length=1)


async def of_grant(request: Request) -> Collection[str]:
    """Return the graphs of the grant that the path names."""
    services = request.app.state.services
    name = request.path_params["grant_id"]

    def read() -> Collection[str]:
        return granting.find(services.client.engine, name).grant.graphs

    return await run_in_threadpool(read)


Grants = Annotated[Person, Depends(Allow("decide", of_grant))]
"""A caller who may decide for the graph of a grant."""


def seen_grants(services: Services, person: Person, graph: str = "") -> list[GrantView]:
    """List the grants for a graph, or for the graphs that a person may see."""
    only = graph or person.graph
    views = granting.list_grants(services.client.engine)
    return [view for view in views if not only or only in view.graphs]


def proposed(services: Services, person: Person, question_id: str, options: Any) -> GrantRecord:
    """Return a grant as a person proposes it.

    Raises:
        Problem: it can't be granted (`errors` has the field), or they may not decide for one of its graphs.
    """
    try:
        record = granting.propose(services.client.engine, question_id, **options)
    except GrantRefused as error:
        pointer = "/body/" + error.field.replace(".", "/")
        raise Problem(
            422, str(error), errors=[{"pointer": pointer, "detail": str(error)}]
        ) from error
    for graph in record.grant.graphs:
        if person.graph not in {"", graph}:
            raise Problem(403, f"You may not decide for the graph {graph!r:.80}.")
    return record


@router.post("/questions/{question_id}/grants", status_code=201, summary="Grant future calls")
def add(
    question_id: str,
    body: NewGrant,
    person: Decides,
    services: Served,
    if_match: Annotated[str | None, Header(description="The ETag of the question.")] = None,
) -> Receipt:
    """Grant calls like the one that a question shows; the receipt's `interrupt_id` names the grant.

    `counted` means that it needs more votes, `accepted` that it is in force. Bounds wider than the rule
    allows: 422.
    """
    matched(services, question_id, if_match)
    record = proposed(services, person, question_id, body.model_dump(exclude={"comment"}))
    receipt = grant(services, person, record, "approve", body.comment)
    if receipt.status is ReceiptStatus.FORBIDDEN and record.grant.id in services.store.signed(
        GrantRecord
    ):
        return receipt  # it waits for signatures
    return answered(receipt)


@router.get("/grants", summary="List grants", dependencies=[ONE_PAGE])
def list_grants(
    person: Lists, services: Served, graph: OptionalQueryText = None
) -> Page[GrantView]:
    """List the grants, the newest first, with the use of each."""
    return Page(seen_grants(services, person, graph or ""))


@router.post("/grants/{grant_id}/votes", summary="Vote on a grant")
def vote(
    grant_id: str,
    body: GrantVoteRequest,
    person: Grants,
    services: Served,
    if_match: Annotated[str | None, Header(description="The digest of the grant.")] = None,
) -> Receipt:
    """Count a vote on the grant whose digest If-Match has."""
    record = granting.find(services.client.engine, grant_id)
    if if_match is None:
        raise Problem(428, "Name the grant you decide on: send If-Match with its digest.")
    if if_match.strip().strip('"') != record.grant.digest():
        raise Problem(412, "The grant is not the one you were shown; nothing was counted.")
    return answered(grant(services, person, record, body.decision, body.comment, body.proof))


@router.post("/grants/{grant_id}:revoke", summary="Revoke a grant")
def revoke(grant_id: str, body: Revocation, person: Grants, services: Served) -> GrantView:
    """Revoke a grant: it allows no new calls."""
    return granting.revoke(services.client.engine, grant_id, body.reason, person.principal.key)
