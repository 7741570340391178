"""JSON Schemas inside other ones: their references still lead to their own parts."""

from __future__ import annotations

from urllib.parse import quote

from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject

ADDRESS = "runner:answer"
"""The default address of a schema without an address, for references to its parts."""


def part(schema: JSONMapping, pointer: str) -> JSONObject:
    """Return the part of a schema at a pointer, such as `#/properties/order`, as a schema of its own."""
    address, root, dialect = _addressed(schema)
    return {
        **dialect,
        "allOf": [{"$ref": f"{address}{pointer}"}],
        "definitions": {"root": root},
    }


def pointer_step(name: str) -> str:
    """Write a name as a step of a pointer."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="")


def nested(schema: JSONMapping) -> tuple[JSONMapping, JSONMapping]:
    """Return a schema to put into another one, and the keywords to put at the top of that one.

    Its `$defs` go to the top, as most programs expect, unless it refers to other parts of itself or
    has an address.
    """
    references = codec.dump_json(schema).replace(b'"$ref":"#/$defs/', b"")
    if b'"$ref":"#' in references or {"$id", "id"} & schema.keys():
        _, whole, top = _addressed(schema)
        return whole, top
    names = {"$defs", "$schema"} & schema.keys()
    return codec.without(schema, *names), {name: schema[name] for name in names}


def _addressed(
    schema: JSONMapping,
) -> tuple[str, JSONMapping, JSONMapping]:
    """Return a schema's address, the schema with that address, and the dialect for a schema around it."""
    dialect = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    keyword = "id" if "draft-04" in str(dialect) else "$id"
    name = schema.get(keyword)
    address = name.partition("#")[0] if isinstance(name, str) and ":" in name else ADDRESS
    return address, {**schema, keyword: address}, dialect
