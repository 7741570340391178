"""Entries of the audit: each event appends one, in the step that makes the event true.

An entry names people, nodes, questions and digests, but has no payload: after a run is removed, its
sealed entries can still be verified. An entry gets its place in the tree (`n`) when it is sealed; `run_n`
counts the entries of its run. The hash of an entry covers its canonical JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from runner.approvals import digests
from runner.approvals.absences import Absence
from runner.approvals.grants import Grant
from runner.approvals.rules import Principal
from runner.errors import UsageError
from runner.records.codec import JSON, JSONMapping, JSONObject, without, without_empty
from runner.records.interrupts import Interrupt, policy_of
from runner.records.run import EventKind, RunRecord

Mode = Literal["off", "approvals", "all"]
"""Scope of the audit: nothing, each run from its first question with a rule on, or every run."""

VERSION = 1

TYPES: Mapping[str, str] = {
    EventKind.RUN_STARTED: "run.started",
    EventKind.RUN_STOPPING: "run.cancelled",
    EventKind.RUN_ENDED: "run.ended",
    EventKind.RUN_RETRIED: "run.retried",
    EventKind.RUN_FORKED: "run.forked",
    EventKind.RUN_MIGRATED: "run.migrated",
    EventKind.INTERRUPT_ASKED: "asked",
    EventKind.INTERRUPT_ANSWERED: "decided",
    EventKind.INTERRUPT_EXPIRED: "expired",
    EventKind.INTERRUPT_REMINDED: "reminded",
    EventKind.INTERRUPT_WITHDRAWN: "withdrawn",
    EventKind.INTERRUPT_MOVED: "moved",
    EventKind.INTERRUPT_VOTED: "voted",
    EventKind.INTERRUPT_REFUSED: "refused",
    EventKind.INTERRUPT_USED: "used",
    EventKind.EFFECT_ENDED: "effect.ended",
    EventKind.INTERRUPT_CLAIMED: "claimed",
    EventKind.INTERRUPT_RELEASED: "released",
    EventKind.INTERRUPT_DELEGATED: "delegated",
    EventKind.INTERRUPT_COMMENTED: "commented",
    EventKind.INTERRUPT_ESCALATED: "escalated",
    EventKind.NODE_HELD: "held",
    EventKind.NODE_RELEASED: "node.released",
    EventKind.NODE_OVERRIDDEN: "node.overridden",
}
"""Type of an entry, by the kind of its event."""

HASHED = frozenset(
    {
        "run.cancelled",
        "withdrawn",
        "voted",
        "refused",
        "commented",
        "delegated",
        "held",
        "node.overridden",
    }
)
"""Types of entries that hash their event's data; an entry of a decision hashes the response."""

STARTED = "run.started"
REMOVED = "run.removed"
SHOWN = "shown"

AUTH = {
    "level": "level",
    "method": "method",
    "iss": "iss",
    "at": "authenticated_at",
    "kid": "kid",
    "jti": "jti",
    "selector": "selector",
}
"""Fields of an entry about the actor's authentication, and their names in an event's data."""

OUTCOME = ("decision", "vote", "to", "instead_of", "until", "key", "status")
"""Fields that an outcome takes from an event's data unchanged: only names and numbers."""


def entry(
    type_: str,
    *,
    at: int,
    run: str = "",
    node: str = "",
    visit: int = 0,
    question: str = "",
    actor: str = "",
    auth: JSONMapping | None = None,
    prev_vote: int = 0,
    hashes: Mapping[str, str] | None = None,
    outcome: JSONMapping | None = None,
) -> JSONObject:
    """Build an entry, leaving out empty parts. `hashes` become its `digests`; the ledger adds its partition.

    The actor is stored as a principal's key, whichever form names it: "ana" is `human:|ana`.
    """
    fields: JSONObject = {
        "run": _text(run),
        "node": _text(node),
        "visit": visit,
        "question": _text(question),
        "actor": _text(_key(actor)),
        "auth": dict(auth or {}),
        "prev_vote": prev_vote,
        "digests": without_empty(hashes or {}),
        "outcome": {
            name: value for name, value in (outcome or {}).items() if value not in ("", None)
        },
    }
    head: JSONObject = {"v": VERSION, "at": at, "partition": "", "type": type_}
    return head | without_empty(fields)


def of_event(
    type_: str,
    run: RunRecord,
    node: str,
    visit: int,
    *,
    at: int,
    detail: str,
    data: JSON,
    question: Interrupt | None,
) -> JSONObject:
    """Build the entry for an event of a run; `question` is the one concerned, in its state at that time."""
    about: JSONObject = {
        name: value
        for name, value in (data if isinstance(data, dict) else {}).items()
        if value not in (None, "")
    }
    return entry(
        type_,
        at=at,
        run=run.run_id,
        node=node,
        visit=visit,
        question=question.id if question is not None else "",
        actor=str(about.get("by") or about.get("responder") or _actor(type_, question, detail)),
        auth={name: _plain(about[field]) for name, field in AUTH.items() if field in about},
        prev_vote=int(about.get("prev_vote") or 0),
        hashes=_hashes(type_, about, question, detail if type_ == "run.cancelled" else data),
        outcome=_outcome(type_, about, question, run, detail),
    )


