"""The page of one question: its content, the people who decide, and the forms to decide it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from runner.approvals.ballots import approved, effect_of
from runner.approvals.judgement import level_of
from runner.approvals.proofs import VerificationKey
from runner.approvals.rule_text import deciders
from runner.approvals.rules import OWN_KEY, Rule, plain_name, unsure
from runner.approvals.votes import unfit_response
from runner.authoring.drawing import draw_run
from runner.authoring.drawing.diagram import RunShown
from runner.authoring.drawing.svg import Links
from runner.errors import CorruptDocument, UsageError
from runner.immutable import immutable
from runner.operations.decided import decision_of
from runner.operations.exports import Question, all_events, event_of, question_of
from runner.operations.questions import (
    Change,
    QuestionView,
    changes,
    differs,
    edits_of,
    vote_for,
)
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import (
    Decision,
    Interrupt,
    InterruptStatus,
    Receipt,
    ReceiptStatus,
)
from runner.records.messages import body_of, operation_body
from runner.server.access import Decides, Operates, Person, Seen
from runner.server.answers import seen_by
from runner.server.browser import FormTokens
from runner.server.deciding import act as operation
from runner.server.deciding import decide, why_barred
from runner.server.forms import (
    AS_JSON,
    FormTexts,
    SentForm,
    Typed,
    answer_fields,
    answer_of,
    edit_of,
    edit_schema,
    edit_texts,
    fields_of,
    is_blank,
    json_text,
    marked,
    midnight,
    with_first_values,
    with_item,
    with_json,
)
from runner.server.pages.case import case_of
from runner.server.pages.grants import grant_form
from runner.server.pages.passkeys import (
    PROOF,
    SignatureStep,
    passkeys,
    proof_of,
    signature_step,
    takes_own_key,
)
from runner.server.pages.question_list import list_suffix, place_of
from runner.server.pages.rendering import back, page
from runner.server.pages.run_graph import Wiring, shape_of
from runner.server.parameters import FormText
from runner.server.problems import Problem, prefix
from runner.server.services import Served, Services
from runner.store.interface import Event, RunSnapshot

router = APIRouter(include_in_schema=False)


CLAIMED = 600
"""Seconds of a claim that is made on the page."""


@immutable
class Confirmation:
    """The second step of a decision: `typed` asks for the word to be typed, if the risk is high.

    `before` and `after` are the digests of the call as asked and as edited. `pressed` is the decision of
    the pressed button, if the fields say another one: then either can be confirmed.
    """

    decision: str
    word: str
    typed: bool
    answer: Any = None
    changes: tuple[Change, ...] = ()
    before: str = ""
    after: str = ""
    problem: str = ""
    pressed: str = ""

    @property
    def pattern(self) -> str:
        """The word as a regular expression of HTML."""
        return re.sub(r"([\\^$.*+?()\[\]{}|/-])", r"\\\1", self.word)


@immutable
class Shown:
    """Contents of a page besides the question: the values sent with the form, and the outcome."""

    receipt: Receipt | None = None
    sent: FormTexts = field(default_factory=dict)
    comment: str = ""
    edited: str = ""
    variant: str = ""
    problems: FormTexts = field(default_factory=dict)
    problem: str = ""
    confirm: Confirmation | None = None
    signature: SignatureStep | None = None
    status: int = 200


@router.get("/q/{question_id}")
def show(request: Request, question_id: str, person: Seen, services: Served) -> HTMLResponse:
    """Show a question, open or not."""
    return _page(request, services, person, question_id, Shown())


@router.post("/q/{question_id}")
def answer(
    request: Request, question_id: str, person: Decides, services: Served, form: SentForm
) -> Response:
    """Decide a question; the page then shows the outcome."""
    if not form.get("digest"):
        raise Problem(
            422, "The form lacks the question's digest; nothing was done. Load the page."
        )
    shown = _decided(request, services, person, question_id, form)
    return _page(request, services, person, question_id, shown)


@router.post("/q/{question_id}/reassign")
def reassign(
    request: Request,
    question_id: str,
    person: Operates,
    services: Served,
    to: Typed = "",
    reason: Typed = "",
    instead_of: Typed = "",
    until: Typed = "",
    zone: Typed = "",
) -> Response:
    """Have another person decide a question."""
    receipt = services.client.reassign(
        question_id,
        to=to,
        reason=reason,
        instead_of=instead_of or None,
        until=midnight(until, zone, days=1) if until else None,
        by=person.principal,
    )
    if receipt.status is ReceiptStatus.ACCEPTED:
        return back(request, f"/q/{quote(question_id)}{list_suffix(request)}")
    return _page(request, services, person, question_id, Shown(receipt, status=409))


@router.post("/q/{question_id}/{action}")
def act(
    request: Request,
    question_id: str,
    action: str,
    person: Decides,
    services: Served,
    comment: Typed = "",
    to: Typed = "",
    until: Typed = "",
    zone: Typed = "",
    shown: FormText = "",
    digest: FormText = "",
    proof: FormText = "",
) -> Response:
    """Claim, release, comment or delegate a question, or take a vote back."""
    end = midnight(until, zone, days=1) if until else None
    options: dict[str, dict[str, Any]] = {
        "claim": {"ttl": CLAIMED},
        "release": {},
        "comment": {"comment": comment},
        "delegate": {"to": to, "until": end},
        "withdraw_vote": {},
    }
    if action not in options:
        raise Problem(404, f"There is no action {action!r:.40}.")
    arguments = {"shown_at": shown_at_of(request, person, shown, digest), **options[action]}
    form = {"comment": comment, "to": to, "until": until, "zone": zone, "shown": shown}
    form["digest"] = digest
    signature = proof_of({PROOF: proof})
    question = services.client.interrupt(question_id)
    if signature is None and (keys := _own_keys(request, services, person, question)):
        body = operation_body(question_id, action, person.principal, **arguments)
        path = f"/q/{quote(question_id)}/{action}{list_suffix(request)}"
        step = signature_step(keys, body, form, path, action.replace("_", " "))
        return _page(request, services, person, question_id, Shown(signature=step))
    receipt = operation(services, person, question_id, action, signature, **arguments)
    if receipt.status in {ReceiptStatus.ACCEPTED, ReceiptStatus.WITHDRAWN_VOTE}:
        return back(request, f"/q/{quote(question_id)}{list_suffix(request)}")
    return _page(request, services, person, question_id, Shown(receipt, status=409))


def _own_keys(
    request: Request, services: Services, person: Person, question: Interrupt
) -> list[VerificationKey]:
    """List the passkeys that a person can sign with, if operations on the question require one."""
    if question.rule is None or level_of(Rule.thawed(question.rule)) < OWN_KEY:
        return []
    return (
        passkeys(request, services, person)
        if takes_own_key(services.question(question.id))
        else []
    )


def shown_at_of(request: Request, person: Person, token: str, digest: str) -> int:
    """Return when this server showed the question of a digest to a person, in ms; 0 if it did not."""
    tokens: FormTokens = request.app.state.form_tokens
    return tokens.issued_at(token, person, about=digest) * 1000


def _decided(
    request: Request,
    services: Services,
    person: Person,
    question_id: str,
    form: FormTexts,
) -> Shown:
    question = services.question(question_id)
    shown = Shown(
        sent=answer_fields(form),
        comment=form.get("comment", ""),
        edited=form.get("arguments", ""),
        variant=form.get("variant", ""),
    )
    if path := form.get("add"):
        return replace(shown, sent=with_item(shown.sent, path))
    if form.get("back"):
        return replace(shown, variant="")
    claim = claim_of_another(question, person)
    if claim and form.get("despite") != claim:
        problem = (
            f"{plain_name(claim)} works on this. Say below that you decide it nevertheless."
        )
        return replace(shown, problem=problem, status=409)
    try:
        kind, response, pressed, problems = _sent_decision(question, form)
        problem = ""
        if pressed and not shown.variant:
            problem = _problem(question, pressed, None, shown.comment)
        if not (problem or problems):
            problem = _problem(question, kind, response, shown.comment)
        is_wrong = bool(problem or problems)
        step = None if is_wrong else _second_step(question, kind, response, pressed, form)
    except CorruptDocument as error:
        return replace(shown, problem=f"The arguments are {error}.", status=422)
    except UsageError as error:
        return replace(shown, problem=str(error), status=422)
    if question.is_open and (is_wrong or step):
        status = 200 if step and not step.problem else 422
        return replace(shown, problem=problem, problems=problems, confirm=step, status=status)
    decision = Decision(
        question_id,
        codec.pack(response, "response"),
        None,
        None,
        form["digest"],
        kind,
        comment=shown.comment,
        shown_at=shown_at_of(request, person, form.get("shown", ""), form["digest"]),
    )
    proof = proof_of(form)
    if proof is None and (keys := _own_keys(request, services, person, question)):
        body = body_of(decision, person.principal.key)
        path = f"/q/{quote(question.id)}{list_suffix(request)}"
        return replace(
            shown, signature=_signature_step(keys, body, form, path, question, response)
        )
    receipt = first_receipt(
        services, person, decision, decide(services, person, decision, proof)
    )
    good = {ReceiptStatus.ACCEPTED, ReceiptStatus.COUNTED}
    return replace(shown, receipt=receipt, status=200 if receipt.status in good else 409)


def first_receipt(
    services: Services, person: Person, decision: Decision, receipt: Receipt
) -> Receipt:
    """Return the receipt of a decision, or of the first one if it was sent twice, as by a double click."""
    if receipt.status is not ReceiptStatus.DUPLICATE:
        return receipt
    question = services.question(decision.interrupt_id)
    key, kind = person.principal.key, decision.decision
    response = codec.plain(decision.response)
    effect = effect_of(question, kind, True if response is None else response)
    votes = [
        (vote.by, vote.decision, vote.effect)
        for vote in question.votes
        if not vote.is_void and vote.stage == question.stage
    ]
    is_last = question.is_open or question.effect == effect
    if question.undo:
        is_last = question.undo.decision == kind
    is_answer = (plain_name(key), response) == (question.responder, question.response)
    if not (((key, kind, effect) in votes and is_last) or is_answer):
        return receipt
    status = ReceiptStatus.ACCEPTED
    if question.is_open and not question.undo:
        status = ReceiptStatus.COUNTED
    return replace(receipt, status=status, have=question.have, need=question.need)


AS_SHOWN, WITH_CHANGES = "as shown", "with changes"
"""Ways to confirm a decision that differs from the form's fields."""


