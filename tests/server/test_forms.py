from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field

from runner.errors import UsageError
from runner.operations.answer_fields import answer_field
from runner.records.validation import check_schema, mismatch
from runner.server.forms import (
    AS_JSON,
    answer_of,
    edit_of,
    edit_texts,
    fields_of,
    is_blank,
    with_first_values,
    with_item,
)


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
    """Choices are radio buttons, numbers a keyboard of digits, what has no control is JSON."""
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
    assert fields["amount"].bounds == {"inputmode": "decimal"}
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
        "text",
        "group",
        ["text", "json"],
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


STATUS = {"type": "string", "enum": ["open", "done"]}

REFERENCES = {
    "a property, as zod writes it": {
        "properties": {"status": STATUS, "next": {"$ref": "#/properties/status"}}
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"S": STATUS},
        "properties": {"next": {"$ref": "#/definitions/S"}},
    },
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "https://example.com/answer#",
        "definitions": {"S": STATUS},
        "properties": {"next": {"$ref": "#/definitions/S"}},
    },
    "an address of its own": {
        "$id": "https://example.com/answer",
        "$defs": {"S": STATUS},
        "properties": {"next": {"$ref": "#/$defs/S"}},
    },
    "a chain": {
        "$defs": {"S": STATUS, "T": {"$ref": "#/$defs/S"}},
        "properties": {"next": {"$ref": "#/$defs/T"}},
    },
    "through another part": {
        "$defs": {"T": {"type": "object", "properties": {"a": STATUS}}},
        "properties": {"next": {"$ref": "#/$defs/T/properties/a"}},
    },
    "one of a union": {
        "$defs": {"S": STATUS},
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/S"}, {"type": "null"}]}},
    },
    "one of all": {
        "$defs": {"S": STATUS},
        "properties": {"next": {"allOf": [{"$ref": "#/$defs/S"}]}},
    },
    "a name of any characters": {
        "$defs": {'a/b~c %d"é': STATUS},
        "properties": {"next": {"$ref": "#/$defs/a~1b~0c%20%25d%22%C3%A9"}},
    },
    "an item of a list": {
        "$defs": {"S": {"oneOf": [STATUS, False]}},
        "properties": {"next": {"$ref": "#/$defs/S/oneOf/0"}},
    },
}


@pytest.mark.parametrize("schema", REFERENCES.values(), ids=REFERENCES.keys())
def test_a_reference_is_to_any_part_of_the_schema(schema):
    """Its field is that of what it refers to, and takes the same values."""
    schema = {"type": "object", "required": ["next"], **schema}
    field = {part.name: part for part in fields_of(schema)}["next"]

    assert [choice.value for choice in field.choices] == ['"open"', '"done"']
    assert answer_of(schema, {"next": '"done"'}) == ({"next": "done"}, {})
    assert list(answer_of(schema, {"next": '"lost"'})[1]) == ["next"]
    (part,) = (part for part in answer_field(schema).fields if part.name == "next")
    assert part.mismatch("open") == ""
    assert part.mismatch("lost")


def test_names_of_fields_may_have_any_characters():
    """Each is checked by its own schema: what stands for a step of a pointer in a name is none."""
    names = ["a/b", "a~1b", "~", "%2F", "#", " ", "é", '"', "$ref", ""]
    properties = {name: {"const": number} for number, name in enumerate(names)}
    fields = answer_field({"type": "object", "properties": properties}).fields

    assert [field.name for field in fields] == names
    for number, field in enumerate(fields):
        assert (field.mismatch(number), bool(field.mismatch(-1))) == ("", True)


TEXTS = {
    "text": {"type": "string"},
    "text or null": {"type": ["string", "null"]},
    "a union with null": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    "text or number": {"anyOf": [{"type": "number"}, {"type": "string"}]},
    "types": {"type": ["integer", "boolean", "string"]},
    "one of": {"oneOf": [{"type": "object"}, {"$ref": "#/$defs/Text"}]},
    "a reference": {"$ref": "#/$defs/Text"},
    "short": {"type": "string", "maxLength": 30},
}


@pytest.mark.full
@pytest.mark.parametrize("text", ["007", "1e3", "true", "null", "[1]", '"a"', " 7 "])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_never_becomes_anything_else(kind, text):
    """Where the schema takes a text it is one; control: where it names none it is JSON."""
    schema = {
        "type": "object",
        "properties": {"a": TEXTS[kind], "list": {"type": "array", "items": TEXTS[kind]}},
        "required": ["a"],
        "$defs": {"Text": {"type": "string"}},
    }
    answer, problems = answer_of(schema, {"a": text})

    assert (answer, problems) == ({"a": text}, {})
    assert fields_of(schema)[0].kind in {"long", "text"}
    if text == "1e3":
        for other in ({"type": "number"}, {}, {"type": ["number", "null"]}):
            schema = {"type": "object", "properties": {"a": other}}
            assert answer_of(schema, {"a": text}) == ({"a": 1000.0}, {})


