"""Questions in AG-UI's form: approvals with edits, and answers of any form."""

from __future__ import annotations

from typing import Any

from runner.approvals.ballots import effect_of
from runner.operations.questions import QuestionView, differs
from runner.records import codec
from runner.records.codec import JSONObject
from runner.records.interrupts import Decision, Interrupt
from runner.records.nested_schemas import nested
from runner.records.validation import MAX_REASON, violation


def schema(question: QuestionView) -> JSONObject:
    """Return the schema of the payload that answers a question."""
    if question.rule is None:
        return dict(question.response_schema or {"type": "string", "title": "Answer"})
    answer, top = nested(question.response_schema or {})
    decisions = set(question.rule["decisions"])
    choices = [value for value in (True, False) if value or "reject" in decisions]
    properties: JSONObject = {
        "approved": {"type": "boolean", "enum": choices},
        "reason": {"type": "string", "title": "Reason", "maxLength": MAX_REASON},
    }
    if question.action is not None and "edit" in decisions:
        text = "All arguments of the call, instead of the proposed ones."
        properties["editedArgs"] = {"type": "object", **answer, "description": text}
    elif question.action is None and question.response_schema is not None:
        properties["response"] = answer
    return {
        "type": "object",
        "properties": properties,
        "required": ["approved"],
        "additionalProperties": False,
        **top,
    }


def decision_of(
    question: QuestionView, digest: str, payload: Any, key: str
) -> tuple[Decision | None, str]:
    """Return a payload's decision; None and the reason if it doesn't fit the schema."""
    is_free = question.rule is None and question.response_schema is None
    path, fault = violation(schema(question), payload)
    if fault and not is_free:
        return None, " ".join([".".join(map(str, path or ())), fault]).strip()
    kind = "respond"
    response = payload
    comment = ""
    if question.rule is not None:
        comment = payload.get("reason", "")
        is_changed = "editedArgs" in payload and differs(question, payload["editedArgs"])
        if not payload["approved"]:
            kind, response = "reject", None
            if is_changed or "response" in payload:
                return None, "it rejects, so it can't have `editedArgs` or a `response` as well"
        elif "editedArgs" in payload:
            kind = "edit"
            response = payload["editedArgs"]
        else:
            response = payload.get("response")
            kind = "respond" if "response" in payload else "approve"
    value = None if response is None else codec.pack(response, "the response")
    return Decision(question.id, value, None, key, digest, kind, comment=comment), ""


def agrees(question: Interrupt, decision: Decision) -> bool:
    """Return whether a question was closed with the same decision."""
    if question.is_open:
        return False
    if question.rule is None:
        return bool(question.response == decision.response)
    response = True if decision.decision == "approve" else decision.response
    effect = effect_of(question, decision.decision, response)
    return (question.decision, question.effect) == (decision.decision, effect)
