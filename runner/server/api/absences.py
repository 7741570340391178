"""`/v1/absences`: people who are away, and those who may vote for them until they are back."""

from __future__ import annotations

from pydantic import Field

from runner.approvals.votes import absences, end_absence
from runner.operations.questions import Away, away_view
from runner.records.listings import Page
from runner.server.access import Known, Signs
from runner.server.answers import record_router
from runner.server.api.documents import ONE_PAGE, Milliseconds
from runner.server.api.questions import Signed
from runner.server.deciding import be_away
from runner.server.services import Served

router = record_router("/v1/absences", "questions")


class NewAbsence(Signed):
    """The person who votes in your place, and the time when that ends."""

    to: str = Field(
        min_length=1, description="A principal, `kind:issuer|subject`, or a plain name."
    )
    until: Milliseconds
    since: Milliseconds | None = Field(default=None, description="By default now.")
    only: list[str] = Field(
        default_factory=list,
        description="Only questions that you may decide by these selectors, such as `group:finance`.",
    )


@router.get("", summary="List who is away", dependencies=[ONE_PAGE])
def list_absences(_: Known, services: Served) -> Page[Away]:
    """List who is away or will be, ordered by when they return."""
    return Page([*map(away_view, absences(services.client.engine))])


@router.put("/mine", summary="Begin your absence")
def begin(body: NewAbsence, person: Signs, services: Served) -> Away:
    """Let another person vote in your place for some time, as far as each rule allows."""
    options = body.model_dump(exclude={"proof"})
    return away_view(be_away(services, person, body.proof, **options))


@router.delete("/mine", status_code=204, summary="End your absence")
def end(person: Signs, services: Served) -> None:
    """End your absence."""
    end_absence(services.client.engine, person.principal, person.principal.key)
