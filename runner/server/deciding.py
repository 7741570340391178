"""The server as a door: it says who decides or starts, and signs that where it has a key.

With `RUNNER_SIGNING_KEY` each decision carries what the login said (when it was, of which class, groups and
roles), signed, so that a worker can check it again. Without it the decision counts at level 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.approvals.ballots import Choice
from runner.approvals.decision_keys import SigningKey
from runner.approvals.rules import Voter
from runner.approvals.votes import apply_operation
from runner.client import Run
from runner.operations.answers import apply_choice
from runner.records import codec
from runner.records.codec import JSON
from runner.records.interrupts import Receipt
from runner.records.messages import operation_body, start_body, vote_body
from runner.server.access import Person
from runner.server.services import Services


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decides: `response` is the answer of "respond", or the whole new arguments of "edit".

    `shown_at` (ms) is when this server has shown them the question.
    """

    decision: str
    response: Any = None
    digest: str | None = None
    comment: str = ""
    idempotency_key: str | None = None
    proof: dict[str, JSON] | None = None
    shown_at: int = 0


def decide(served: Services, person: Person, question_id: str, decided: Decision) -> Receipt:
    """Count a decision of a person; `proof` is their own signature, otherwise the server signs."""
    body = vote_body(
        question_id,
        decided.decision,
        person.principal,
        response=decided.response,
        digest=decided.digest,
        comment=decided.comment,
        idempotency_key=decided.idempotency_key,
        shown_at=decided.shown_at,
    )
    signed = {**body, "proof": decided.proof} if decided.proof else _signed(served, person, body)
    choice = Choice(
        question_id,
        decided.decision,
        person.principal,
        codec.pack(decided.response, "response"),
        decided.digest,
        decided.comment,
        decided.idempotency_key,
        signed,
        groups=person.groups,
        roles=person.roles,
        shown_at=decided.shown_at,
    )
    return apply_choice(served.client.engine, choice)


def act(served: Services, person: Person, question_id: str, kind: str, **options: Any) -> Receipt:
    """Do what somebody wants with a question besides voting: claim, release, delegate, comment, withdraw."""
    body = _signed(served, person, operation_body(question_id, kind, person.principal, **options))
    voter = Voter(person.principal, person.groups, person.roles)
    return apply_operation(served.client.engine, body, voter)


def start_for(
    served: Services,
    person: Person,
    graph: str,
    task: object,
    *,
    key: str | None = None,
    **options: Any,
) -> Run:
    """Start a run that a person asks for: rules may exclude them from deciding."""
    given = {name: value for name, value in options.items() if value}
    body = start_body(graph, task, person.principal, idempotency_key=key, **given)
    proof: Any = _signed(served, person, body).get("proof")
    return served.client.start(
        graph, task, idempotency_key=key, requester=person.principal, proof=proof, **given
    )


def signer(served: Services, person: Person) -> Callable[[dict[str, JSON]], dict[str, JSON]]:
    """Return what signs a message of a person, with the server's key if it has one."""
    return functools.partial(_signed, served, person)


def _signed(served: Services, person: Person, body: dict[str, JSON]) -> dict[str, JSON]:
    if not served.settings.signing_key:
        return body
    login: dict[str, JSON] = {"groups": sorted(person.groups), "roles": sorted(person.roles)}
    if person.login_at is not None:
        login["auth_time"] = int(person.login_at)
    if person.acr is not None:
        login["acr"] = person.acr
    return SigningKey.read(served.settings.signing_key).sign(body, login=login)
