"""A form for a JSON Schema: the fields that a page shows, and the answer that they give.

Choices, yes and no, numbers with their bounds, dates, texts and lists of them have their own kinds of fields.
An object has the fields of its parts, a list of objects the fields of its items; anything else has a field
for JSON. A schema that isn't an object has the one field `answer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import Depends, Form, Request
from pydantic import AfterValidator

from runner.errors import CorruptDocument
from runner.immutable import immutable
from runner.operations.answer_fields import AnswerField, answer_field
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.server.problems import Problem

INPUTS = {"date": "date", "email": "email", "uri": "url"}
"""Inputs for the formats of texts; none for times, since JSON Schema's have an offset and HTML's don't."""

LINE = r"[^\r\n]*"
TRIMMED = r"(\S(.*\S)?)?"
HELD = {
    "number": LINE,
    "date": r"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))?",
    "email": TRIMMED,
    "url": TRIMMED,
    "text": LINE,
}
"""Texts that browsers don't change in an input, by its type; any other would come back changed."""

DEEPEST = 3
"""Depth of nested objects that have fields; deeper ones are JSON, as a schema may contain itself."""

LONG = 200
"""A text that may have more characters gets several lines."""

PROSE = re.compile(
    "answer|body|comment|content|description|detail|explanation|feedback|letter|message|note|reason|remark"
    "|reply|summary|text|why",
    re.IGNORECASE,
)
"""Names of texts with several lines, if their schema says nothing of their length."""


@immutable
class Choice:
    """One of several values, as a form sends it."""

    value: str
    label: str
    checked: bool = False


@immutable
class Field:
    """One field: `kind` is "choice", "long", "lines" (one value in each), "json", "number" (as text: an
    input of that type leaves out characters, such as the comma of 12,5), a type of HTML's input,
    "group" or "list", which have `parts`, or "whole", the answer as JSON; `value` is the typed text, `was`
    the earlier one, if a value is edited.
    """

    name: str
    kind: str
    label: str
    required: bool = False
    value: str = ""
    description: str = ""
    choices: tuple[Choice, ...] = ()
    bounds: JSONMapping = field(default_factory=dict)
    problem: str = ""
    parts: tuple[Field, ...] = ()
    was: str | None = None


FormTexts = Mapping[str, str]
"""Texts of a form's fields, by name, as a person typed them."""

WHOLE, AS_JSON = "answer", ""
"""The field of an answer other than an object with fields, and the field of any answer as JSON."""

NEEDED = "A value is needed."


def fields_of(schema: JSONMapping | None, texts: FormTexts | None = None) -> list[Field]:
    """Return the fields of an answer; `texts` are values as they were typed."""
    whole = answer_field(schema)
    answer_texts = texts or {}
    if _is_group(whole, ""):
        return [_field(inner.name, inner, answer_texts) for inner in whole.fields]
    return [_field(WHOLE, whole, answer_texts)]


def with_json(
    fields: list[Field], texts: FormTexts | None, label: str = "Answer as JSON"
) -> list[Field]:
    """Add the field with the whole value as JSON, for values that the other fields can't hold."""
    if [each.kind for each in fields] == ["json"]:
        return fields
    return [*fields, Field(AS_JSON, "whole", label, value=(texts or {}).get(AS_JSON, ""))]


def marked(
    fields: Iterable[Field], problems: FormTexts, texts: FormTexts | None = None
) -> list[Field]:
    """Return the fields with the problems that `answer_of` returned, and the texts that they had before."""
    return [
        replace(
            field,
            problem=problems.get(field.name, ""),
            parts=tuple(marked(field.parts, problems, texts)),
            was=(texts or {}).get(field.name),
        )
        for field in fields
    ]


def is_blank(schema: JSONMapping | None, answer_texts: FormTexts) -> bool:
    """Return whether the fields of an answer are as in a new form."""
    blank = dict(_shown_texts(fields_of(schema)))
    return all(text == line_ends(blank.get(path, "")) for path, text in answer_texts.items())


def _shown_texts(fields: Iterable[Field]) -> Iterator[tuple[str, str]]:
    for each in fields:
        checked = [choice.value for choice in each.choices if choice.checked]
        yield each.name, "".join(checked) if each.choices else each.value
        yield from _shown_texts(each.parts)


def _is_group(field: AnswerField, path: str) -> bool:
    """Return whether an object is shown as fields."""
    return path.count("/") < DEEPEST and bool(field.fields)


