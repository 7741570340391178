"""A form for a JSON Schema: the fields that a page shows, and the answer that its form gives.

Choices, yes and no, numbers with their bounds, dates, texts and lists of them have fields of their own, and
an object has those of its parts; whatever else is a field of JSON. A schema that is no object has the one
field `answer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import Form, Request
from pydantic import AfterValidator

from runner.errors import CorruptDocument
from runner.records import codec
from runner.records.validation import mismatch

INPUTS = {"date": "date", "date-time": "text", "email": "email", "uri": "url", "time": "time"}

DEEPEST = 3
"""Objects in each other that have fields; what is deeper is JSON, as a schema may contain itself."""

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
    """One field: `kind` is "choice", "long", "lines" (one value in each), "json", a type of HTML's input, or
    "group", which has `parts`; `value` is as it is typed.
    """

    name: str
    kind: str
    label: str
    required: bool = False
    value: str = ""
    description: str = ""
    choices: tuple[Choice, ...] = ()
    bounds: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    parts: tuple[Field, ...] = ()


WHOLE = "answer"
"""The field of an answer that is no object with fields."""


def fields_of(
    schema: Mapping[str, Any] | None, sent: Mapping[str, str] | None = None
) -> list[Field]:
    """Return the fields of an answer; `sent` are values as they were typed."""
    typed, declared = sent or {}, dict(schema or {})
    whole = resolved(declared, declared)
    if _is_group(whole, ""):
        return _parts(whole, declared, typed, "")
    return [_field(WHOLE, WHOLE, whole, declared, typed, required=True)]


def marked(fields: Iterable[Field], problems: Mapping[str, str]) -> list[Field]:
    """Return the fields with what `answer_of` has found wrong with them."""
    return [
        replace(
            part, problem=problems.get(part.name, ""), parts=tuple(marked(part.parts, problems))
        )
        for part in fields
    ]


def _parts(
    part: Mapping[str, Any], schema: Mapping[str, Any], typed: Mapping[str, str], path: str
) -> list[Field]:
    required = part.get("required", ())
    return [
        _field(path + name, name, resolved(inner, schema), schema, typed, required=name in required)
        for name, inner in part["properties"].items()
    ]


def _is_group(part: Mapping[str, Any], path: str) -> bool:
    """Whether an object is shown as fields."""
    properties = part.get("properties")
    return isinstance(properties, Mapping) and bool(properties) and path.count("/") < DEEPEST


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


def _field(
    path: str,
    name: str,
    part: Mapping[str, Any],
    schema: Mapping[str, Any],
    sent: Mapping[str, str],
    *,
    required: bool,
) -> Field:
    label, description = str(part.get("title", name)), str(part.get("description", ""))
    if _is_group(part, f"{path}/"):
        parts = tuple(_parts(part, schema, sent, f"{path}/"))
        return Field(path, "group", label, required, description=description, parts=parts)
    typed, default = sent.get(path), part.get("default", part.get("const"))
    if _is_lines(part, schema):
        lines = "\n".join(map(_text, default)) if isinstance(default, list) else ""
        return Field(path, "lines", label, required, lines if typed is None else typed, description)
    text = typed if typed is not None else _text(default)
    values = part.get("enum") or ([part["const"]] if "const" in part else None)
    if part.get("type") == "boolean":
        values = [True, False]
    if isinstance(values, list) and all(not isinstance(value, (dict, list)) for value in values):
        words = {True: "Yes", False: "No"} if part.get("type") == "boolean" else {}
        choices = tuple(
            Choice(json.dumps(value), words.get(value, _text(value)), json.dumps(value) == typed)
            if typed is not None
            else Choice(
                json.dumps(value),
                words.get(value, _text(value)),
                value == default and "default" in part,
            )
            for value in values
        )
        return Field(path, "choice", label, required, text, description, choices)
    kind, bounds = _input(part)
    return Field(path, kind, label, required, text, description, bounds=bounds)


def _is_lines(part: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether a list has texts or numbers only, so that each can have a line."""
    items = resolved(part.get("items"), schema)
    return part.get("type") == "array" and items.get("type") in {"string", "number", "integer"}


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
            return "long" if long else "text", {
                name: value for name, value in bounds.items() if value
            }
    return "json", {}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any) -> str:
    """Write a value as JSON that is edited: what can't be seen is an escape of JSON, which means the same."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def line_ends(text: str) -> str:
    """Return what was typed: browsers send each line end as CR LF."""
    return text.replace("\r\n", "\n")


Typed = Annotated[str, Form(), AfterValidator(line_ends)]
"""A field of a form."""


async def fields_sent(request: Request) -> dict[str, str]:
    """Return the fields of a form as they were typed."""
    form = await request.form()
    return {name: line_ends(value) for name, value in form.items() if isinstance(value, str)}


def answer_fields(form: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a form that are those of an answer, by their names in its schema."""
    return {name.removeprefix("f."): value for name, value in form.items() if name.startswith("f.")}


def answer_of(
    schema: Mapping[str, Any] | None, sent: Mapping[str, str]
) -> tuple[Any, dict[str, str]]:
    """Return the answer that a form gives, and what is wrong with which field."""
    declared = dict(schema or {})
    problems: dict[str, str] = {}
    whole = resolved(declared, declared)
    if _is_group(whole, ""):
        return _object(whole, declared, sent, "", problems), problems
    value = _value(whole, declared, sent.get(WHOLE, ""))
    return value, {WHOLE: "An answer is needed."} if value in (None, "") else {}


def _object(
    part: Mapping[str, Any],
    schema: Mapping[str, Any],
    sent: Mapping[str, str],
    path: str,
    problems: dict[str, str],
) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for name, inner in part["properties"].items():
        own, place = resolved(inner, schema), path + name
        is_empty = not any(
            text for field, text in sent.items() if f"{field}/".startswith(f"{place}/")
        )
        if is_empty and name not in part.get("required", ()):
            continue
        if _is_group(own, f"{place}/"):
            answer[name] = _object(own, schema, sent, f"{place}/", problems)
            continue
        answer[name] = _value(own, schema, sent.get(place, ""))
        rule = {**own, "$defs": schema["$defs"]} if "$defs" in schema else own
        if problem := mismatch(rule, answer[name]):
            problems[place] = problem
    return answer


def _value(part: Mapping[str, Any], schema: Mapping[str, Any], text: str) -> Any:
    """Read what was typed: a text where the schema wants one, a list by its lines, JSON otherwise."""
    if _is_lines(part, schema):
        items = resolved(part["items"], schema)
        return [_value(items, schema, line.strip()) for line in text.split("\n") if line.strip()]
    if part.get("type") == "string" and "enum" not in part and "const" not in part:
        return text
    try:
        return codec.load_json(text)
    except CorruptDocument:
        return text
