"""Passkeys on the pages: people make them, and sign with them if their own key is required (level 3)."""

from __future__ import annotations

import json
import shlex
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse

from runner.approvals.keys import thumbprint
from runner.approvals.passkeys import passkeys_of, public_half, signature_request
from runner.approvals.proofs import ProofRefused, VerificationKey, encoded
from runner.approvals.rules import OWN_KEY, Rule
from runner.errors import CorruptDocument, UsageError
from runner.immutable import immutable
from runner.operations.questions import Change, QuestionView
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.server.access import Person, Signs
from runner.server.auth import Local
from runner.server.browser import TOKEN, FormTokens, origin_of
from runner.server.forms import FormTexts
from runner.server.pages.rendering import page
from runner.server.parameters import FormText
from runner.server.problems import Problem
from runner.server.services import Served, Services
from runner.store.requests import new_nonce

router = APIRouter(include_in_schema=False)

PROOF = "proof"
"""The field of a form with the signature of a passkey."""

ABOUT, CREATION_TIME = "passkey", 600
"""The subject of the token that a new passkey must sign, and the seconds for which it is valid."""


@immutable
class SignatureStep:
    """The last step of a form: one of the passkeys signs, and the form is sent again with its `fields`.

    `requests` has a `SignatureRequest` for each passkey, as the script of the page reads it. `changes` are
    the changes to the call that is asked about, `answer` is the answer to a question without a call.
    """

    path: str
    fields: FormTexts
    subject: str
    requests: Sequence[Mapping[str, object]]
    changes: Sequence[Change] = ()
    answer: object = None


def takes_own_key(question: QuestionView) -> bool:
    """Return whether people must sign operations on a question now with their own keys."""
    if question.rule is None or not question.is_open:
        return False
    rule = Rule.thawed(question.rule)
    return max(rule.auth.level, rule.steps[question.stage].auth.level) == OWN_KEY


def _keys(services: Services) -> Mapping[str, VerificationKey]:
    """Return the keys of decisions; none if they can't be read, as before the first one is added."""
    with suppress(UsageError):
        return services.client.engine.decision_keys.read()
    return {}


def passkeys(request: Request, services: Services, person: Person) -> list[VerificationKey]:
    """List the passkeys that a person can sign with on these pages now."""
    return passkeys_of(_keys(services), person.principal.key, origin_of(request), time.time())


def signature_step(
    keys: Sequence[VerificationKey],
    body: JSONMapping,
    form: FormTexts,
    path: str,
    subject: str,
) -> SignatureStep:
    """Return the step in which passkeys sign the message that a form makes."""
    fields = codec.without(form, TOKEN, PROOF)
    now = time.time()
    requests = [asdict(signature_request(body, key, now, new_nonce())) for key in keys]
    return SignatureStep(path, fields, subject, requests)


def proof_of(form: FormTexts) -> JSONObject | None:
    """Return the signature of a passkey; None if the form has none.

    Raises:
        Problem: the signature is malformed.
    """
    text = form.get(PROOF)
    if not text:
        return None
    try:
        proof = codec.load_json(text)
    except CorruptDocument as error:
        raise Problem(422, f"The signature is {error}; nothing was done.") from error
    if not isinstance(proof, dict):
        raise Problem(422, "The signature is not a JSON object; nothing was done.")
    return proof


@router.get("/passkeys")
def show(request: Request, person: Signs, services: Served) -> HTMLResponse:
    """Show the caller's keys, and a form for a new passkey."""
    return _page(request, person, services)


@router.post("/passkeys")
def add(
    request: Request,
    person: Signs,
    services: Served,
    kid: Annotated[str, Form(min_length=1, max_length=100, pattern=r"^[\w.@-]+$")],
    token: FormText,
    registration: Annotated[str, Form(alias=PROOF)] = "",
) -> HTMLResponse:
    """Check a new passkey, and show its public half; the passkey works once an administrator adds that."""
    if refusal := _refusal(request, services):
        raise Problem(403, refusal)
    tokens: FormTokens = request.app.state.form_tokens
    if time.time() - tokens.issued_at(token, person, about=ABOUT) > CREATION_TIME:
        raise Problem(403, "The page is too old, or not from here. Load it again.")
    if kid in _keys(services):
        raise Problem(409, f"There is a key {kid!r} already: choose another name.")
    try:
        public = public_half(
            proof_of({PROOF: registration}) or {}, token.encode(), origin_of(request)
        )
    except ProofRefused as error:
        raise Problem(422, f"No passkey was made: {error}") from error
    entry: JSONObject = {"kid": kid, "principal": person.principal.key, **public}
    return _page(request, person, services, entry)


def _refusal(request: Request, services: Services) -> str:
    """Return why no passkey can be made: the server doesn't know its address, only the request's; else ""."""
    if services.settings.server_url or request.url.hostname in Local.NAMES:
        return ""
    return (
        "No passkey is made here: the server does not know its address. Set RUNNER_SERVER_URL to where "
        "people open these pages, and start it again."
    )


def _page(
    request: Request, person: Person, services: Services, entry: JSONObject | None = None
) -> HTMLResponse:
    principal = person.principal
    origin = origin_of(request)
    own_keys = [key for key in _keys(services).values() if key.principal == principal.key]
    tokens: FormTokens = request.app.state.form_tokens
    token = tokens.issue(person, about=ABOUT)
    name = principal.name or principal.sub
    user = sha256(principal.key.encode()).digest()
    text = json.dumps(entry, indent=2)
    kid = str(entry["kid"]) if entry else ""
    added = [
        "new",
        kid,
        "--level",
        "3",
        "--principal",
        principal.key,
        "--public",
        f"{kid}.json",
    ]
    return page(
        request,
        "passkeys.html",
        person,
        keys=own_keys,
        entry=entry,
        text=text,
        command=shlex.join(["runner", "keys", *added]),
        file=b64encode(text.encode()).decode(),
        thumbprint=thumbprint(entry) if entry else "",
        token=token,
        options={
            "challenge": encoded(token.encode()),
            "user": {"id": encoded(user), "name": principal.key, "displayName": name},
            "rp": {"name": request.app.title},
            "exclude": [key.credential for key in own_keys if key.credential],
        },
        origin=origin,
        refusal=_refusal(request, services),
    )