def _field(path: str, answer: AnswerField, answer_texts: FormTexts) -> Field:
    schema = answer.schema
    # An empty field means null, if the schema allows it, a list without items, or the empty text.
    is_required = answer.required and not (answer.nullable or answer.may_be_empty)
    label = str(schema.get("title", answer.name))
    description = str(schema.get("description", ""))
    if _is_group(answer, f"{path}/"):
        inner_fields = tuple(
            _field(f"{path}/{inner.name}", inner, answer_texts) for inner in answer.fields
        )
        return Field(
            path, "group", label, is_required, description=description, parts=inner_fields
        )
    if _is_list(answer, path, answer_texts):
        items = tuple(
            _field(row, answer.items, answer_texts) for row in _rows(path, answer_texts)
        )
        return Field(path, "list", label, is_required, description=description, parts=items)
    text = answer_texts.get(path)
    default = schema.get("default", schema.get("const"))
    if _is_lines(answer):
        lines = "\n".join(map(_text, default)) if isinstance(default, list) else ""
        is_required = is_required and schema.get("minItems", 0) > 0
        return Field(
            path, "lines", label, is_required, lines if text is None else text, description
        )
    choices = tuple(_choices(answer, text))
    text = _text(default) if text is None else text
    if choices:
        return Field(path, "choice", label, is_required, text, description, choices)
    kind, bounds = _input(answer)
    if kind == "json" and "string" in answer.types:
        kind = "long"
    if kind in HELD and not re.fullmatch(HELD[kind], text, re.ASCII):
        kind = "text" if re.fullmatch(LINE, text) else "long"
        bounds = {}
    return Field(path, kind, label, is_required, text, description, bounds=bounds)


def _choices(answer: AnswerField, text: str | None) -> Iterator[Choice]:
    """Yield the values of a choice; `text` is the value that was sent, None for a new form."""
    is_boolean = answer.schema.get("type") == "boolean"
    values = [True, False] if is_boolean else answer.choices
    if not isinstance(values, list) or any(isinstance(value, (dict, list)) for value in values):
        return
    labels = {True: "Yes", False: "No"} if is_boolean else {}
    for value in values:
        value_text = json.dumps(value)
        is_default = "default" in answer.schema and value == answer.schema["default"]
        is_checked = is_default if text is None else value_text == text
        yield Choice(value_text, labels.get(value, _text(value) or value_text), is_checked)


def _is_lines(field: AnswerField) -> bool:
    """Return whether a list has texts or numbers only, so that each can have a line."""
    kinds = ("string", "number", "integer")
    return field.schema.get("type") == "array" and field.items.schema.get("type") in kinds


def _is_list(field: AnswerField, path: str, answer_texts: FormTexts) -> bool:
    """Return whether a list of objects is shown as fields, and not typed as JSON."""
    is_array = field.schema.get("type") == "array" and path not in answer_texts
    return is_array and _is_group(field.items, f"{path}/0/")


def _rows(path: str, answer_texts: FormTexts) -> list[str]:
    """List the paths of a list's items, by the names of their fields; a new form has one."""
    names = (name[len(path) + 1 :] for name in answer_texts if name.startswith(f"{path}/"))
    numbers = {name.partition("/")[0] for name in names} - {""}
    return [f"{path}/{number}" for number in sorted(numbers, key=lambda n: (len(n), n)) or "0"]


def with_item(answer_texts: FormTexts, path: str) -> dict[str, str]:
    """Add an empty item to a list of objects."""
    number = len(_rows(path, answer_texts))
    while f"{path}/{number}" in _rows(path, answer_texts):
        number += 1
    return {**answer_texts, f"{path}/{number}/": ""}


def with_first_values(schema: JSONMapping | None, reason: Any) -> JSONMapping | None:
    """Return a schema whose texts and numbers begin with the values of the same names in a question's reason.

    A choice is left to the person.
    """
    properties = (schema or {}).get("properties")
    if not (schema and isinstance(properties, Mapping) and isinstance(reason, Mapping)):
        return schema
    defaults = {
        field.name: {**properties[field.name], "default": reason[field.name]}
        for field in answer_field(schema).fields
        if reason.get(field.name) not in (None, "")
        and field.schema.get("type") in ("string", "integer", "number")
        and not (field.choices or "default" in field.schema)
        and not field.mismatch(reason[field.name])
    }
    return {**schema, "properties": {**properties, **defaults}}


