"""The server as a door: it states who decides a question or starts a run, and signs this if it has a key.

With `RUNNER_SIGNING_KEY` each decision carries the facts of the login (time, class, groups and roles) and its
level, signed, so that a worker can check it again. Without the key the decision counts at level 0.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runner.approvals import directory, granting
from runner.approvals.absences import Absence, absence_body
from runner.approvals.decision_keys import SigningKey
from runner.approvals.grants import GrantRecord
from runner.approvals.proofs import VerificationKey
from runner.approvals.rules import OWN_KEY, Voter
from runner.approvals.votes import apply_operation, begin_absence
from runner.client import Run
from runner.errors import DirectoryError, RunnerError, StoreError
from runner.operations import own_questions
from runner.operations.answers import apply_decisions
from runner.operations.questions import QuestionView
from runner.operations.recovery import cancellation
from runner.records.codec import JSONObject, without_empty
from runner.records.interrupts import Decision, Receipt, ReceiptStatus
from runner.records.listings import InterruptQuery, Page
from runner.records.messages import body_of, operation_body, start_body
from runner.server.access import Person
from runner.server.services import Services


def decide(
    services: Services, person: Person, decision: Decision, proof: JSONObject | None = None
) -> Receipt:
    """Count a person's decision; `proof` is their own signature, without which the server signs."""
    body = body_of(decision, person.principal.key)
    body, voter = _proven(services, person, body, proof)
    return apply_decisions(services.client.engine, [replace(decision, voter=voter, body=body)])[
        0
    ]


def decide_each(
    services: Services, person: Person, decisions: Iterable[Decision]
) -> list[Receipt]:
    """Count a person's decisions one by one: one that can't be counted doesn't stop the others."""
    receipts = []
    for decision in decisions:
        try:
            receipts.append(decide(services, person, decision))
        except StoreError:
            raise
        except RunnerError as error:
            receipts.append(
                Receipt(ReceiptStatus.REJECTED, decision.interrupt_id, detail=str(error))
            )
    return receipts


def grant(
    services: Services,
    person: Person,
    record: GrantRecord,
    decision: str,
    comment: str = "",
    proof: JSONObject | None = None,
) -> Receipt:
    """Count a person's vote on a grant; see `decide` for `proof`."""
    body = granting.message(record, decision, person.principal, comment)
    body, voter = _proven(services, person, body, proof)
    return granting.vote(services.client.engine, record, body, voter)


def act(
    services: Services,
    person: Person,
    question_id: str,
    kind: str,
    proof: JSONObject | None = None,
    **options: Any,
) -> Receipt:
    """Apply a person's operation other than a vote: claim, release, delegate, comment, withdraw a vote."""
    body = operation_body(question_id, kind, person.principal, **options)
    body, voter = _proven(services, person, body, proof)
    return apply_operation(services.client.engine, body, voter)


def absence_message(
    services: Services,
    person: Person,
    *,
    to: str,
    until: int,
    since: int | None = None,
    only: Sequence[str] = (),
) -> JSONObject:
    """Return the message to sign that states a person's absence; see `absence_body` for errors."""
    return absence_body(
        services.client.engine.store.namespace,
        person.principal,
        to,
        since=time.time_ns() // 1_000_000 if since is None else since,
        until=until,
        only=only,
    )


def be_away(
    services: Services, person: Person, proof: JSONObject | None = None, **options: Any
) -> Absence:
    """Let another person vote in a person's place for some time; see `decide` for `proof`."""
    body = absence_message(services, person, **options)
    body, voter = _proven(services, person, body, proof)
    return begin_absence(services.client.engine, body, voter)


def start_for(
    services: Services,
    person: Person,
    graph: str,
    task: object,
    *,
    key: str | None,
    proof: Any = None,
    **options: Any,
) -> Run:
    """Start a run for a person; rules may exclude them from deciding. See `decide` for `proof`."""
    options = without_empty(options)
    body = start_body(graph, task, person.principal, idempotency_key=key, **options)
    proof = proof or _sign(services, person, body).get("proof")
    return services.client.start(
        graph,
        task,
        idempotency_key=key,
        requester=person.principal,
        proof=proof,
        **options,
    )


def cancelled_by(person: Person, reason: str = "") -> str:
    """Return the reason of a cancellation, with the name of the person."""
    return cancellation(person.principal.name or person.principal.sub, reason)


def requested_by(services: Services, person: Person, **changes: Any) -> JSONObject:
    """Return the options to fork a run or start it again: the changes, who asks, and how the server signs."""
    sign = functools.partial(_sign, services, person)
    return {"by": person.principal, "sign": sign, **changes}


def _proven(
    services: Services, person: Person, body: JSONObject, proof: JSONObject | None
) -> tuple[JSONObject, Voter]:
    """Return a message with a proof, the server's if the person gave none, and the person as its voter."""
    body = {**body, "proof": proof} if proof else _sign(services, person, body)
    return body, Voter(person.principal, person.groups, person.roles)


def _sign(services: Services, person: Person, body: JSONObject) -> JSONObject:
    if not services.settings.signing_key:
        return body
    login: JSONObject = {
        "groups": sorted(person.groups),
        "roles": sorted(person.roles),
        "level": person.level,
    }
    if person.login_at is not None:
        login["auth_time"] = int(person.login_at)
    if person.acr is not None:
        login["acr"] = person.acr
    return SigningKey.read(services.settings.signing_key).sign(body, login=login)


def voter_of(services: Services, person: Person) -> Voter:
    """Return a person as rules see them, with the groups and roles of the directory.

    The level is set to the highest, because pages report a login of too low a level separately.
    """
    voter = replace(person.voter(time.time()), level=OWN_KEY)
    with suppress(DirectoryError):
        voter = directory.looked_up(voter, services.settings.directory)
    return voter


def own_page(
    services: Services,
    person: Person,
    kind: own_questions.Part,
    query: InterruptQuery,
    limit: int,
    cursor: str = "",
) -> Page[QuestionView]:
    """List the open questions in which a person has a part; "mine" is empty if they may not decide."""
    if kind == "mine" and not person.may("decide"):
        return Page(())
    return own_questions.own_questions(
        services.client.engine, voter_of(services, person), kind, query, limit, cursor=cursor
    )


def count_mine(
    services: Services, person: Person, query: InterruptQuery
) -> tuple[int, Page[QuestionView]]:
    """Count the open questions that wait for a person, and return the first of them: see `count_waiting`."""
    if not person.may("decide"):
        return 0, Page(())
    return own_questions.count_waiting(
        services.client.engine, voter_of(services, person), query
    )


def why_barred(
    services: Services,
    person: Person,
    question: QuestionView,
    own_keys: Sequence[VerificationKey] | None = None,
) -> str:
    """Return why a person may not decide a question, as far as that is known before they vote.

    `own_keys` are their keys, if the question requires one; then their groups are those that the keys name.
    """
    if own_keys:
        voter = Voter(person.principal, own_keys[0].groups, own_keys[0].roles, OWN_KEY, 0)
    elif own_keys is None:
        voter = voter_of(services, person)
    else:
        return "it needs your passkey, and you have none that is valid here"
    return own_questions.why_barred(services.client.engine, voter, question)
