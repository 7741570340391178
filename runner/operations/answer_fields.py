"""The fields of an answer, from its question's JSON Schema: pages and doors ask for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any
from urllib.parse import unquote

from runner.errors import CorruptDocument
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.records.nested_schemas import part, pointer_step
from runner.records.schema_paths import at_pointer
from runner.records.validation import violation

NULL = {"type": "null"}

DEEPEST = 8
"""Depth to which nested references and "or null" are read; a schema may refer to itself."""

NUMERAL = re.compile(
    r"(?!-?([1-9]\d{0,2},\d{3}$|0\d))"
    r"(-?\d+|-?[1-9]\d{0,2}([.,'\u2019 \xa0\u2009\u202f])\d{3}(?:\3\d{3})*)(?:(?!\3)[.,](\d+))?",
    re.ASCII,
)

PLAIN_WORDS = [
    (
        re.compile(r'(?<=[\d.,]{16}" )is not of types? .*"number".*$'),
        "has more digits than a number keeps, which are 15",
    ),
    (
        re.compile(r'(does not match ".*"|is not valid under any .*)$'),
        "does not have the expected form",
    ),
    (re.compile(r'is not of type "integer"$'), "is not a whole number"),
    (re.compile(r'is not of type "number"$'), "is not a number such as 1234.56"),
    (re.compile(r'is not of type "(\w+)"$'), r"is not a \1"),
    (re.compile(r'is not a "(\S+)"$'), r"is not a valid \1"),
    (re.compile(r'^("\w+") is a required property$'), r"\1 is needed"),
]
"""Messages of the validator that name parts of the schema, and what people read instead."""


@immutable
class AnswerField:
    """One value of an answer. `schema` has neither a reference nor "or null"; `root` is the whole schema.

    `pointer` leads to its schema in the root, `places` has a pointer to each keyword, which a reference
    may put elsewhere.
    """

    name: str
    schema: JSONObject
    root: JSONMapping
    required: bool = True
    nullable: bool = False
    pointer: str = "#"
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> list[AnswerField]:
        """The fields of an object; empty for any other value."""
        properties = self.schema.get("properties")
        if not isinstance(properties, Mapping):
            return []
        required_names = self.schema.get("required", ())
        return [
            self._part("properties", name, required=name in required_names)
            for name in properties
        ]

    @property
    def items(self) -> AnswerField:
        """The items of a list."""
        return self._part("items")

    @property
    def choices(self) -> list[Any] | None:
        """The values to choose from; None if the choice isn't limited to a list."""
        const = [self.schema["const"]] if "const" in self.schema else None
        return self.schema.get("enum") or const

    @property
    def types(self) -> set[str]:
        """The names of all types that it may have."""
        unions = [
            self._part(keyword, str(number)).schema
            for keyword in ("anyOf", "oneOf")
            for number in range(len(self.schema.get(keyword, ())))
        ]
        return {name for schema in (self.schema, *unions) for name in _types(schema)}

    @property
    def may_be_empty(self) -> bool:
        """True if the schema explicitly allows an empty text."""
        has_empty = "" in (self.choices or ()) or self.schema.get("default") == ""
        return "string" in self.types and (has_empty or self.schema.get("minLength") == 0)

    def read(self, text: str, *, keeps_text: bool = True) -> Any:
        """Read a person's input: as text if the schema names text, else as JSON, or text if it isn't JSON.

        A number may have a decimal comma and groups of digits, unless it could be two: 1,234. Without
        `keeps_text`, as if the schema named no text.
        """
        if keeps_text and "string" in self.types:
            return text
        forms = [text]
        if self.types & {"number", "integer"} and (
            number := NUMERAL.fullmatch(text.strip().replace("\u2212", "-"))
        ):
            forms.append(
                re.sub(r"[^\d-]", "", number[2]) + (f".{number[4]}" if number[4] else "")
            )
        for form in forms:
            with suppress(CorruptDocument):
                return codec.load_json(form, codec.exact)
        return text

    def mismatch(self, value: Any) -> str:
        """Say in plain words how a value violates the schema; "" when it is valid."""
        steps, message = violation(part(self.root, self.pointer), value)
        for pattern, sentence in PLAIN_WORDS:
            message = pattern.sub(sentence, message)
        if steps == [] and (example := next(iter(self.schema.get("examples", ())), None)):
            message += f", such as {example}"
        names = (f"line {step + 1}" if isinstance(step, int) else step for step in steps or ())
        return "".join(f"{name}: " for name in names) + message

    def _part(self, keyword: str, *path: str, required: bool = True) -> AnswerField:
        pointer = self.places.get(keyword, self.pointer)
        steps = map(pointer_step, path)
        return _field(
            "".join(path), "/".join([pointer, keyword, *steps]), self.root, required=required
        )


def answer_field(schema: JSONMapping | None) -> AnswerField:
    """Return the whole answer as the single field `answer`."""
    return _field("answer", "#", dict(schema or {}))


def _field(name: str, pointer: str, root: JSONMapping, *, required: bool = True) -> AnswerField:
    schema: JSONObject = {}
    places: dict[str, str] = {}
    nullable, address = False, pointer
    for _ in range(DEEPEST):
        subschema = _at(root, address)
        stands_for, inner = _inner(subschema, address)
        for keyword, value in subschema.items():
            if keyword != stands_for and keyword not in schema:
                schema[keyword], places[keyword] = value, address
        if not stands_for:
            break
        nullable = nullable or NULL in (subschema[stands_for] if stands_for != "$ref" else ())
        address = inner
    kinds = [kind for kind in _types(schema) if kind != "null"]
    nullable = nullable or len(kinds) < len(_types(schema))
    if kinds:
        schema["type"] = kinds[0] if len(kinds) == 1 else kinds
    return AnswerField(name, schema, root, required, nullable, pointer, places)


def _inner(subschema: JSONMapping, pointer: str) -> tuple[str, str]:
    """Return the keyword by which a schema stands for another, and the pointer to that one; "" for none."""
    reference = subschema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        return "$ref", reference
    for keyword in ("anyOf", "oneOf", "allOf"):
        options = subschema.get(keyword)
        if isinstance(options, list):
            numbers = [number for number, option in enumerate(options) if option != NULL]
            if len(numbers) == 1 and (keyword != "allOf" or len(options) == 1):
                return keyword, f"{pointer}/{keyword}/{numbers[0]}"
    return "", ""


def _at(root: JSONMapping, pointer: str) -> JSONMapping:
    """Return the part of a schema at a JSON pointer; {}, which accepts anything, if no object is there."""
    value = at_pointer(root, unquote(pointer))
    return value if isinstance(value, Mapping) else {}


def _types(schema: JSONMapping) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)
