from __future__ import annotations

import math
from datetime import UTC

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UnstorableError
from runner.records import codec
from runner.records.failures import ErrorRecord, load, record, restore


class Parcel(pydantic.BaseModel):
    weight: float = pydantic.Field(allow_inf_nan=False)
    labels: dict[str, list[int]] = {}


keys = st.text(max_size=8) | st.sampled_from(sorted(codec.RESERVED))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-codec.MAX_INTEGER, codec.MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.datetimes(timezones=st.just(UTC) | st.none())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.builds(
        Parcel,
        weight=st.floats(allow_nan=False, allow_infinity=False),
        labels=st.dictionaries(
            st.text(max_size=4), st.lists(st.integers(-9, 9), max_size=3), max_size=2
        ),
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
bad_scalars = st.sampled_from([math.nan, math.inf, 2**70, "\udfff", object(), {1}, 1j])


@pytest.mark.full
@given(values)
def test_every_value_survives_storing(value):
    """What is packed, written, read and unpacked is the value, whatever its keys look like."""
    copy = codec.unpack(codec.load_json(codec.dump_json(codec.pack(value, "value"))))

    assert (type(copy), copy) == (type(value), value)


@pytest.mark.full
@given(values)
def test_packed_data_is_json_that_reading_does_not_change(value):
    """Packed data is plain JSON: writing and reading it changes nothing."""
    packed = codec.pack(value, "value")

    assert codec.load_json(codec.dump_json(packed)) == packed


@pytest.mark.full
@given(values)
def test_the_plain_form_is_json(value):
    """The form that other programs see can always be written and read."""
    plain = codec.plain(value)

    assert codec.load_json(codec.dump_json(plain)) == plain


@pytest.mark.full
@given(values)
def test_a_result_has_both_forms(value):
    """The two forms of a result are those of any value, and one object where nothing sets them apart."""
    packed, plain = codec.pack_result(value)

    assert (packed, plain) == (codec.pack(value, "value"), codec.plain(value))
    assert (packed is plain) == (packed == plain)


@pytest.mark.full
@given(
    values,
    bad_scalars,
    st.lists(st.text("abc", min_size=1, max_size=3) | st.integers(0, 2), max_size=4),
)
def test_a_bad_value_is_refused_by_its_path(good, bad, path):
    """However deep the bad value lies, the error names the way to it."""
    value, name = bad, "output"
    for step in reversed(path):
        value = (
            {step: value, "good": good} if isinstance(step, str) else [*[good] * step, value]
        )
    for step in path:
        name += f".{step}" if isinstance(step, str) else f"[{step}]"

    try:
        codec.pack(value, "output")
    except UnstorableError as refused:
        assert str(refused).startswith(name + " ")  # noqa: PT017 - the good values would be refused by another name
    else:
        raise AssertionError("a value that can't be stored was taken")


ERRORS = [Exception, ValueError, KeyError, LookupError, OSError, TimeoutError, ArithmeticError]
arguments = st.lists(scalars | st.tuples(st.integers(0, 9)) | st.just(object()), max_size=3)


@given(
    st.sampled_from(ERRORS), arguments, st.lists(st.text(max_size=5), max_size=2), st.booleans()
)
def test_an_error_reads_alike_after_storing(cls, given_arguments, notes, chained):
    """Type, text, repr, notes and cause of an error are those it had, in any process."""
    error = cls(*given_arguments)
    error.__cause__ = KeyError("cause") if chained else None
    for note in notes:
        error.add_note(note)

    stored = codec.decode(ErrorRecord, codec.encode(record(error)))
    copy = restore(load(codec.load_json(codec.encode(stored))))

    assert isinstance(copy, type(error))
    assert (type(copy).__name__, str(copy), repr(copy)) == (
        type(error).__name__,
        str(error),
        repr(error),
    )
    assert getattr(copy, "__notes__", []) == notes
    assert repr(copy.__cause__) == repr(error.__cause__)
