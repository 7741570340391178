"""Business time: nights, weekends, holidays and changes of the clock do not count."""

from __future__ import annotations

from datetime import date, datetime, time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.approvals.calendars import Calendar
from runner.errors import UsageError

HOUR = 3600
BERLIN = "Europe/Berlin"
OFFICE = Calendar(BERLIN, holidays={date(2026, 12, 25)})


def ms(*moment: int) -> int:
    return round(datetime(*moment, tzinfo=ZoneInfo(BERLIN)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("start", "hours", "expected"),
    [
        (ms(2026, 11, 23, 10), 2, ms(2026, 11, 23, 12)),
        (ms(2026, 11, 23, 3), 1, ms(2026, 11, 23, 10)),
        (ms(2026, 11, 23, 16), 2, ms(2026, 11, 24, 10)),
        (ms(2026, 11, 27, 16), 2, ms(2026, 11, 30, 10)),
        (ms(2026, 11, 28, 12), 8, ms(2026, 11, 30, 17)),
        (ms(2026, 12, 24, 16), 2, ms(2026, 12, 28, 10)),
        (ms(2026, 11, 23, 9), 40, ms(2026, 11, 27, 17)),
    ],
    ids=["within", "before", "overnight", "weekend", "from-weekend", "holiday", "week"],
)
def test_only_working_hours_count(start, hours, expected):
    """So many hours of work after a question is asked is this moment."""
    assert OFFICE.after(start, hours * 3600) == expected


def test_a_day_on_which_the_clocks_change_is_as_long_as_it_is():
    """A night shift over the change in spring has seven hours, that in autumn nine."""
    night = Calendar(BERLIN, {day: ((time(0), time(8)),) for day in range(7)})

    assert night.after(ms(2026, 3, 29, 0), 7 * 3600) == ms(2026, 3, 29, 8)
    assert night.after(ms(2026, 10, 25, 0), 9 * 3600) == ms(2026, 10, 25, 8)


@given(
    st.integers(ms(2026, 1, 1), ms(2027, 1, 1)),
    st.integers(1, 400_000),
    st.integers(1, 400_000),
)
def test_business_time_adds_up(start, first, more):
    """Waiting twice is waiting once for the sum."""
    assert OFFICE.after(OFFICE.after(start, first), more) == OFFICE.after(start, first + more)


TWO_SPANS = {0: ((time(9), time(12)), (time(12), time(17)))}
NIGHTS = {day: ((time(22), time(6)),) for day in range(4)}
ALWAYS = {day: ((time(0), time(0)),) for day in range(7)}


@pytest.mark.parametrize(
    ("hours", "start", "seconds", "end"),
    [
        (TWO_SPANS, (2026, 11, 23, 11), 2 * HOUR, (2026, 11, 23, 13)),
        (NIGHTS, (2026, 11, 23, 23), 2 * HOUR, (2026, 11, 24, 1)),
        (NIGHTS, (2026, 11, 24, 5), 2 * HOUR, (2026, 11, 24, 23)),
        (NIGHTS, (2026, 11, 27, 5), 2 * HOUR, (2026, 11, 30, 23)),
        (ALWAYS, (2026, 11, 23, 11), 24 * HOUR, (2026, 11, 24, 11)),
        (ALWAYS, (2026, 10, 24, 12), 24 * HOUR, (2026, 10, 25, 11)),
    ],
    ids=["touching", "over midnight", "after a night", "after the week", "always", "autumn"],
)
def test_spans_may_touch_and_go_over_midnight(hours, start, seconds, end):
    """A lunch that is worked through, night shifts, and a service that never closes."""
    assert Calendar(BERLIN, hours).after(ms(*start), seconds) == ms(*end)


@pytest.mark.parametrize(
    "calendar",
    [
        {"zone": "Mars/Olympus"},
        {"zone": "../etc/passwd"},
        {"hours": {7: ((time(9), time(17)),)}},
        {"hours": {0: ((time(17), time(9)),), 1: ((time(8), time(12)),)}},
        {"hours": {6: ((time(22), time(6)),), 0: ((time(5), time(12)),)}},
        {"hours": {0: ((time(13), time(17)), (time(9), time(12)))}},
        {"hours": {"Monday": ((time(9), time(17)),)}},
        {"holidays": {datetime(2026, 12, 8)}},  # noqa: DTZ001 - what a careless program has
        {"holidays": {"2026-12-08"}},
        {"hours": {0: ((time(9), time(12)), (time(11), time(17)))}},
    ],
    ids=[
        "zone",
        "path",
        "weekday",
        "night overlaps",
        "overlap",
        "week overlaps",
        "out of order",
        "name",
        "datetime",
        "text",
    ],
)
def test_a_calendar_that_makes_no_sense_is_refused(calendar):
    """Where it is declared, not when a question is asked."""
    with pytest.raises(UsageError):
        Calendar(**calendar)


def test_a_calendar_without_work_is_refused_when_it_is_used():
    """Otherwise an escalation would silently never come."""
    with pytest.raises(UsageError):
        Calendar(hours={}).after(ms(2026, 11, 23, 10), 60)