def claim_of_another(question: QuestionView, person: Person) -> str:
    """Return the other person who has claimed an open question; "" if nobody has."""
    return question.claim if question.claim != person.principal.key else ""


def _sent_decision(question: QuestionView, form: FormTexts) -> tuple[str, Any, str, FormTexts]:
    """Read the decision and the response of a form, the pressed button's decision, and problems by field.

    Changed fields are never ignored: they decide, whichever button was pressed, unless its decision was
    confirmed beside them. The third value is the button's decision, "" if it needs no confirmation.
    """
    kind = form.get("decision", "respond")
    response = None
    variant = form.get("variant")
    if variant:
        kind, response = vote_for(question, variant)
    of_fields = "edit" if question.action else "respond"
    is_of_fields = kind == of_fields and not variant
    if form.get("confirmed") == AS_SHOWN and not is_of_fields:
        return kind, response, "", {}
    typed, problems, is_changed = _typed(question, form)
    if is_of_fields:
        return kind, typed, "", problems
    return (of_fields, typed, kind, problems) if is_changed else (kind, response, "", {})


def _typed(question: Question, form: FormTexts) -> tuple[Any, FormTexts, bool]:
    """Read the fields of a form: their value, its problems, and whether anything was changed."""
    sent = answer_fields(form)
    if question.action is None:
        schema = with_first_values(question.response_schema, question.reason)
        answer, problems = answer_of(schema, sent)
        return answer, problems, not is_blank(schema, sent)
    args: Any = question.action["args"]
    edited, problems = edit_of(edit_schema(question.response_schema, args), args, sent)
    is_changed = bool(problems) or differs(question, edited)
    text = form.get("arguments", sent.get(AS_JSON))
    if text is not None:
        of_json = codec.load_json(text, codec.exact)
        if is_changed and differs(question, of_json):
            raise UsageError("Change the arguments in the fields or as JSON, one of the two.")
        if not is_changed:
            edited = of_json
            is_changed = differs(question, of_json)
    return edited, problems, is_changed


