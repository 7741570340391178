"""`/v1/questions`: list and show questions, vote on them, and people's other operations."""

from __future__ import annotations

import json
import time
import zlib
from typing import Annotated, Any, Literal

from fastapi import Body, Header, Query, Response
from pydantic import Field, StrictBool

from runner.operations.decided import closed_questions
from runner.operations.own_questions import Part
from runner.operations.questions import (
    QuestionView,
    check_alike,
    read_questions,
    vote_for,
    with_comments,
)
from runner.records import codec
from runner.records.interrupts import Decision, Receipt, ReceiptStatus
from runner.records.listings import EVER, InterruptQuery, Page
from runner.records.validation import violation
from runner.server.access import Decides, DecidesAll, Lists, Operates, Seen
from runner.server.answers import record_router, seen_document
from runner.server.api.documents import (
    PAGE,
    Cursor,
    Limit,
    Milliseconds,
    Moment,
    RequestBody,
)
from runner.server.deciding import act, decide, decide_each, own_page
from runner.server.parameters import OptionalQueryText
from runner.server.problems import Problem, pointer
from runner.server.services import Served, Services
from runner.settings import CENTURY

router = record_router("/v1/questions", "questions")

Word = Literal["approve", "edit", "reject", "respond"]

STATUSES = {
    ReceiptStatus.ACCEPTED: 200,
    ReceiptStatus.COUNTED: 200,
    ReceiptStatus.WITHDRAWN_VOTE: 200,
    ReceiptStatus.FORBIDDEN: 403,
    ReceiptStatus.UNKNOWN: 404,
    ReceiptStatus.DUPLICATE: 409,
    ReceiptStatus.EXPIRED: 410,
    ReceiptStatus.SUPERSEDED: 410,
    ReceiptStatus.REJECTED: 422,
}


class Signed(RequestBody):
    """An operation of a person on a question, with their signature if its rule requires their own key.

    They sign the same message as for other doors (`runner.approvals.operation_body`); `by` is the caller.
    """

    proof: dict[str, Any] | None = Field(
        default=None, description="The caller's own signature."
    )


LoanEnd = Annotated[Milliseconds | None, Field(description="From then on it no longer counts.")]


class VoteRequest(Signed):
    """A decision: `response` is the answer of "respond", or the whole new arguments of "edit".

    `variant` is the `effect` of one of the question's variants, to approve that one instead.
    """

    decision: Word
    response: Any = None
    variant: str = ""
    comment: str = ""


class Votes(RequestBody):
    """The same decision on several questions that are alike; each with the digest that was shown.

    `response` is the answer of "respond".
    """

    decision: Literal["approve", "reject", "respond"]
    response: Any = None
    digests: dict[str, str] = Field(min_length=1, max_length=300)
    comment: str = ""


class Withdrawal(RequestBody):
    """The reason to withdraw a question; `reask` if its node asks it again."""

    reason: str = ""
    reask: StrictBool = False