def test_an_argument_that_is_a_number_stays_one():
    """Also where its schema takes a text as well; control: one that is a text stays a text."""
    schema = {"type": "object", "properties": {"a": TEXTS["text or number"]}}
    for args, after in (({"a": 5}, 6.5), ({"a": "5"}, "6,5")):
        assert edit_texts(schema, args) == {"a": "5"}
        assert edit_of(schema, args, {"a": "6,5"}) == ({"a": after}, {})


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "string"}, None),
        ({"type": "number"}, None),
        ({"type": "boolean"}, None),
        ({"enum": ["a", "b"]}, None),
        ({}, None),
        ({"type": "object", "additionalProperties": True}, None),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, None),
        ({"type": "string", "minLength": 0}, ""),
        ({"type": "string", "default": ""}, ""),
        ({"type": "array", "items": {"type": "string"}}, []),
    ],
)
def test_what_is_required_is_refused_empty(part, expected):
    """The label says so of exactly these; control: what may be empty, as the schema says in words."""
    schema = {"type": "object", "properties": {"a": part}, "required": ["a"]}
    (field,) = fields_of(schema)
    answer, problems = answer_of(schema, {"a": ""})

    assert field.required is (expected is None)
    assert list(problems) == (["a"] if expected is None else [])
    if expected is not None:
        assert answer == {"a": expected}
    optional = {**schema, "required": []}
    assert answer_of(optional, {"a": ""}) == ({}, {})
    assert fields_of(optional)[0].required is False


def test_null_is_given_by_no_text():
    """Where the schema takes it: the label says not that the field is required."""
    for kind in ("text or null", "a union with null"):
        schema = {"type": "object", "properties": {"a": TEXTS[kind]}, "required": ["a"]}
        assert fields_of(schema)[0].required is False
        assert answer_of(schema, {"a": ""}) == ({"a": None}, {})


def test_any_answer_can_be_json():
    """What fields can't hold; it takes the place of the fields, and of those alone that nobody has filled."""
    sent = {"decision": "", "amount": "", "count": ""}
    answer = '{"decision": "approve", "urgent": true, "amount": 1e1, "comment": ""}'
    expected = {"decision": "approve", "urgent": True, "amount": 10, "comment": ""}

    assert answer_of(SCHEMA, {**sent, "": answer}) == (expected, {})
    assert answer_of({"type": "string"}, {"answer": "", "": '""'}) == ("", {})
    for wrong, fields in (("{", {}), ("null", {}), ("{}", {}), (answer, {"amount": "7"})):
        assert list(answer_of(SCHEMA, {**sent, **fields, "": wrong})[1]) == [""]


SUPPLIER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "zip": {"type": "string", "pattern": r"^\d{5}$", "examples": ["10115"]},
        "remarks": {"type": "string"},
        "accounts": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"iban": {"type": "string"}, "limit": {"type": "number"}},
                "required": ["iban"],
            },
        },
    },
    "required": ["name", "zip", "accounts"],
}


def test_short_texts_have_one_line():
    """Also without a length in the schema, if their name does not say that they are prose."""
    kinds = {part.name: part.kind for part in fields_of(SUPPLIER)}
    assert kinds == {"name": "text", "zip": "text", "remarks": "long", "accounts": "list"}
    two_lines = fields_of(SUPPLIER, {"name": "Acme\nInc"})[0]
    assert (two_lines.kind, two_lines.value) == ("long", "Acme\nInc")  # nothing typed is lost


def test_a_list_of_objects_has_fields_for_each():
    """One more is added below those that were typed; one without values is left out, no other."""
    sent = {
        "name": "Acme",
        "zip": "10115",
        "accounts/0/iban": "DE89",
        "accounts/0/limit": "5",
        "accounts/1/iban": "",
        "accounts/1/limit": "",
        "accounts/10/iban": "DE90",
    }
    (accounts,) = [part for part in fields_of(SUPPLIER, sent) if part.name == "accounts"]
    names = [part.name for part in accounts.parts]
    assert names == ["accounts/0", "accounts/1", "accounts/10"]
    (more,) = fields_of(SUPPLIER, with_item(sent, "accounts"))[-1:]
    assert len(more.parts) == 4
    assert more.parts[0].parts[0].value == "DE89"
    answer = {"name": "Acme", "zip": "10115"}
    rows = [{"iban": "DE89", "limit": 5}, {"iban": "DE90"}]
    assert answer_of(SUPPLIER, sent) == ({**answer, "accounts": rows}, {})

    assert [*answer_of(SUPPLIER, answer)[1]] == ["accounts"]
    assert [*answer_of(SUPPLIER, {**sent, "accounts/1/limit": "7"})[1]] == ["accounts/1/iban"]
    as_json = {**answer, "accounts": '[{"iban": "DE91"}]'}
    assert answer_of(SUPPLIER, as_json) == ({**answer, "accounts": [{"iban": "DE91"}]}, {})


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("12,5", 12.5),
        ("-0,125", -0.125),
        ("1.234,56", 1234.56),
        ("1,234.56", 1234.56),
        ("1,234,567", 1234567),
        ("1'234.50", 1234.5),
        ("1\u202f234,5", 1234.5),
        ("1\u2009234", 1234),
        ("1\u2019234.50", 1234.5),
        ("12345678901234567890", 12345678901234567890),
        ("1.234", 1.234),
        ("1e3", 1000),
        *(
            (text, text)
            for text in (
                "1,234",
                "-1,234",
                "1,2,3",
                "1.23,5",
                "012,5",
                "0.123,5",
                "\u0661,\u0662",
            )
        ),
        ("0.30000000000000004", 0.1 + 0.2),
        ("\u22121.234,50", -1234.5),
        *(
            (text, text)
            for text in (
                "9" * 400 + ",5",
                "0.1000000000000000001",
                "12.345.678.901.234.567,89",
                "1e-400",
                "1e-99999999999999999999",
            )
        ),
    ],
)
def test_a_number_is_read_as_it_is_written_anywhere(typed, value):
    """A decimal comma and groups of digits count, unless they could mean two numbers; texts stay."""
    assert answer_field({"type": ["number", "null"]}).read(typed) == value
    assert answer_field({"type": ["number", "string"]}).read(typed) == typed