def _signature_step(
    keys: Sequence[VerificationKey],
    body: JSONMapping,
    form: FormTexts,
    path: str,
    question: Question,
    response: Any,
) -> SignatureStep:
    """Return the step in which passkeys sign a decision, with its answer or its changes to the call."""
    kind = str(body["decision"])
    step = signature_step(
        keys, body, form, path, "approve with changes" if kind == "edit" else kind
    )
    if kind == "respond":
        return replace(step, answer=response)
    is_edit = isinstance(response, dict)
    return replace(step, changes=tuple(changes(question.args, response))) if is_edit else step


def _problem(question: Question, kind: str, response: Any, comment: str) -> str:
    """Describe the problem of a decision before it is confirmed; "" if it has none."""
    if kind == "reject":
        return "" if comment.strip() else "Say in the comment why you reject it."
    if kind == "respond" and question.action and response is None:
        return "Say what becomes of the call: approve it, change it or reject it."
    if kind != "edit":
        return ""
    if problem := unfit_response(kind, codec.pack(response, "the arguments"), question):
        return f"The arguments can't be used: {problem}."
    if not differs(question, response) and "approve" in (question.rule or {}).get(
        "decisions", ()
    ):
        return "The arguments are unchanged: change one, or approve the call as it is."
    return ""


