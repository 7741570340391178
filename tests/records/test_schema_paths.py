"""Schemas that would take a validator long are refused, and no others: paths are counted, not followed."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from runner import tool
from runner.errors import DefinitionError, UsageError
from runner.records import validation
from runner.records.interrupts import Address
from runner.records.nested_schemas import nested
from runner.records.schema_paths import MOST, paths_of

TEXT = {"type": "string"}


def row(length: int, use: Any, last: Any = None) -> dict[str, Any]:
    """Define a row of schemas, each of which uses the next one."""
    links = {f"d{n}": use({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return {"$defs": {**links, f"d{length}": last or TEXT}, "$ref": "#/$defs/d0"}


TWICE = row(40, lambda following: {"allOf": [following, following]})
"""The schema of 3 KB that took hours."""

CIRCLE = {
    "$defs": {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{other}"} for other in range(6) if other != n]}
        for n in range(6)
    },
    "$ref": "#/$defs/d0",
}
"""Each refers to all others: 6 take a validator seconds, 7 minutes."""

TREE = {
    "$defs": {
        "Node": {
            "properties": {
                "text": TEXT,
                "left": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                "right": {"$ref": "#/$defs/Node"},
                "all": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            }
        }
    },
    "$ref": "#/$defs/Node",
}
UNION = {
    "$defs": {
        **{
            kind: {
                "type": "object",
                "properties": {"kind": {"const": kind}, "of": {"$ref": "#/$defs/Filter"}},
                "required": ["kind"],
            }
            for kind in ("not", "maybe")
        },
        "Filter": {"anyOf": [{"$ref": "#/$defs/not"}, {"$ref": "#/$defs/maybe"}, TEXT]},
    },
    "$ref": "#/$defs/Filter",
}


def filter_of(depth: int, leaf: Any = "x") -> Any:
    for _ in range(depth):
        leaf = {"kind": "maybe", "of": leaf}
    return leaf


@pytest.mark.full
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (TWICE, "10,000 subschemas"),
        (row(40, lambda following: {"anyOf": [following, following]}), "10,000"),
        (row(40, lambda following: {"properties": {"a": following, "b": following}}), "10,000"),
        (row(40, lambda following: {"items": [following, following]}), "10,000"),
        (row(40, lambda following: {"if": following, "then": following}), "10,000"),
        (
            row(40, lambda following: {"patternProperties": {"a": following, "b": following}}),
            "10,000",
        ),
        (row(40, lambda following: {"$ref": following["$ref"], "not": following}), "10,000"),
        (
            row(20, lambda following: {"anyOf": [following], "unevaluatedProperties": False}),
            "10,000",
        ),
        ({"properties": {f"p{n}": {} for n in range(MOST)}}, "10,000"),
        ({"$ref": "#"}, "for the same value"),
        (CIRCLE, "for the same value"),
        (
            {
                "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}},
                "properties": {"x": {"$ref": "#/$defs/a"}},
            },
            "same value",
        ),
        ({"$ref": "https://example.com/schema"}, "not followed"),
        ({"$ref": "#/$defs/none"}, "not followed"),
        (
            {"$defs": {"a": {"$id": "x"}, "b": {"$id": "x", "type": "null"}}, "$ref": "x"},
            "two subschemas",
        ),
    ],
)
def test_a_schema_with_too_many_paths_is_refused(schema, words):
    """Whatever doubles them, in few steps, with the reason, and before a validator looks at any value."""
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        with pytest.raises(UsageError, match=words):
            paths_of(json.loads(json.dumps(schema)))
    finally:
        sys.setprofile(None)
    assert calls < 30 * MOST


@pytest.mark.full
@pytest.mark.parametrize(
    "schema",
    [
        row(9, lambda following: {"allOf": [following, following]}),
        row(500, lambda following: {"allOf": [following]}),
        {"properties": {f"p{n}": {"type": "string"} for n in range(4_000)}},
        TREE,
        UNION,
        {"properties": {"status": {"enum": ["a"]}, "next": {"$ref": "#/properties/status"}}},
        {"$id": "T0", "type": "array", "items": {"$ref": "T0"}},
        {"$id": "urn:x:y", "$defs": {"a": {}}, "items": {"$ref": "#/$defs/a"}},
        {"$defs": {"a": {"$anchor": "here"}}, "items": {"$ref": "#here"}},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "https://example.com/root#",
            "definitions": {"a": {}},
            "items": {"$ref": "https://example.com/root#/definitions/a"},
        },
        {"definitions": {"a/b %": {}}, "items": {"$ref": "#/definitions/a~1b%20%25"}},
        {
            "$id": "https://example.com/root",
            "$defs": {"in": {"$id": "in", "$defs": {"x": TEXT}, "$ref": "#/$defs/x"}},
            "items": {"$ref": "in"},
        },
        {"examples": [{"$id": "a"}, {"$id": "a"}], "default": {"$ref": "#/none"}},
        {"$dynamicAnchor": "node", "properties": {"of": {"$dynamicRef": "#node"}}},
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$recursiveAnchor": True,
            "properties": {"of": {"$recursiveRef": "#"}},
        },
    ],
)
def test_other_schemas_are_taken(schema):
    """Those with shared definitions, with names of their own, and trees: as questions and by a validator."""
    assert validation.check_schema(schema, "it") is None


@st.composite
def schemas(draw: Any) -> dict[str, Any]:
    """Draw schemas whose definitions refer to later ones, in all places where a schema may be."""
    number = draw(st.integers(1, 5))

    def subschema(first: int) -> st.SearchStrategy[Any]:
        later = [st.just({"$ref": f"#/$defs/d{n}"}) for n in range(first, number)]
        return st.one_of(st.just({}), st.just(True), *later)

    def definition(n: int) -> Any:
        parts = st.lists(subschema(n + 1), min_size=1, max_size=2)
        maps = st.dictionaries(st.sampled_from("ab"), subschema(n + 1), max_size=2)
        return draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "allOf": parts,
                    "not": subschema(n + 1),
                    "properties": maps,
                    "additionalProperties": subschema(n + 1),
                    "items": subschema(n + 1),
                    "prefixItems": parts,
                    "$ref": st.sampled_from(
                        [f"#/$defs/d{m}" for m in range(n + 1, number)] or ["#/$defs/end"]
                    ),
                },
            )
        )

    return {
        "$defs": {**{f"d{n}": definition(n) for n in range(number)}, "end": {}},
        "$ref": "#/$defs/d0",
    }


def unfolded(schema: Any, root: Any, value: Any = ...) -> int:
    """Follow each path: count the subschemas, with a value those that are visited for it."""
    if not isinstance(schema, dict):
        return 1
    parts: list[tuple[Any, Any]] = []

    def within(each: Any, values: Any) -> None:
        parts.extend([(each, ...)] if value is ... else [(each, child) for child in values])

    for name, each in schema.get("properties", {}).items():
        within(each, [value[name]] if isinstance(value, dict) and name in value else [])
    if "additionalProperties" in schema:
        others = value.items() if isinstance(value, dict) else ()
        known = schema.get("properties", {})
        within(
            schema["additionalProperties"],
            [child for name, child in others if name not in known],
        )
    for each in [
        *schema.get("prefixItems", ()),
        *([schema["items"]] if "items" in schema else []),
    ]:
        within(each, value if isinstance(value, list) else [])
    same = [*schema.get("allOf", ()), *([schema["not"]] if "not" in schema else [])]
    if "$ref" in schema:
        same.append(root["$defs"][schema["$ref"].rpartition("/")[2]])
    parts += [(each, value) for each in same]
    return 1 + sum(unfolded(each, root, child) for each, child in parts)


VALUES = st.recursive(
    st.integers(0, 1),
    lambda each: (
        st.lists(each, max_size=2) | st.dictionaries(st.sampled_from("abc"), each, max_size=2)
    ),
    max_leaves=6,
)


@pytest.mark.full
@given(schemas(), VALUES)
def test_paths_are_counted_as_if_they_were_followed(schema, value):
    """The number without unfolding is that with it, of schemas that do not refer to themselves."""
    paths = paths_of(schema)
    counted = sum(1 for _ in paths.edges)
    assert counted <= unfolded(schema, schema)
    assert paths._steps(paths.root, value, {}) == unfolded(schema, schema, value)


@pytest.mark.full
@pytest.mark.parametrize(
    ("schema", "value", "is_taken"),
    [
        (UNION, filter_of(8), True),
        (UNION, filter_of(8, 5), True),
        (UNION, filter_of(20), False),
        (UNION, filter_of(20, 5), False),
        (TREE, {"all": [{"left": {"text": "x"}, "right": {}}] * 3_000}, True),
        ({"properties": {"a": {"allOf": [{"$ref": "#"}] * 2}}}, {"a": {"a": {}}}, True),
    ],
)
def test_a_value_is_checked_in_few_steps(schema, value, is_taken):
    """A large tree is, and a filter of some levels; what would double the time again and again is refused."""
    message = validation.mismatch(schema, value)
    assert ("too deeply" in message) is not is_taken


def test_a_question_is_refused_where_it_is_asked():
    """With a schema, or a model whose schema is such a one; the control is asked."""
    ask = Address("0r", "a", 1).ask
    fields = {"__annotations__": {"a": str}}
    model = type("Leaf", (BaseModel,), fields)
    for level in range(16):
        model = type(f"L{level}", (BaseModel,), {"__annotations__": {"a": model, "b": model}})
    for schema in (TWICE, model):
        with pytest.raises(UsageError, match="response_schema can't be used: it unfolds"):
            ask("q", scope="function", response_schema=schema)
    assert ask("q", scope="function", response_schema=TREE).response_schema == TREE


def test_a_tool_is_refused_where_it_is_made():
    """Without the validator, which takes long to load; the control is a tool."""
    schema = {
        "type": "object",
        "properties": {"a": TWICE["$defs"]["d0"]},
        "$defs": TWICE["$defs"],
    }
    with pytest.raises(DefinitionError, match="the input schema of tool 'look' can't be used"):
        tool(name="look", inputSchema=schema)(lambda a: a)
    assert tool(name="look", inputSchema={"type": "object", "properties": {"a": TEXT}})(
        lambda a: a
    )


def test_a_schema_with_an_address_keeps_its_parts_inside_another():
    """Its references lead to its own `$defs`; control: those of a schema without an address, too."""
    named = {"$id": "https://x/s.json"}
    schema = {
        "$defs": {"A": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/A"}},
    }
    for address in (named, {}):
        inner, top = nested({**address, **schema})
        whole = {**top, "properties": {"edit": inner}}
        assert not validation.mismatch(whole, {"edit": {"a": 1}})
        assert validation.mismatch(whole, {"edit": {"a": "one"}})