@pytest.mark.parametrize("text", ["0.1000000000000000001", "12345678901234567,89"])
@pytest.mark.parametrize("kind", ["number", ["number", "null"]])
def test_a_number_that_would_be_rounded_is_refused(text, kind):
    """Also where it is typed as a part of JSON."""
    schema = {
        "type": "object",
        "properties": {"amount": {"type": kind}},
        "required": ["amount"],
    }
    said = f'"{text}" has more digits than a number keeps, which are 15'
    assert answer_of(schema, {"amount": text})[1] == {"amount": said}
    number = text.replace(",", ".")
    ((_, problem),) = answer_of(schema, {AS_JSON: f'{{"amount": {number}}}'})[1].items()
    assert f"{number} has more digits" in problem


def test_problems_are_said_in_plain_words():
    """With an example, if the schema has one; no word of the schema is in them."""
    sent = {"name": "", "zip": "1011", "accounts/0/limit": "many", "accounts/0/iban": "a"}
    assert answer_of(SUPPLIER, sent)[1] == {
        "name": "A value is needed.",
        "zip": '"1011" does not have the expected form, such as 10115',
        "accounts/0/limit": '"many" is not a number such as 1234.56',
    }
    assert answer_of(
        SCHEMA, {"decision": '"approve"', "urgent": "true", "amount": "1", "scores": "1\nx"}
    )[1] == {"scores": 'line 2: "x" is not a whole number'}


def test_fields_begin_with_the_values_of_the_reason():
    """Of the same name and with a fitting value; the form is blank as long as they stay."""
    reason = {"name": "Acme", "zip": "x", "other": 1, "accounts": [{"iban": "DE89"}]}
    schema = with_first_values(SUPPLIER, reason)
    values = {part.name: part.value for part in fields_of(schema)}
    assert (values["name"], values["zip"]) == ("Acme", "")
    assert is_blank(schema, {"name": "Acme", "zip": ""})
    assert not is_blank(schema, {"name": "Bolt", "zip": ""})
    assert not is_blank(schema, {"name": "", "zip": ""})
    properties = {"ok": {"type": "boolean"}, "say": {"enum": ["yes", "no"]}}
    choices = {"type": "object", "properties": properties}
    assert with_first_values(choices, {"ok": True, "say": "yes"}) == choices
    for other in (None, "Acme", ["name"]):
        assert with_first_values(SUPPLIER, other) == SUPPLIER
    assert with_first_values(None, reason) is None


@pytest.mark.parametrize(
    ("part", "text", "problem"),
    [
        ({"type": "string", "format": "date"}, "31.12.2026", "is not a valid date"),
        ({"type": "integer", "minimum": 3}, "1", "1 is less than the minimum of 3"),
        ({"enum": ["EUR", "USD"]}, '"GBP"', '"GBP" is not one of "EUR" or "USD"'),
        ({"type": ["number", "boolean"]}, "1,2,3", '"1,2,3" is not'),
    ],
)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_problem_of_an_optional_field_is_told_as_of_a_required_one(
    part, text, problem, keyword
):
    """By the field's schema, not by the words of the schema's union with null."""
    for schema in (part, {keyword: [part, {"type": "null"}]}):
        assert problem in answer_of({"properties": {"x": schema}}, {"x": text})[1]["x"]
        assert "Of" not in mismatch({"properties": {"x": schema}}, {"x": ["no"]})


def test_a_problem_of_a_union_has_no_words_of_its_schema():
    """Where no alternative is the only one."""
    part = {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}
    problems = answer_of({"properties": {"x": part}}, {"x": "1,2,3"})[1]
    assert problems == {"x": '"1,2,3" does not have the expected form'}