def _input(answer: AnswerField) -> tuple[str, JSONObject]:
    schema = answer.schema
    match schema.get("type"):
        case "integer" | "number":
            # Keyboards of digits may lack a minus.
            return "number", {"inputmode": "decimal"} if schema.get("minimum", -1) >= 0 else {}
        case "string":
            longest = schema.get("maxLength", LONG + 1 if PROSE.search(answer.name) else LONG)
            example = next(iter(schema.get("examples", ())), None)
            bounds = {
                "minlength": schema.get("minLength"),
                "maxlength": schema.get("maxLength"),
                "placeholder": example and f"such as {example}",
            }
            kind = "text" if longest <= LONG or "format" in schema else "long"
            kind = INPUTS.get(schema.get("format", ""), kind)
            return kind, codec.without_empty(bounds)
    return "json", {}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any) -> str:
    """Write a value as JSON for editing; invisible characters become JSON escapes, which mean the same."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def midnight(text: str, zone: str, days: int = 0) -> int:
    """Return the beginning of a day in a time zone (UTC without one), or of one some days later, in ms.

    Raises:
        Problem: the text is not a date, or the zone is unknown.
    """
    try:
        day = date.fromisoformat(text) + timedelta(days)
        start = datetime.combine(day, time.min, ZoneInfo(zone or "UTC"))
    except (ValueError, OverflowError, LookupError, OSError) as error:
        problem = f"{text!r:.40} is not a date such as 2026-11-28, or {zone!r:.40} is not a time zone."
        raise Problem(422, problem) from error
    return round(start.timestamp() * 1000)


def line_ends(text: str) -> str:
    """Return a text as it was typed; browsers send each line end as CR LF."""
    return text.replace("\r\n", "\n")


Typed = Annotated[str, Form(), AfterValidator(line_ends)]
"""A field of a form."""


async def fields_sent(request: Request) -> dict[str, str]:
    """Return the fields of a form as they were typed."""
    form = await request.form()
    return {name: line_ends(value) for name, value in form.items() if isinstance(value, str)}


SentForm = Annotated[FormTexts, Depends(fields_sent)]
"""The fields of the form that a request sends."""


def answer_fields(form: FormTexts) -> dict[str, str]:
    """Return the fields of a form that belong to an answer, by their names in its schema."""
    return {
        name.removeprefix("f."): value for name, value in form.items() if name.startswith("f.")
    }


def answer_of(
    schema: JSONMapping | None, answer_texts: FormTexts
) -> tuple[Any, dict[str, str]]:
    """Return the answer that a form gives, and the problems by field."""
    problems: dict[str, str] = {}
    whole = answer_field(schema)
    text = answer_texts.get(AS_JSON, "")
    fields_sent = codec.without(answer_texts, AS_JSON)
    if text.strip():
        if not is_blank(schema, fields_sent):
            return None, {AS_JSON: "Answer in the fields or as JSON, one of the two."}
        try:
            value = codec.load_json(text, codec.exact)
        except CorruptDocument as error:
            return None, {AS_JSON: f"The answer is {error}."}
        problem = "An answer is needed." if value is None else whole.mismatch(value)
        return value, {AS_JSON: problem} if problem else {}
    if _is_group(whole, ""):
        return _object(whole, fields_sent, "", problems), problems
    value = _value(whole, fields_sent.get(WHOLE, ""))
    return value, {WHOLE: "An answer is needed."} if value in (None, "") else {}


def edit_schema(schema: JSONMapping | None, args: JSONMapping) -> JSONMapping:
    """Return the schema of a call's arguments, or one made from their values if it has no fields."""
    if schema and answer_field(schema).fields:
        return schema
    kinds = {bool: "boolean", int: "number", float: "number", str: "string"}
    properties = {
        name: {"type": kinds[type(value)]} if type(value) in kinds else {}
        for name, value in args.items()
    }
    return {"type": "object", "properties": properties, "required": list(args)}


def edit_texts(schema: JSONMapping, args: JSONMapping) -> dict[str, str]:
    """Return arguments as the texts of a form's fields; {} if they are edited as JSON.

    They are if they have no fields, or have characters that are invisible there or no browser sends back.
    """
    plain = json.dumps(args, ensure_ascii=False)
    if json_text(plain) != json.dumps(plain, ensure_ascii=False):
        return {}
    texts = {
        path: "" if value is MISSING else _typed_text(inner, value)
        for path, names, inner in _leaves(answer_field(schema))
        for value in [_at(args, names)]
    }
    is_seen = all(
        char.isprintable() or char in "\n\t"
        for text in texts.values()
        for char in line_ends(text)
    )
    return texts if is_seen else {}