@router.get("", summary="List questions: open ones, oldest first, or those decided")
def list_questions(
    person: Lists,
    services: Served,
    graph: OptionalQueryText = None,
    run: OptionalQueryText = None,
    name: OptionalQueryText = None,
    assignee: OptionalQueryText = None,
    older_than: Annotated[
        float | None, Query(ge=0, le=CENTURY, description="Seconds since it was asked.")
    ] = None,
    *,
    status: Annotated[
        Literal["open", "decided", "answered", "expired", "withdrawn"],
        Query(description="Closed ones (`decided` is all of them) come newest first."),
    ] = "open",
    mine: Annotated[
        bool,
        Query(
            description="Open ones that the caller may decide and hasn't; decided ones that they decided."
        ),
    ] = False,
    voted: Annotated[
        bool, Query(description="Open ones that wait for others after the caller's vote.")
    ] = False,
    requested: Annotated[
        bool, Query(description="Open ones of runs that the caller asked for.")
    ] = False,
    by: Annotated[str, Query(description="Decided ones: a principal or name.")] = "",
    since: Moment = None,
    until: Moment = None,
    tool: Annotated[str | None, Query(description="Only about calls of this tool.")] = None,
    risk: OptionalQueryText = None,
    due_within: Annotated[
        float | None, Query(ge=0, le=CENTURY, description="Seconds until it expires.")
    ] = None,
    tag: Annotated[str | None, Query(description="A tag of its run, name=value.")] = None,
    text: Annotated[
        str | None, Query(max_length=500, description="A text somewhere in the question.")
    ] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Page[QuestionView]:
    """List the questions that match all filters, including questions of graphs inside a graph or run.

    `since` and `until` bound the time of a decision.
    """
    if (tool or text) and not person.may("read"):
        raise Problem(
            403, "You may not read payloads, so you can't search them by tool or text."
        )
    now = round(time.time() * 1000)
    label, _, value = (tag or "").partition("=")
    query = InterruptQuery(
        graph or None,
        run,
        name,
        assignee,
        None if older_than is None else now - round(older_than * 1000),
        tool=tool,
        risk=risk,
        due=None if due_within is None else now + round(due_within * 1000),
        tag=(label, value) if tag else None,
        text=text,
        decided=(
            round(since.timestamp() * 1000) if since else 0,
            round(until.timestamp() * 1000) if until else EVER,
        ),
    )
    choices: dict[Part, bool] = {"mine": mine, "voted": voted, "requested": requested}
    kinds = [kind for kind, is_chosen in choices.items() if is_chosen]
    is_open = status == "open"
    start = cursor or ""
    if (
        len(kinds) > 1
        or (is_open and (by or since or until))
        or (not is_open and (voted or requested))
    ):
        raise Problem(
            422,
            "Open questions take one of mine, voted, requested; decided ones mine, by, since, until.",
        )
    if is_open and kinds:
        return own_page(services, person, kinds[0], query, limit, start)
    if is_open:
        page = services.store.open_interrupts(query, limit, start)
    else:
        page = closed_questions(
            services.store,
            query,
            limit,
            start,
            by=person.principal.key if mine else by,
            status="" if status == "decided" else status,
        )
    return Page(read_questions(services.store, page), page.next)


@router.get(
    "/{question_id}",
    summary="Show a question, open or not",
    responses={304: {"description": "The question is as If-None-Match has it"}},
)
def show(
    person: Seen,
    question_id: str,
    services: Served,
    response: Response,
    if_none_match: Annotated[str, Header()] = "",
) -> QuestionView | Response:
    """Show a question with votes and comments. A vote repeats its ETag in If-Match, or its digest."""
    view = with_comments(services.store, services.question(question_id))
    content = json.dumps(seen_document(person, view)).encode()
    etag = f'"{view.digest}.{zlib.crc32(content):x}"'
    if etag in if_none_match:
        return Response(status_code=304, headers={"etag": etag})
    response.headers["etag"] = etag
    return view


@router.post("/{question_id}/votes", summary="Vote on a question, or answer it")
def vote(
    question_id: str,
    body: VoteRequest,
    person: Decides,
    services: Served,
    if_match: Annotated[str | None, Header(description="The ETag of the question.")] = None,
    idempotency_key: Annotated[str | None, Header(max_length=500)] = None,
) -> Receipt:
    """Count a decision. `counted` means that more votes are needed, `accepted` that it is decided.

    Without If-Match: 428; with another digest than the question's: 412. A person's second vote is 409, a
    late vote 410, with the person who was first. An Idempotency-Key that had another body: 422.
    """
    digest = matched(services, question_id, if_match)
    if body.variant and (body.decision in {"edit", "reject"} or body.response is not None):
        raise Problem(
            422, "A variant is approved as it is: it takes no response, edit or rejection."
        )
    response = codec.pack(
        _response_for(services, question_id, body) if body.variant else body.response,
        "response",
    )
    decision = Decision(
        question_id,
        response,
        None,
        idempotency_key,
        digest,
        body.decision,
        comment=body.comment,
    )
    receipt = decide(services, person, decision, body.proof)
    if receipt.status is ReceiptStatus.REJECTED:
        error = {"pointer": _pointer(services, body, question_id), "detail": receipt.detail}
        raise Problem(422, receipt.detail, errors=[error], receipt=receipt)
    return answered(receipt)


def _response_for(services: Services, question_id: str, body: VoteRequest) -> Any:
    view = services.question(question_id)
    decision, response = vote_for(view, body.variant)
    if view.action and decision != body.decision:
        raise Problem(422, f"The vote for this variant is {decision}, not {body.decision}.")
    return response


def _pointer(services: Services, body: VoteRequest, question_id: str) -> str:
    """Return the pointer to the mistake in the body of a vote that can't be counted."""
    if body.decision not in {"respond", "edit"}:
        return "/body/decision"
    schema = services.client.interrupt(question_id).response_schema
    path = violation(schema, body.response)[0] if schema and body.decision == "respond" else ()
    return pointer(("body", "response", *(path or ())))


def matched(services: Services, question_id: str, if_match: str | None) -> str:
    """Return the digest that the caller was shown.

    Raises:
        Problem: If-Match is missing, or the question has another digest.
    """
    question = services.client.interrupt(question_id)
    if if_match is None:
        raise Problem(428, "Name the question you decide on: send If-Match with its ETag.")
    if if_match.strip().removeprefix("W/").strip('"').partition(".")[0] != question.digest:
        raise Problem(
            412,
            "The question is not the one you were shown; nothing was counted. Read it again.",
        )
    return question.digest


def answered(receipt: Receipt) -> Receipt:
    """Return the receipt of a counted operation.

    Raises:
        Problem: the operation was not counted.
    """
    status = STATUSES[receipt.status]
    if status != 200:
        late = receipt.status is ReceiptStatus.DUPLICATE and receipt.detail.startswith(
            "already"
        )
        raise Problem(
            410 if late else status, receipt.detail or str(receipt.status), receipt=receipt
        )
    return receipt


class ClaimRequest(Signed):
    """The seconds for which a person works on a question."""

    ttl: float = Field(default=600, ge=1, le=86_400)


class Delegation(Signed):
    """The person who votes instead: a principal, `kind:issuer|subject`, or a plain name."""

    to: str = Field(min_length=1)
    until: LoanEnd = None


class Comment(Signed):
    """A comment on a question."""

    comment: str = Field(min_length=1)


OwnSignature = Annotated[Signed, Body(default_factory=Signed)]


@router.post("/{question_id}:claim", summary="Say that you work on a question")
def claim(
    question_id: str,
    person: Decides,
    services: Served,
    body: Annotated[ClaimRequest, Body(default_factory=ClaimRequest)],
) -> Receipt:
    """Show others that you work on it, for a time; they can still vote."""
    return answered(act(services, person, question_id, "claim", body.proof, ttl=body.ttl))


@router.post("/{question_id}:release", summary="Say that you don't work on it any more")
def release(question_id: str, body: OwnSignature, person: Decides, services: Served) -> Receipt:
    """End your claim."""
    return answered(act(services, person, question_id, "release", body.proof))


@router.post("/{question_id}:delegate", summary="Delegate your vote")
def delegate(question_id: str, body: Delegation, person: Decides, services: Served) -> Receipt:
    """Delegate your vote, if the rule allows it."""
    options = body.model_dump(exclude={"proof"})
    return answered(act(services, person, question_id, "delegate", body.proof, **options))


@router.post("/{question_id}:comment", summary="Comment on a question")
def comment(question_id: str, body: Comment, person: Decides, services: Served) -> Receipt:
    """Add a comment, which is an event of the run."""
    return answered(
        act(services, person, question_id, "comment", body.proof, comment=body.comment)
    )


@router.delete("/{question_id}/votes", summary="Take your vote back")
def withdraw_vote(
    question_id: str, body: OwnSignature, person: Decides, services: Served
) -> Receipt:
    """Take your vote back while the question is open."""
    return answered(act(services, person, question_id, "withdraw_vote", body.proof))


@router.post(":vote", summary="Decide several questions that are alike")
def vote_all(body: Votes, person: DecidesAll, services: Served) -> Page[Receipt]:
    """Decide questions of one graph, node or map, and name, each with a receipt; a mixture is refused."""
    check_alike(services.store, list(body.digests), body.digests)
    is_answer = body.decision == "respond"
    if body.response is not None and not is_answer:
        raise Problem(422, "Only respond takes a response; nothing was done.")
    if is_answer and services.client.interrupt(next(iter(body.digests))).action:
        raise Problem(
            422, "Approve or reject calls: respond doesn't take them; nothing was done."
        )
    response = codec.pack(body.response, "response")
    decisions = (
        Decision(question_id, response, None, None, digest, body.decision, comment=body.comment)
        for question_id, digest in body.digests.items()
    )
    return Page(decide_each(services, person, decisions))


class Reassignment(RequestBody):
    """The person who decides instead, the one they replace, and the reason."""

    to: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    instead_of: str | None = Field(
        default=None, description="By default the only person that the rule names."
    )
    until: LoanEnd = None


@router.post("/{question_id}:reassign", summary="Have another person decide an open question")
def reassign(
    question_id: str, body: Reassignment, person: Operates, services: Served
) -> Receipt:
    """Ask another person: see `Client.reassign` in the reference."""
    options = body.model_dump()
    return answered(services.client.reassign(question_id, **options, by=person.principal))


@router.post("/{question_id}:withdraw", status_code=204, summary="Withdraw an open question")
def withdraw(
    question_id: str,
    person: Operates,
    services: Served,
    body: Annotated[Withdrawal, Body(default_factory=Withdrawal)],
) -> None:
    """Withdraw a question; with `reask` its node runs again at once and may ask again."""
    services.client.withdraw(question_id, body.reason, reask=body.reask, by=person.principal)
