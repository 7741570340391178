"""Questions as flat forms, for clients that show a text and fields without inner structure."""

from __future__ import annotations

import json
from dataclasses import replace

from runner.doors.questions import needs_page
from runner.operations.answer_fields import AnswerField, answer_field
from runner.operations.questions import QuestionView
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Decision, Receipt, ReceiptStatus
from runner.records.shown_text import shown
from runner.records.validation import MAX_REASON, violation

COMMON = {"type", "title", "description", "default"}

FLAT: dict[str, set[str]] = {
    "string": {"minLength", "maxLength", "format", "enum"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set(),
    "array": {"minItems", "maxItems", "items"},
}
"""Types of fields, and the keywords that their schemas may have beside `COMMON`."""

FORMATS = {"email", "uri", "date", "date-time"}

OBJECT = {
    "type",
    "title",
    "description",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
}


def form(question: QuestionView) -> JSONObject | None:
    """Return the schema of a form for a whole question; None for a question that needs its page.

    A schema with invisible characters needs the page, too: its values can't be shown as escapes.
    """
    if needs_page(question):
        return None
    if question.rule is None:
        return _answer_form(question.response_schema)
    has_answer = question.response_schema is not None and question.action is None
    decisions = [name for name in ("approve", "reject") if name in question.rule["decisions"]]
    if has_answer or not decisions:
        return None
    reason = {"type": "string", "title": "Reason", "maxLength": MAX_REASON}
    return {
        "type": "object",
        "properties": {"decision": {"type": "string", "enum": decisions}, "reason": reason},
        "required": ["decision"],
    }


def _answer_form(schema: JSONMapping | None) -> JSONObject | None:
    whole = answer_field({"type": "string", "title": "Answer"} if schema is None else schema)
    if whole.schema.get("type") != "object":
        properties, required = {"answer": _flat_schema(whole)}, ["answer"]
    else:
        properties = {field.name: _flat_schema(field) for field in whole.fields}
        required = [field.name for field in whole.fields if field.required]
        if not properties or not whole.schema.keys() <= OBJECT:
            return None
    form = {"type": "object", "properties": properties, "required": required}
    text = json.dumps(form, ensure_ascii=False)
    return None if None in properties.values() or shown(text) != text else form


def _flat_schema(field: AnswerField) -> JSONObject | None:
    """Return the schema of a field, or None if it says more than a flat form can."""
    schema = codec.without(field.schema, "$ref", "$defs")
    if schema.get("default", ...) is None:
        del schema["default"]
    kind = schema.get("type")
    choices = field.items.schema if kind == "array" else {"type": "string", "enum": []}
    is_flat = (
        isinstance(kind, str)
        and kind in FLAT
        and schema.keys() <= FLAT[kind] | COMMON
        and schema.get("format", "date") in FORMATS
        and choices.keys() == {"type", "enum"}
        and choices["type"] == "string"
        and not (field.nullable and field.required)
    )
    return schema if is_flat else None


def decision_of(question: QuestionView, content: JSONMapping) -> Decision | Receipt:
    """Return a person's decision by a question's form, or the receipt of content that doesn't fit.

    A field that the form doesn't have, such as a call's argument, is refused rather than ignored.
    """
    decision = Decision(question.id, None, None, None, question.digest)
    whole = answer_field(question.response_schema)
    is_object = question.rule is None and whole.schema.get("type") == "object"
    closed = {} if is_object else {"additionalProperties": False}
    path, fault = violation({**(form(question) or {}), **closed}, dict(content))
    if fault:
        where = ".".join(map(str, path or ()))
        return decision.receipt(ReceiptStatus.REJECTED, f"{where}: {fault}" if where else fault)
    if question.rule is not None:
        return replace(
            decision, decision=content["decision"], comment=content.get("reason") or ""
        )
    value = dict(content) if is_object else content["answer"]
    return replace(decision, response=codec.pack(value, "response"), decision="respond")
