"""A form for a JSON Schema: the fields that a page shows, and the answer that its form gives.

Choices, yes and no, numbers with their bounds, dates and texts have fields of their own; whatever else is a
field of JSON. A schema that is no object has the one field `answer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.records.validation import mismatch

INPUTS = {"date": "date", "date-time": "text", "email": "email", "uri": "url", "time": "time"}

LONG = 200
"""A text that may have more characters gets several lines."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, as a form sends it."""

    value: str
    label: str
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `kind` is "choice", "long", "json" or a type of HTML's input; `value` is as it is typed."""

    name: str
    kind: str
    label: str
    required: bool = False
    value: str = ""
    description: str = ""
    choices: tuple[Choice, ...] = ()
    bounds: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


WHOLE = "answer"
"""The field of an answer that is no object with fields."""


def fields_of(schema: Mapping[str, Any] | None, sent: Mapping[str, str] | None = None) -> list[Field]:
    """Return the fields of an answer; `sent` are values as they were typed."""
    typed = sent or {}
    declared = dict(schema or {})
    properties = declared.get("properties")
    if isinstance(properties, Mapping) and properties:
        required = declared.get("required", ())
        return [
            _field(name, resolved(part, declared), typed.get(name), required=name in required)
            for name, part in properties.items()
        ]
    return [_field(WHOLE, resolved(declared, declared), typed.get(WHOLE), required=True)]


def resolved(part: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's schema, with what it refers to in `$defs`, and without "or null"."""
    if not isinstance(part, Mapping):
        return {}
    name = str(part.get("$ref", "")).removeprefix("#/$defs/")
    definition = schema.get("$defs", {}).get(name, {})
    whole = {**(definition if isinstance(definition, Mapping) else {}), **part}
    others = [other for other in whole.get("anyOf", ()) if other != {"type": "null"}]
    if len(others) == 1 and len(others) < len(whole["anyOf"]):
        return {
            **{key: value for key, value in whole.items() if key != "anyOf"},
            **resolved(others[0], schema),
        }
    return whole


def _field(name: str, part: Mapping[str, Any], typed: str | None, *, required: bool) -> Field:
    default = part.get("default", part.get("const"))
    text = typed if typed is not None else _text(default)
    label, description = str(part.get("title", name)), str(part.get("description", ""))
    values = part.get("enum") or ([part["const"]] if "const" in part else None)
    if part.get("type") == "boolean":
        values = [True, False]
    if isinstance(values, list) and all(not isinstance(value, (dict, list)) for value in values):
        words = {True: "Yes", False: "No"} if part.get("type") == "boolean" else {}
        choices = tuple(
            Choice(json.dumps(value), words.get(value, _text(value)), json.dumps(value) == typed)
            if typed is not None
            else Choice(
                json.dumps(value), words.get(value, _text(value)), value == default and "default" in part
            )
            for value in values
        )
        return Field(name, "choice", label, required, text, description, choices)
    kind, bounds = _input(part)
    return Field(name, kind, label, required, text, description, bounds=bounds)


def _input(part: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    match part.get("type"):
        case "integer" | "number" as word:
            bounds = {"min": part.get("minimum"), "max": part.get("maximum")}
            bounds["step"] = part.get("multipleOf") or (1 if word == "integer" else "any")
            return "number", {name: bound for name, bound in bounds.items() if bound is not None}
        case "string" if "format" in part:
            return INPUTS.get(part["format"], "text"), {}
        case "string":
            most = part.get("maxLength")
            bounds = {"minlength": part.get("minLength"), "maxlength": most}
            long = most is None or most > LONG
            return "long" if long else "text", {name: value for name, value in bounds.items() if value}
    return "json", {}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def answer_of(schema: Mapping[str, Any] | None, sent: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """Return the answer that a form gives, and what is wrong with which field."""
    declared = dict(schema or {})
    properties = declared.get("properties")
    problems: dict[str, str] = {}
    if not (isinstance(properties, Mapping) and properties):
        value = _value(resolved(declared, declared), sent.get(WHOLE, ""))
        return value, {WHOLE: "An answer is needed."} if value in (None, "") else {}
    answer = {}
    for name, part in properties.items():
        own, text = resolved(part, declared), sent.get(name, "")
        if text == "" and name not in declared.get("required", ()):
            continue
        answer[name] = _value(own, text)
        rule = {**own, "$defs": declared["$defs"]} if "$defs" in declared else own
        if problem := mismatch(rule, answer[name]):
            problems[name] = problem
    return answer, problems


def _value(part: Mapping[str, Any], text: str) -> Any:
    """Read a value as typed: a text where the schema wants one, JSON otherwise."""
    if part.get("type") == "string" and "enum" not in part and "const" not in part:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
