"""The server as a door: it says who decides or starts, and signs that where it has a key.

With `RUNNER_SIGNING_KEY` each decision carries what the login said (when it was, of which class, groups and
roles) and its level, signed, so that a worker can check it again. Without it the decision counts at level 0.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

from runner.approvals import directory
from runner.approvals.decision_keys import SigningKey
from runner.approvals.rules import Voter
from runner.approvals.votes import apply_operation
from runner.client import Run
from runner.operations.answers import apply_decisions
from runner.records.codec import JSON
from runner.records.interrupts import Decision, Receipt
from runner.records.messages import body_of, operation_body, start_body
from runner.server.access import Person
from runner.server.services import Services


def decide(
    services: Services, person: Person, decision: Decision, proof: dict[str, JSON] | None = None
) -> Receipt:
    """Count a decision of a person; `proof` is their own signature, otherwise the server signs."""
    body = body_of(decision, person.principal.key)
    body = {**body, "proof": proof} if proof else _signed(services, person, body)
    voter = Voter(person.principal, person.groups, person.roles)
    return apply_decisions(services.client.engine, [replace(decision, voter=voter, body=body)])[0]


def act(
    services: Services,
    person: Person,
    question_id: str,
    kind: str,
    proof: dict[str, JSON] | None = None,
    **options: Any,
) -> Receipt:
    """Do what a person wants with a question besides voting: claim, release, delegate, comment, withdraw."""
    body = operation_body(question_id, kind, person.principal, **options)
    body = {**body, "proof": proof} if proof else _signed(services, person, body)
    voter = Voter(person.principal, person.groups, person.roles)
    return apply_operation(services.client.engine, body, voter)


def start_for(
    services: Services,
    person: Person,
    graph: str,
    task: object,
    *,
    key: str | None = None,
    proof: Any = None,
    **options: Any,
) -> Run:
    """Start a run that a person asks for, whom rules may exclude from deciding; see `decide` for `proof`."""
    present_options = {name: value for name, value in options.items() if value}
    body = start_body(graph, task, person.principal, idempotency_key=key, **present_options)
    proof = proof or _signed(services, person, body).get("proof")
    return services.client.start(
        graph, task, idempotency_key=key, requester=person.principal, proof=proof, **present_options
    )


def requested_by(services: Services, person: Person, **changes: Any) -> dict[str, Any]:
    """Return the options of a run like another that a person asks for, with changes to it."""
    sign = functools.partial(_signed, services, person)
    return {"by": person.principal, "sign": sign, **changes}


def _signed(services: Services, person: Person, body: dict[str, JSON]) -> dict[str, JSON]:
    if not services.settings.signing_key:
        return body
    login: dict[str, JSON] = {
        "groups": sorted(person.groups),
        "roles": sorted(person.roles),
        "level": person.level,
    }
    if person.login_at is not None:
        login["auth_time"] = int(person.login_at)
    if person.acr is not None:
        login["acr"] = person.acr
    return SigningKey.read(services.settings.signing_key).sign(body, login=login)


def selectors_of(services: Services, person: Person) -> list[str]:
    """Name a person, and their groups and roles as their login and the directory know them."""
    return directory.selectors_of(person.voter(time.time()), services.settings.directory)