def _second_step(
    question: Question, kind: str, response: Any, pressed: str, form: FormTexts
) -> Confirmation | None:
    """Return the confirmation that is still needed: for a change, and for any approval at high risk."""
    high = question.risk == "high" and kind != "reject"
    if not (high or pressed or kind == "edit"):
        return None
    action = question.action or {}
    name = str(action.get("tool", question.name))
    confirmed = form.get("confirmed", "")
    is_said = confirmed == WITH_CHANGES if pressed else bool(confirmed)
    if is_said and (not high or form.get("typed") == name):
        return None
    problem = f"Type {name} exactly." if is_said else ""
    step = Confirmation(kind, name, high, response, problem=problem, pressed=pressed)
    if kind != "edit" and not form.get("variant"):
        return step
    differences = () if kind == "respond" else tuple(changes(action.get("args"), response))
    return replace(
        step,
        changes=differences,
        before=approved(question),
        after=effect_of(question, kind, response),
    )


def _page(
    request: Request, services: Services, person: Person, question_id: str, shown: Shown
) -> HTMLResponse:
    question = services.question(question_id)
    snapshot = services.store.read(question.run_id, messages=True)
    rule = Rule.thawed(question.rule) if question.rule else None
    decisions = set(rule.decisions if rule else ("respond",))
    # A call is approved, edited or rejected; only a question without one is answered with words.
    decisions -= {"respond"} if question.action else {"edit"}
    reads = person.may("read")
    history = list(_history(services, question)) if reads else []
    return page(
        request,
        "question.html",
        person,
        shown.status,
        question=seen_by(person, question),
        shown=request.app.state.form_tokens.issue(person, about=question.digest)
        if reads
        else "",
        people=deciders(question.rule, question.assignees),
        decisions=decisions,
        form=shown,
        granting=grant_form(question) if reads else None,
        place=place_of(request, services, person, question),
        suffix=list_suffix(request),
        closed="" if question.is_open else decision_of(question).sentence,
        history=history,
        claim=claim_of_another(question, person),
        edits=edits_of(question) if reads else {},
        **_fields(question, shown, reads=reads),
        **_obstacles(request, services, person, question, rule),
        **(_of_run(request, services, question, snapshot, reads=reads) if snapshot else {}),
    )


def _fields(question: QuestionView, shown: Shown, *, reads: bool) -> JSONObject:
    """Return the fields of the form, for the response or for the arguments of the call."""
    schema = with_first_values(question.response_schema, question.reason if reads else None)
    before: dict[str, str] = {}
    label, text = "Answer as JSON", ""
    if question.action and reads:
        schema = edit_schema(question.response_schema, question.action["args"])
        before = edit_texts(schema, question.action["args"])
        label = "All arguments, as JSON"
        text = json_text(question.action["args"])
    if before:
        before[AS_JSON] = text
    texts = {**before, **shown.sent}
    fields = with_json(fields_of(schema, texts or None), texts, label)
    return {
        "fields": marked(fields, shown.problems, before),
        "as_json": shown.edited or not texts,
        "opened": shown.edited not in {"", text} or texts != before,
    }


