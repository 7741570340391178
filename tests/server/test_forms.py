from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field

from runner.errors import UsageError
from runner.records.validation import check_schema
from runner.server.forms import answer_of, fields_of


class Address(BaseModel):
    street: str


class Answer(BaseModel):
    decision: Literal["approve", "reject"]
    urgent: bool
    amount: float = Field(ge=0, le=100)
    count: int | None = None
    comment: str = Field("", description="stored")
    code: str = Field("", max_length=8)
    due: str = Field("", json_schema_extra={"format": "date"})
    address: Address | None = None
    tags: list[str] = []
    scores: list[int] = []
    extra: dict[str, int] = {}


SCHEMA = Answer.model_json_schema()


def test_each_field_has_its_control():
    """Choices are radio buttons, numbers have their bounds, what has no control is JSON."""
    fields = {part.name: part for part in fields_of(SCHEMA)}

    kinds = {name: part.kind for name, part in fields.items()}
    assert kinds == {
        "decision": "choice",
        "urgent": "choice",
        "amount": "number",
        "count": "number",
        "comment": "long",
        "code": "text",
        "due": "date",
        "address": "group",
        "tags": "lines",
        "scores": "lines",
        "extra": "json",
    }
    assert [(part.name, part.required) for part in fields["address"].parts] == [
        ("address/street", True)
    ]
    assert fields["amount"].bounds == {"min": 0, "max": 100, "step": "any"}
    assert [choice.label for choice in fields["urgent"].choices] == ["Yes", "No"]
    assert [name for name, part in fields.items() if part.required] == [
        "decision",
        "urgent",
        "amount",
    ]


def test_a_form_gives_the_answer_that_was_meant():
    """Texts stay texts, the rest becomes what the schema says; empty optional fields are left out."""
    sent = {
        "decision": '"approve"',
        "urgent": "false",
        "amount": "12.5",
        "comment": "12",
        "tags": "a\r\n\r\n b ",
        "scores": "3\n4",
        "count": "",
        "address/street": "High Street",
    }

    answer, problems = answer_of(SCHEMA, sent)

    assert problems == {}
    assert Answer.model_validate(answer).model_dump(exclude_unset=True) == answer
    assert answer == {
        "decision": "approve",
        "urgent": False,
        "amount": 12.5,
        "comment": "12",
        "address": {"street": "High Street"},
        "tags": ["a", "b"],
        "scores": [3, 4],
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decision", '"maybe"'),
        ("amount", "101"),
        ("amount", "many"),
        ("urgent", ""),
        ("scores", "1\nmany"),
        ("extra", "[]"),
    ],
)
def test_what_does_not_fit_is_named_with_its_field(field, value):
    """The page can put each problem where it is."""
    sent = {"decision": '"approve"', "urgent": "true", "amount": "1", field: value}

    _, problems = answer_of(SCHEMA, sent)

    assert list(problems) == [field]


def test_what_was_typed_comes_back():
    """A refused form shows what was in it, the chosen choice included."""
    fields = {
        part.name: part for part in fields_of(SCHEMA, {"decision": '"reject"', "amount": "101"})
    }

    assert [choice.checked for choice in fields["decision"].choices] == [False, True]
    assert fields["amount"].value == "101"


def test_a_schema_that_contains_itself_ends():
    """Some objects deep a part is JSON; what is typed into a deep field arrives there."""
    tree = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/Tree"}},
    }
    schema = {"$ref": "#/$defs/Tree", "$defs": {"Tree": tree}}

    (name, child) = fields_of(schema)
    (_, grandchild) = child.parts

    assert (name.kind, child.kind, [part.kind for part in grandchild.parts]) == (
        "long",
        "group",
        ["long", "json"],
    )
    assert answer_of(schema, {"child/child/name": "deep"}) == (
        {"child": {"child": {"name": "deep"}}},
        {},
    )


def test_an_answer_without_fields_is_json():
    """A question without a schema, or with one of no object, has one field."""
    assert [part.kind for part in fields_of(None)] == ["json"]
    assert answer_of(None, {"answer": '{"a": 1}'}) == ({"a": 1}, {})
    assert answer_of(None, {"answer": "plain words"}) == ("plain words", {})
    assert answer_of({"type": "string"}, {"answer": "7"}) == ("7", {})
    assert answer_of(None, {"answer": ""})[1]
    assert answer_of(None, {"answer": "null"})[1]


@pytest.mark.parametrize(
    ("inner", "kind"), [({"$ref": "#/$defs/Loop"}, "json"), ({"type": "integer"}, "number")]
)
def test_a_schema_that_refers_to_itself_has_a_field(inner, kind):
    """One without an end, which no question takes any more, is a field of JSON; control: one that ends."""
    loop = {"anyOf": [inner, {"type": "null"}]}
    whole = {"$ref": "#/$defs/Loop", "$defs": {"Loop": loop}}
    part = {"type": "object", "properties": {"a": whole}, "$defs": {"Loop": loop}}

    for schema in (whole, part):
        (field,) = fields_of(schema)
        assert field.kind == kind
        if kind == "number":
            assert answer_of(schema, {field.name: "7"})[1] == {}
        else:
            with pytest.raises(UsageError, match="no end"):
                check_schema(schema, "it")
