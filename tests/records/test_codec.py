from __future__ import annotations

import base64
import dataclasses
import enum
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest

from runner.errors import CorruptDocument, UnstorableError
from runner.records import codec


class Refund(pydantic.BaseModel):
    amount: int
    note: str = ""


class Named(pydantic.BaseModel):
    amount: int = pydantic.Field(alias="Amount")


class Computed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    amount: int

    @pydantic.computed_field
    @property
    def double(self) -> int:
        """Say twice the amount."""
        return self.amount * 2


class Blob(pydantic.BaseModel):
    data: bytes


class Colour(str, enum.Enum):  # noqa: UP042 - the older form, which people have
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


ROME = ZoneInfo("Europe/Rome")


class Timestamp(datetime):
    """One of a library's own, with more than a datetime has."""


class Odd:
    pass


@codec.strict
@dataclasses.dataclass(frozen=True)
class Document:
    v: int
    name: str
    tags: list[str] = dataclasses.field(default_factory=list)


def nested(depth: int):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        -(2**63) + 1,
        2**63 - 1,
        "line\nbreak \u2028 \U0001f600",
        [Refund(amount=1), {"inner": Refund(amount=2)}],
        Named(Amount=4),
        Computed(amount=5),
        Decimal("-1E-30"),
        datetime(2026, 3, 1, 9, 30, tzinfo=ROME),
    ],
)
def test_values_come_back_as_they_were(value):
    """What the property of all values does not draw survives storing, too, each with its type."""
    stored = codec.load_json(codec.dump_json(codec.pack(value, "value")))

    assert codec.unpack(stored) == value
    assert type(codec.unpack(stored)) is type(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, object()]}, "output.a[1] is an object, which can't be stored"),
        (
            {1, 2},
            "output is a set, which can't be stored; use JSON data, bytes or a pydantic model.",
        ),
        (Decimal("NaN"), "output is a Decimal"),
        (Decimal("Infinity"), "output is a Decimal"),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ROME), "output is a datetime"),
        (Timestamp(2026, 1, 1), "output is a Timestamp"),
        ({3: "x"}, "output has the key 3; keys must be strings"),
        (float("nan"), "output is nan"),
        ([float("-inf")], "output[0] is -inf"),
        (2**63, "output is an integer of more than 64 bits"),
        ("\ud800", "output holds a lone surrogate"),
        ({"\ud800": 1}, "a key of output holds a lone surrogate"),
        ({"b": Blob(data=b"\xff")}, "output.b is a Blob that has no JSON form"),
        (object(), "output is an object, which can't be stored"),
        (nested(66), "is nested deeper than 64 levels"),
        (Odd(), "use JSON data, bytes or a pydantic model"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_place(value, says):
    """A value that can't be stored is refused at once, and the error names where in it."""
    with pytest.raises(UnstorableError) as refused:
        codec.pack(value, "output")

    assert says in str(refused.value)


def test_a_value_of_many_levels_is_stored():
    """Sixty-four levels are allowed, which other JSON readers can take."""
    assert codec.unpack(codec.pack(nested(64), "value")) == nested(64)


def test_others_see_text():
    """A price is the text that it is written as, and so it is for the next node."""
    price = {
        "price": Decimal("1.50"),
        "at": datetime(2026, 3, 1, tzinfo=UTC),
        "id": UUID(int=7),
    }

    assert codec.plain(price) == codec.pack_result(price)[1]
    assert codec.plain(price) == {
        "price": "1.50",
        "at": "2026-03-01T00:00:00Z",
        "id": str(UUID(int=7)),
    }


def test_tuples_become_lists():
    """JSON has no tuples: they come back as lists, also inside."""
    assert codec.unpack(codec.pack((1, (2,)), "value")) == [1, [2]]


def test_members_of_enums_are_stored_by_value():
    """An enum whose members are texts or numbers is stored as those, never by its member's name."""
    value = {Colour.RED: [Colour.RED, Size.LARGE]}
    packed = codec.pack(value, "value")

    assert packed == {"red": ["red", 3]}
    assert {type(item) for item in packed["red"]} == {str, int}
    assert type(codec.plain([Colour.RED])[0]) is str


def test_a_model_of_an_unknown_class_comes_back_as_data():
    """No module is imported because stored data names it; the model's data is still there."""
    stored = {
        codec.MODEL_KEY: "nowhere.at.all:Thing",
        "data": {"amount": 1, "raw": {codec.BYTES_KEY: True, "data": "aGk="}},
    }

    assert codec.unpack(stored) == {"amount": 1, "raw": b"hi"}


def test_a_name_that_is_no_model_is_never_called():
    """Stored data that names some other imported object gets data back, not that object."""
    assert codec.unpack({codec.MODEL_KEY: "builtins:print", "data": {"a": 1}}) == {"a": 1}


def test_a_model_whose_class_changed_is_reported():
    """Data that its class no longer takes is an error that says so, never a guess."""
    stored = {codec.MODEL_KEY: f"{__name__}:Refund", "data": {"amount": "many"}}

    with pytest.raises(CorruptDocument, match="no longer fits its class"):
        codec.unpack(stored)


def test_the_plain_form_is_what_other_programs_read():
    """People and other programs see models as objects, bytes as base64, nothing of ours."""
    value = {
        "refund": Refund(amount=1),
        "computed": Computed(amount=2),
        "raw": b"hi",
        "more": (1, 2),
    }

    assert codec.plain(value) == {
        "refund": {"amount": 1, "note": ""},
        "computed": {"amount": 2, "double": 4},
        "raw": base64.b64encode(b"hi").decode(),
        "more": [1, 2],
    }


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"NaN",
        b"[Infinity]",
        b'{"a":1,"a":2}',
        b"1e999",
        b"-1e999",
        b'"\\ud800"',
        b'{"\\uDC00":1}',
        b"[" * 100_000,
        b"9" * 5_000,
        '"'.encode("utf-16"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(text):
    """Only JSON that every reader understands alike is read; all else is refused loudly."""
    with pytest.raises(CorruptDocument, match="not valid JSON"):
        codec.load_json(text)


def test_escaped_pairs_of_surrogates_are_text():
    """A character beyond the first plane may be written as two escapes."""
    assert codec.load_json(b'"\\ud83d\\ude00"') == "\U0001f600"


def test_documents_are_written_and_read():
    """A document comes back equal, with its defaults."""
    assert codec.decode(Document, codec.encode(Document(1, "a"))) == Document(1, "a", [])


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b'{"v":1}', "name"),
        (b'{"v":1,"name":2}', "name"),
        (b'{"v":"1","name":"a"}', "v"),
        (b'{"v":1,"name":"a","new":1}', "new"),
        (b'{"v":1,"name":"a","tags":[1]}', "tags.0"),
        (b"[]", "the document"),
        (b"nonsense", "the document"),
    ],
)
def test_documents_of_another_form_are_refused(text, where):
    """A missing, unknown or wrong field is an error that names it; the document is left alone."""
    with pytest.raises(
        CorruptDocument, match=rf"a stored Document can't be read: {where}: .*left untouched"
    ):
        codec.decode(Document, text)