def _obstacles(
    request: Request,
    services: Services,
    person: Person,
    question: QuestionView,
    rule: Rule | None,
) -> JSONObject:
    """Return the obstacles to a person's decision on an open question: a rule, a passkey or an old login."""
    own_keys = passkeys(request, services, person) if takes_own_key(question) else None
    reason, login = "", None
    if question.is_open:
        reason = why_barred(services, person, question, own_keys)
        if rule and own_keys is None:
            login = _stale_login(request, rule, person, question.stage)
    return {"barred": reason, "lacks_passkey": own_keys == [], "login": login}


def _of_run(
    request: Request,
    services: Services,
    question: QuestionView,
    snapshot: RunSnapshot,
    *,
    reads: bool,
) -> JSONObject:
    """Return a page's facts about the question's run; its values only for people who may read them."""
    wiring = Wiring(snapshot, shape_of(services, snapshot.record)) if reads else None
    return {
        "asker": snapshot.record.graph_id,
        "position": snapshot.events,
        "denials": _denials(question, snapshot) if question.action and reads else (),
        "case": case_of(wiring, question) if wiring else None,
        "drawing": _drawing(request, services, question, snapshot),
    }


@immutable
class Login:
    """The reason why a login does not suffice for a question, and the path of a new login."""

    why: str
    path: str


def _stale_login(request: Request, rule: Rule, person: Person, stage: int) -> Login | None:
    """Return a new login, if the person's is too old for a rule, or of another class."""
    path = getattr(request.app.state.auth, "login_path", "")
    voter = replace(person.voter(time.time()), level=OWN_KEY)  # the receipt reports the level
    why = unsure(rule, voter, stage) if path else ""
    if not why:
        return None
    classes = [auth.acr for auth in (rule.auth, rule.steps[stage].auth) if auth.acr]
    query = {"next": request.url.path.removeprefix(prefix(request)), "again": "1"}
    return Login(
        why, f"{path}?{urlencode({**query, **({'acr': classes[-1]} if classes else {})})}"
    )


@immutable
class Line:
    """An event of a question; `effect` is the digest of the effect that a vote is for."""

    kind: str
    at: int
    who: str = ""
    what: str = ""
    text: str = ""
    effect: str = ""


def _history(services: Services, question: Question) -> Iterator[Line]:
    """List the history of a question: events of its run, kept as long as the run."""
    for event in map(event_of, all_events(services.store, question.run_id)):
        if event.detail == question.id and event.kind.startswith("interrupt."):
            yield line_of(event)


def line_of(event: Event) -> Line:
    """Return an event of a question with the person, their action and their text."""
    data = event.data if isinstance(event.data, Mapping) else {}
    who, to, lender = (
        plain_name(str(data.get(name) or "")) for name in ("by", "to", "instead_of")
    )
    who = who or plain_name(str(data.get("responder") or ""))
    text = data.get("comment") or data.get("reason")
    text = text or ("decision" in data and data.get("detail"))
    return Line(
        event.kind.removeprefix("interrupt."),
        event.at,
        f"{who} for {lender}" if lender else who,
        str(data.get("decision") or (to and f"to {to}")),
        text if isinstance(text, str) else "",
        str(data.get("effect") or ""),
    )


def _denials(question: Question, snapshot: RunSnapshot) -> list[Question]:
    """Return questions of the run about the same call that were rejected or ran out of time."""
    arguments_effect = approved(question)
    return [
        question_of(earlier)
        for earlier in snapshot.interrupts
        if earlier.id != question.id
        and earlier.action is not None
        and (earlier.decision == "reject" or earlier.status is InterruptStatus.EXPIRED)
        and approved(earlier) == arguments_effect
    ]


def _drawing(
    request: Request, services: Services, question: Question, snapshot: RunSnapshot
) -> Markup:
    """Draw the graph of the question's run, with the node that asks marked."""
    record = snapshot.record
    graph = services.shape(record.graph_id, record.fingerprint)
    if graph is None:
        return Markup("")

    def page_of(node: str) -> str:
        return f"{prefix(request)}/runs/{quote(question.run_id)}?node={quote(node)}#node"

    states = {name: str(node.status) for name, node in snapshot.nodes.items()}
    text = draw_run(graph, RunShown(states, opened=frozenset()), Links(page_of, page_of))
    mark = f'data-node="{escape(question.node_id)}"'
    return Markup(text.replace(mark, f"{mark} data-here", 1))  # noqa: S704 - our own, escaped