def _actor(type_: str, question: Interrupt | None, detail: str) -> str:
    """Return the actor from the question or the event's detail, for an event whose data names nobody."""
    if type_ == "run.retried":
        return detail
    if question is None:
        return ""
    return {"decided": question.responder, "asked": question.requester}.get(type_) or ""


def _hashes(
    type_: str, about: JSONMapping, question: Interrupt | None, payload: JSON
) -> dict[str, str]:
    hashes = {} if question is None else _digests_of(question)
    if question is not None and "effect" in about:
        hashes["effect"] = _text(str(about["effect"]))
    if type_ == "effect.ended":
        hashes["payload"] = _text(str(about.get("result", "")))
    elif type_ in HASHED and payload not in (None, ""):
        hashes["payload"] = digests.payload_digest(payload)
    elif type_ == "decided" and question is not None:
        hashes["payload"] = digests.payload_digest(question.response)
    return hashes


def _outcome(
    type_: str,
    about: JSONMapping,
    question: Interrupt | None,
    run: RunRecord,
    detail: str,
) -> JSONObject:
    match type_:
        case "run.ended" | "run.retried":
            return {"status": str(run.status)}
        case "run.forked":
            return {"source": _text(detail)}
    if question is None:
        return {}
    if type_ == SHOWN:
        return {"shown_at": _plain(about["shown_at"])}
    outcome: JSONObject = {name: _plain(about[name]) for name in OUTCOME if name in about}
    return outcome | {"decision": question.decision} if type_ == "decided" else outcome


def started(run: RunRecord, created_at: int, requester: JSONMapping) -> JSONObject:
    """Build the first entry of a run, even one that is audited only from its first question on."""
    outcome: JSONObject = {
        "graph": _text(run.graph_id),
        "root": run.root if run.root != run.run_id else "",
        "on_behalf_of": [*requester.get("on_behalf_of", ())] or None,
    }
    return entry(
        STARTED,
        at=created_at,
        run=run.run_id,
        actor=requester.get("principal", ""),
        outcome=outcome,
    )


def removed(run: RunRecord, at: int) -> JSONObject:
    """Build the last entry of a run, which is removed together with its data."""
    return entry(REMOVED, at=at, run=run.run_id, outcome={"status": str(run.status)})


def of_change(type_: str, scope: str, reason: str, by: str, at: int) -> JSONObject:
    """Build the entry for an operator's freeze, thaw or change."""
    outcome: JSONObject = {"scope": _text(scope)}
    return entry(
        type_,
        at=at,
        actor=by,
        hashes={"payload": digests.payload_digest(reason)},
        outcome=outcome,
    )


def malformed(n: int, digest: str) -> JSONObject:
    """Build the placeholder in the tree for an item that isn't an entry."""
    return {
        "v": VERSION,
        "n": n,
        "type": "malformed",
        "run": "",
        "digests": {"payload": digest},
    }


def _digests_of(question: Interrupt) -> dict[str, str]:
    result = {"question": question.digest, "effect": question.effect}
    if question.action is not None:
        result["action"] = digests.digest("action", question.action)
    if question.rule is not None:
        result["policy"] = digests.digest("policy", policy_of(question))
    return result


def _key(actor: str) -> str:
    """Return the key of a named actor; a text that doesn't name a principal stays as it is."""
    try:
        return Principal.read(actor).key
    except UsageError:
        return actor


def _plain(value: object) -> JSON:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return _text(str(value))


def of_grant(type_: str, grant: Grant, by: str, about: JSONMapping, at: int) -> JSONObject:
    """Build the entry of a grant that was made, voted for, used or revoked."""
    outcome = without(about, "effect", "reason")
    reason = str(about.get("reason") or "")
    return entry(
        type_,
        at=at,
        actor=by,
        hashes={
            "grant": grant.digest(),
            "effect": str(about.get("effect") or ""),
            "payload": digests.payload_digest(reason) if reason else "",
        },
        outcome={"grant": grant.id, "tool": _text(grant.tool), **outcome},
    )


def of_absence(who: str, absence: Absence | None, by: str, at: int) -> JSONObject:
    """Build the entry of a person who is away, or back (None)."""
    if absence is None:
        return entry("absence.ended", at=at, actor=by, outcome={"person": _text(who)})
    outcome: JSONObject = {
        "person": _text(who),
        "to": _text(absence.to),
        "since": absence.since,
        "until": absence.until,
        "only": [_text(form) for form in absence.only],
    }
    return entry("absence.began", at=at, actor=by, outcome=outcome)


def _text(text: str) -> str:
    """Return a text in a form that can be canonical: half of a surrogate pair is replaced."""
    return text.encode("utf-8", "replace").decode()
