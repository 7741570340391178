"""The fields of an answer, from the JSON Schema of its question: terminals ask for them, pages show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.records.validation import mismatch

NULL = {"type": "null"}

DEEPEST = 8
""""Or null" in each other that are read; a schema may refer to itself."""


@dataclass(frozen=True, slots=True)
class AnswerField:
    """One value of an answer. `schema` has neither a reference nor "or null"; `root` is the question's."""

    name: str
    schema: dict[str, Any]
    root: Mapping[str, Any]
    required: bool = True
    nullable: bool = False

    @property
    def fields(self) -> list[AnswerField]:
        """The fields of an object; none of any other value."""
        properties = self.schema.get("properties")
        if not isinstance(properties, Mapping):
            return []
        required_names = self.schema.get("required", ())
        return [
            _field(name, property_schema, self.root, required=name in required_names)
            for name, property_schema in properties.items()
        ]

    @property
    def items(self) -> AnswerField:
        """The items of a list."""
        return _field("", self.schema.get("items"), self.root)

    @property
    def choices(self) -> list[Any] | None:
        """The values to choose from; None where there are more than a list has."""
        if "const" in self.schema:
            return self.schema.get("enum") or [self.schema["const"]]
        return self.schema.get("enum") or None

    def mismatch(self, value: Any) -> str:
        """Describe how a value violates the schema; "" when it is valid."""
        if value is None and self.nullable:
            return ""
        definitions = {"$defs": self.root["$defs"]} if "$defs" in self.root else {}
        return mismatch({**self.schema, **definitions}, value)


def answer_field(schema: Mapping[str, Any] | None) -> AnswerField:
    """Return the answer as a whole, as the one field `answer`."""
    root = dict(schema or {})
    return _field("answer", root, root)


def _field(
    name: str, property_schema: Any, root: Mapping[str, Any], *, required: bool = True
) -> AnswerField:
    schema = _without_reference(property_schema, root)
    nullable = False
    for _ in range(DEEPEST):
        options = schema.get("anyOf", ())
        values = [option for option in options if option != NULL]
        if len(values) != 1 or len(options) == 1:
            break
        nullable = True
        del schema["anyOf"]
        schema |= _without_reference(values[0], root)
    return AnswerField(name, schema, root, required, nullable)


def _without_reference(property_schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(property_schema, Mapping):
        return {}
    reference = str(property_schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = root.get("$defs", {}).get(reference)
    return {**(definition if isinstance(definition, Mapping) else {}), **property_schema}
