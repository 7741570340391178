"""Digests of what people approve: other languages compute the same, and nothing else has the same."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.approvals.digests import Action, canonical, digest
from runner.errors import UnstorableError

PROGRAM = Path(__file__).with_name("digests.mjs")
NODE = shutil.which("node") or str(Path(sys.executable).with_name("node"))

NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(
    allow_nan=False, allow_infinity=False
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)

# From RFC 8785, section 3.2.
EXAMPLE = json.loads(
    r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
    "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"""
)
CANONICAL = (
    r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
)
SORTED = ["\r", "1", "\x80", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_the_canonical_form_is_that_of_the_standard():
    """Numbers as in ECMAScript, names sorted by UTF-16 code units, as the RFC's examples have it."""
    assert canonical(EXAMPLE, "it").decode() == CANONICAL
    assert list(json.loads(canonical(dict.fromkeys(reversed(SORTED), 0), "it"))) == SORTED


def in_javascript(cases: list[tuple[str, object]]) -> list[str]:
    text = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(
        [NODE, str(PROGRAM)], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
@settings(max_examples=10)  # each starts Node
@given(
    st.lists(
        st.tuples(st.sampled_from(["action", "question"]), VALUES), min_size=50, max_size=50
    )
)
def test_another_language_computes_the_same(cases):
    """Twenty lines of JavaScript agree on any JSON value."""
    assert in_javascript(cases) == [digest(kind, value) for kind, value in cases]


EDGE_NUMBERS = st.sampled_from(
    [0.0, -0.0, 250.0, 0.1, 1e-5, 1e-7, 1e15, 1e16, 1e21, 2**53 - 1, 2**53, math.nan, -math.inf]
)
TEXTS = st.text() | st.sampled_from(
    [":1.0", '":1e5', "a:1.0", ",250.0", "\ue000", "\U0001f600", "\ud800", "\x7f\n"]
)


@given(
    st.recursive(
        EDGE_NUMBERS | NUMBERS | TEXTS,
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        max_leaves=8,
    )
)
def test_the_quick_way_writes_what_the_standard_does(value):
    """Any number and text is written, or refused, as by the library that knows all of RFC 8785."""
    try:
        expected = rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        with pytest.raises(UnstorableError):
            canonical(value, "it")
    else:
        assert canonical(value, "it") == expected


@pytest.mark.parametrize("value", [{1}, b"", {"a": {1}}], ids=repr)
def test_what_is_no_json_is_refused(value):
    """A value that JSON does not have has no digest."""
    with pytest.raises(UnstorableError):
        digest("action", value)


@pytest.mark.parametrize(
    "value",
    [2**53, -(2**53), math.nan, math.inf, "\ud800", {"a": [2**60]}, {"\udfff": 1}],
    ids=repr,
)
def test_what_others_would_read_as_another_value_is_refused(value):
    """Such a value is refused when it is asked about, not when it is compared."""
    with pytest.raises(UnstorableError, match="the action"):
        digest("action", value)


def test_kinds_do_not_share_digests():
    """The domain in front keeps an action's digest from being a question's."""
    assert digest("action", {}) != digest("question", {})


CALL = Action("shop", "tool", "refund", {"order": "1042", "amount": 120}, {"type": "object"})


@pytest.mark.parametrize(
    "other",
    [
        Action("test", "tool", "refund", {"order": "1042", "amount": 120}, {"type": "object"}),
        Action(
            "shop", "function", "refund", {"order": "1042", "amount": 120}, {"type": "object"}
        ),
        Action(
            "shop", "tool", "refund_all", {"order": "1042", "amount": 120}, {"type": "object"}
        ),
        Action("shop", "tool", "refund", {"order": "1042", "amount": 1200}, {"type": "object"}),
        Action(
            "shop", "tool", "refund", {"order": "1042", "amount": "120"}, {"type": "object"}
        ),
        Action("shop", "tool", "refund", {"order": "1042", "amount": 120}, {"type": "array"}),
        Action(
            "shop",
            "tool",
            "refund",
            {"order": "1042", "amount": 120, "now": None},
            {"type": "object"},
        ),
    ],
)
def test_an_action_with_another_part_has_another_digest(other):
    """Tenant, kind, tool, arguments and schema are all covered."""
    assert other.digest() != CALL.digest()


def test_the_order_of_arguments_does_not_count():
    """Two programs may write the same call in another order, and 120 as 120.0."""
    same = Action(
        "shop", "tool", "refund", {"amount": 120.0, "order": "1042"}, {"type": "object"}
    )
    assert same.digest() == CALL.digest()