def _typed_text(field: AnswerField, value: Any) -> str:
    if _is_lines(field) and isinstance(value, list):
        return "\n".join(map(_text, value))
    if value is None:
        return ""
    is_choice = field.choices or field.schema.get("type") == "boolean"
    return json.dumps(value) if is_choice else _text(value)


def _leaves(
    group: AnswerField, names: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], AnswerField]]:
    """List the fields that hold a value, each with its path in the form and in the value."""
    for inner in group.fields:
        path = (*names, inner.name)
        if _is_group(inner, f"{'/'.join(path)}/"):
            yield from _leaves(inner, path)
        else:
            yield "/".join(path), path, inner


MISSING = object()


def _at(value: Any, names: Iterable[str]) -> Any:
    for name in names:
        value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
    return value


def edit_of(
    schema: JSONMapping, args: JSONMapping, answer_texts: FormTexts
) -> tuple[Any, dict[str, str]]:
    """Return the arguments that a form gives, and the problems; unchanged fields keep their values."""
    problems: dict[str, str] = {}
    texts = {path: line_ends(text) for path, text in edit_texts(schema, args).items()}
    changed = {
        path: text for path, text in answer_texts.items() if text != texts.get(path, text)
    }
    return _edited(
        answer_field(schema), args, "", {**texts, **changed}, changed, problems
    ), problems


def _edited(
    group: AnswerField,
    value: Any,
    prefix: str,
    sent: FormTexts,
    changed: FormTexts,
    problems: dict[str, str],
) -> Any:
    """Return an object with its changed fields; an optional field is removed with its last text."""
    edited = dict(value) if isinstance(value, Mapping) else {}
    for inner in group.fields:
        path = prefix + inner.name
        if not any(f"{name}/".startswith(f"{path}/") for name in changed):
            continue
        if not inner.required and not any(_inside(path, sent)):
            edited.pop(inner.name, None)
        elif _is_group(inner, f"{path}/"):
            edited[inner.name] = _edited(
                inner, edited.get(inner.name), f"{path}/", sent, changed, problems
            )
        else:
            edited[inner.name] = _checked(
                inner, path, changed[path], problems, edited.get(inner.name)
            )
    return edited


def _object(
    group: AnswerField, answer_texts: FormTexts, prefix: str, problems: dict[str, str]
) -> JSONObject:
    answer: JSONObject = {}
    for inner in group.fields:
        path = prefix + inner.name
        if not inner.required and not any(_inside(path, answer_texts)):
            continue
        if _is_group(inner, f"{path}/"):
            answer[inner.name] = _object(inner, answer_texts, f"{path}/", problems)
        elif _is_list(inner, path, answer_texts):
            answer[inner.name] = _items(inner, answer_texts, path, problems)
        else:
            answer[inner.name] = _checked(inner, path, answer_texts.get(path, ""), problems)
    return answer


def _items(
    group: AnswerField, answer_texts: FormTexts, path: str, problems: dict[str, str]
) -> list[JSONObject]:
    """Read a list of objects; items without values are left out."""
    items = [
        _object(group.items, answer_texts, f"{row}/", problems)
        for row in _rows(path, answer_texts)
        if any(_inside(row, answer_texts))
    ]
    if not any(_inside(path, problems)) and (problem := group.mismatch(items)):
        problems[path] = problem
    return items


def _inside(path: str, answer_texts: FormTexts) -> Iterator[str]:
    """List the texts of a field and of the fields inside it."""
    return (text for name, text in answer_texts.items() if f"{name}/".startswith(f"{path}/"))


def _checked(
    field: AnswerField, path: str, text: str, problems: dict[str, str], before: Any = None
) -> Any:
    """Read the value of a field; a mistake in it is added to the problems."""
    is_missing = text == "" and not _is_lines(field) and not field.may_be_empty
    value = None if is_missing and field.nullable else _value(field, text, before)
    problem = NEEDED if is_missing and not field.nullable else field.mismatch(value)
    if problem:
        problems[path] = problem
    return value


def _value(field: AnswerField, text: str, before: Any = None) -> Any:
    """Read a typed text: a choice, a list by its lines, else as the field does; a number stays a number."""
    if _is_lines(field):
        return [_value(field.items, line.strip()) for line in text.split("\n") if line.strip()]
    return field.read(
        text, keeps_text=not field.choices and (before is None or isinstance(before, str))
    )
