"""Answers that are asked for on the terminal, field by field."""

from __future__ import annotations

from typing import Literal

import pytest
from click.testing import CliRunner
from pydantic import BaseModel, Field

from runner.cli.exits import CommandError
from runner.cli.interrupts import ask_for_answer, ask_for_responder
from runner.cli.output import Output
from runner.operations.exports import question_of
from runner.records.interrupts import Address


class Size(BaseModel):
    width: int


class Decision(BaseModel):
    decision: Literal["approve", "reject"]
    amount: int = Field(ge=1, le=100, description="in euros")
    urgent: bool
    comment: str = ""
    code: str | None
    size: Size | None = None


def asked(schema, typed: str, **options):
    """The answer that is made of what is typed, and what was shown."""
    interrupt = Address("00run", "a", 1).ask(
        "ok?", scope="function", response_schema=schema, **options
    )
    with CliRunner().isolation(input=typed) as (_, shown, _):
        answer = ask_for_answer(question_of(interrupt), Output())
        return answer, shown.getvalue().decode()


def test_every_field_is_asked_for_by_its_kind():
    """Choices, numbers, yes and no, texts and JSON; Enter takes the default."""
    answer, shown = asked(Decision, 'approve\n5\nyes\n\n42\n{"width": 3}\ny\n')

    assert answer == {
        "decision": "approve",
        "amount": 5,
        "urgent": True,
        "comment": "",
        "code": "42",
        "size": {"width": 3},
    }
    Decision.model_validate(answer)
    assert "in euros" in shown
    assert "decision (approve | reject)" in shown
    assert "comment (text, optional)" in shown


def test_a_value_that_does_not_fit_is_asked_for_again():
    """The problem is shown at once, and the fields before it stay."""
    answer, shown = asked(Decision, "maybe\nreject\n500\n50\nperhaps\nno\n\ntext\n\n\n")

    assert (answer["decision"], answer["amount"], answer["urgent"]) == ("reject", 50, False)
    assert shown.count("amount (integer)") == 2
    assert "maximum" in shown


@pytest.mark.parametrize(("typed", "code"), [("null", None), ("NULL", "NULL")])
def test_a_text_or_null_is_asked_for_as_a_text(typed, code):
    """The word null alone is null; any other text is one."""
    answer, shown = asked(Decision, f"approve\n5\nyes\n\n{typed}\n\ny\n")

    assert answer["code"] == code
    assert "code (text)" in shown


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        (None, "yes", "yes"),
        (None, "7", 7),
        (None, '{"a": 1}', {"a": 1}),
        (None, "\n\nno", "no"),
        (None, "null\nno", "no"),
        ({"type": "string", "minLength": 2}, "7\n77", "77"),
        ({"type": "boolean"}, "n", False),
        ({"enum": [1, 2]}, "3\n2", 2),
    ],
)
def test_an_answer_that_is_no_object_is_asked_for_as_one_value(schema, typed, value):
    """Without a schema JSON is read where the text is some; a schema of a text takes it as text."""
    assert asked(schema, f"{typed}\ny\n")[0] == value


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "string"},
        {"type": ["string", "number"]},
        {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/Text"}]},
    ],
)
@pytest.mark.parametrize("text", ["007", "1e3", "true", "[1]"])
def test_a_text_stays_a_text(kind, text):
    """Where the schema takes one; control: a number is one where it does not."""
    schema = {
        "type": "object",
        "properties": {"a": kind, "b": {"type": "number"}},
        "required": ["a", "b"],
        "$defs": {"Text": {"type": "string"}},
    }
    assert asked(schema, f"{text}\n1e3\ny\n")[0] == {"a": text, "b": 1000.0}


def test_what_is_required_is_asked_for_until_it_is_there():
    """No text is null where the schema has that, and a text where it says so; control: what is optional."""
    properties = {
        "name": {"type": "string"},
        "size": {"type": ["integer", "null"]},
        "note": {"type": "string", "minLength": 0},
        "more": {"type": "string"},
    }
    schema = {"type": "object", "properties": properties, "required": ["name", "size", "note"]}
    answer, shown = asked(schema, "\n\nx\n\n\n\ny\n")

    assert answer == {"name": "x", "size": None, "note": ""}
    assert shown.count("a value is needed") == 2


def test_a_reference_is_to_any_part_of_the_schema():
    """Its choices are asked for as those of the part."""
    properties = {"status": {"enum": ["open", "done"]}, "next": {"$ref": "#/properties/status"}}
    schema = {"type": "object", "properties": properties, "required": ["next"]}
    answer, shown = asked(schema, "\nlost\ndone\ny\n")

    assert answer == {"next": "done"}
    assert shown.count("next (open | done)") == 2


def test_nothing_is_sent_without_a_yes():
    """The whole answer is shown before it is sent."""
    with pytest.raises(CommandError, match="Nothing was sent"):
        asked(None, "yes\nn\n")


def test_who_answers_is_asked_only_where_it_matters():
    """A question that anyone may answer needs no name."""
    free = Address("00run", "a", 1).ask("ok?", scope="function")
    assigned = Address("00run", "a", 1).ask("ok?", scope="function", assignees=["ana"])
    with CliRunner().isolation(input="ana\n"):
        assert ask_for_responder(question_of(free)) is None
        assert ask_for_responder(question_of(assigned)) == "ana"
