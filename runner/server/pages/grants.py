"""The page of grants: the calls that need no question, their uses so far, and *Revoke*."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from runner.approvals import granting
from runner.approvals.grants import GrantRecord, number_of
from runner.approvals.judgement import level_of
from runner.approvals.rules import OWN_KEY, Rule
from runner.operations.questions import QuestionView
from runner.records.codec import JSONObject
from runner.records.interrupts import Receipt
from runner.records.json_form import document
from runner.server.access import Decides, Lists, Person
from runner.server.answers import seen_by
from runner.server.api.grants import Grants, proposed, seen_grants
from runner.server.deciding import grant
from runner.server.forms import SentForm
from runner.server.pages.passkeys import SignatureStep, passkeys, proof_of, signature_step
from runner.server.pages.rendering import back, page
from runner.server.parameters import FormText
from runner.server.problems import Problem
from runner.server.services import Served, Services

router = APIRouter(include_in_schema=False)


def grant_form(question: QuestionView) -> JSONObject | None:
    """Return the offers of the form for a grant: the arguments of the call, and the limits of its rule."""
    rule = Rule.thawed(question.rule) if question.rule else None
    if rule is None or rule.grants is None or question.action is None:
        return None
    return {
        "allows": document(rule.grants),
        "days": rule.grants.lifetime / 86_400,
        "args": [
            (name, value, isinstance(value, (int, float)) and not isinstance(value, bool))
            for name, value in question.action["args"].items()
        ],
    }


@router.get("/grants")
def show(request: Request, person: Lists, services: Served) -> HTMLResponse:
    """Show the grants."""
    return _page(request, person, services)


@router.post("/grants/for/{question_id}")
def add(
    request: Request, question_id: str, person: Decides, services: Served, form: SentForm
) -> Response:
    """Grant calls like the one that a question shows."""
    question = services.client.interrupt(question_id)
    if form.get("digest") != question.digest:
        raise Problem(412, "The question is not the one you were shown; nothing was granted.")
    bounds: dict[str, JSONObject] = {}
    for name, value in question.args.items():
        if text := form.get(f"max.{name}", "").strip():
            bounds[name] = {"maximum": _number(text, f"at most {name}")}
        elif form.get(f"only.{name}"):
            bounds[name] = {"const": value}
    sums = {
        name.removeprefix("sum."): _number(text, f"the sum of {name.removeprefix('sum.')}")
        for name, text in form.items()
        if name.startswith("sum.") and text.strip()
    }
    options = {
        "bounds": {"properties": bounds},
        "uses": round(_number(form.get("uses", ""), "how many calls")),
        "sums": sums,
        "lifetime": _number(form.get("days", ""), "days") * 86_400,
        "requesters": [question.requester]
        if form.get("requester") and question.requester
        else [],
    }
    record = proposed(services, person, question_id, options)
    receipt = grant(services, person, record, "approve", form.get("comment", ""))
    if record.grant.id in services.store.signed(GrantRecord):
        return back(request, f"/grants#{record.grant.id}")
    return _page(request, person, services, receipt)


def _number(text: str, subject: str) -> float:
    number = number_of(text.strip())
    if number is None or number != Decimal(str(float(number))):
        raise Problem(
            422,
            f"{subject} is not a number of at most 15 digits: {text!r:.40}. Nothing was granted.",
        )
    return float(number) if number % 1 else int(number)


@router.post("/grants/{grant_id}/{action}")
def change(
    request: Request,
    grant_id: str,
    action: Literal["approve", "reject", "revoke"],
    person: Grants,
    services: Served,
    reason: FormText = "",
    digest: FormText = "",
    proof: FormText = "",
) -> Response:
    """Approve, reject or revoke a grant."""
    engine = services.client.engine
    record = granting.find(engine, grant_id)
    if action == "revoke":
        granting.revoke(engine, grant_id, reason, person.principal.key)
        return back(request, f"/grants#{grant_id}")
    if digest != record.grant.digest():
        raise Problem(412, "The grant is not the one you were shown; nothing was counted.")
    signature = proof_of({"proof": proof})
    if signature is None and level_of(Rule.thawed(record.rule)) == OWN_KEY:
        body = granting.message(record, action, person.principal, reason)
        form = {"reason": reason, "digest": digest}
        path = f"/grants/{grant_id}/{action}"
        if keys := passkeys(request, services, person):
            step = signature_step(keys, body, form, path, f"{action} the grant")
            return _page(request, person, services, signature=step)
    receipt = grant(services, person, record, action, reason, signature)
    return _page(request, person, services, receipt)


def _page(
    request: Request,
    person: Person,
    services: Services,
    receipt: Receipt | None = None,
    *,
    signature: SignatureStep | None = None,
) -> HTMLResponse:
    views = [seen_by(person, view) for view in seen_grants(services, person)]
    return page(
        request,
        "grants.html",
        person,
        grants=views,
        receipt=receipt,
        signature=signature,
        now=round(time.time() * 1000),
    )
