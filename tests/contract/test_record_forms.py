"""The forms of records' texts: what one language writes, the other reads."""

from __future__ import annotations

import re

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.store.encoding import FORMS
from runner.store.redis import scripts

VALUES = {
    "%a+": st.from_regex(r"[a-z]+", fullmatch=True),
    "%d+": st.integers(0, 2**53).map(str),
    "%S+": st.from_regex(r"[a-z0-9_=.-]+", fullmatch=True),
    ".*": st.text(st.characters(codec="ascii", exclude_characters="\0")),
}
SPLIT = (
    "local found = {ARGV[1]:match(ARGV[2])} return #found > 0 and table.concat(found, '\\0')"
)
JOIN = "return table.concat(ARGV, ' ')"


@pytest.mark.full
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_language_reads_what_the_other_writes(redis_url, data):
    """A record that Python writes is split by a script's pattern, and the reverse."""
    name = data.draw(st.sampled_from(sorted(FORMS)))
    form = FORMS[name]
    values = {field: data.draw(VALUES[kind]) for field, kind in form.patterns.items()}
    names = data.draw(st.lists(st.sampled_from(list(values)), min_size=2, unique=True))
    text, ordered = form.text(**values), [field for field in values if field in names]
    with redis.Redis.from_url(redis_url) as client:
        captured = client.eval(SPLIT, 0, text, form.pattern(" ".join(ordered)))
        joined = client.eval(JOIN, 0, *values.values())
        fixed = " ".join(
            f"{field}={values[field]}" for field in ordered if field not in {"rest", "graph"}
        )
        found = client.eval("return ARGV[1]:find(ARGV[2])", 0, text, form.pattern(fixed))

    assert captured.decode().split("\0") == [values[field] for field in ordered]
    read = form.reader(" ".join(names))(joined)
    assert (read if len(names) > 1 else (read,)) == tuple(values[field] for field in names)
    assert found == 1
    assert form.replace(joined, names[0], "0") == form.text(**values | {names[0]: "0"}).encode()


def test_a_pattern_takes_no_other_record():
    """A required value is whole: `0` isn't the beginning of `01`, and the last field ends the text."""
    pattern = re.compile(FORMS["map"].pattern("stopped=0").replace("%", "\\"))

    assert pattern.match("1 2 3 4 5 6 0 7")
    assert not pattern.match("1 2 3 4 5 6 01 7")
    assert FORMS["run"].pattern("stopping=-").endswith("%-$")


def test_scripts_name_fields_in_their_order():
    """Captures come in the record's order, so a script that names them in another would mix them up."""
    for path in scripts.ROOM.rglob("*.lua"):
        for name, items in scripts.FORM.findall(path.read_text(encoding="utf-8")):
            fields = [
                field for item in items.split() for field in item.split("=")[0].split("+")
            ]
            places = [list(FORMS[name].patterns).index(field) for field in fields]
            assert places == sorted(places), (path.name, items)
