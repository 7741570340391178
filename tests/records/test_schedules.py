from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.schedules.schedule import (
    Schedule,
    checked,
    due,
    in_words,
    key_of,
    next_time,
    times_between,
)

HOURLY = Schedule("s", "g", interval=3600, created_at=1_000, next_at=3_601_000)
HOUR = 3_600_000


def at(text):
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


def cron(expression, zone="UTC"):
    return Schedule("s", "g", cron=expression, timezone=zone)


@given(st.integers(1, 10**6), st.integers(0, 10**10))
def test_an_interval_counts_from_when_it_was_made(seconds, after):
    """The next time is the first multiple of the interval behind a moment, also of one before it was made."""
    schedule = Schedule("s", "g", interval=seconds, created_at=1_000)

    following = next_time(schedule, after)

    assert following > after
    assert (following - 1_000) % (seconds * 1000) == 0
    assert following - seconds * 1000 <= after


@pytest.mark.parametrize(
    ("expression", "zone", "after", "following"),
    [
        ("0 9 * * *", "UTC", "2026-03-01T09:00:00Z", "2026-03-02T09:00:00Z"),
        ("0 9 * * 1-5", "Europe/Rome", "2026-11-20T12:00:00Z", "2026-11-23T08:00:00Z"),
        ("0 9 * * *", "Europe/Rome", "2026-03-28T12:00:00Z", "2026-03-29T07:00:00Z"),
        # In the night in which the clocks skip 2:30, it is an hour later.
        ("30 2 * * *", "Europe/Rome", "2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z"),
        # In that in which they show it twice, it comes once.
        ("30 2 * * *", "Europe/Rome", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
        ("30 2 * * *", "Europe/Rome", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
    ],
)
def test_cron_is_about_the_clocks_of_its_zone(expression, zone, after, following):
    """Also where these clocks are set."""
    assert next_time(cron(expression, zone), at(after)) == at(following)


def minutes_that_match(expression: str, zone: str, first: int, last: int) -> list[int]:
    """Return each minute whose face matches, by looking at every one: the form is minute hour * * *."""

    def values(part: str, most: int) -> set[int]:
        number, _, step = part.partition("/")
        numbers = range(most) if number == "*" else map(int, number.split(","))
        return {value for value in numbers if value % int(step or 1) == 0}

    minutes, hours = (
        values(expression.split()[index], most) for index, most in ((0, 60), (1, 24))
    )
    faces = (
        (moment, datetime.fromtimestamp(moment / 1000, ZoneInfo(zone)))
        for moment in range(first, last + 1, 60_000)
    )
    return [moment for moment, face in faces if face.minute in minutes and face.hour in hours]


FREQUENT = [
    "*/5 * * * *",
    "0 * * * *",
    "* * * * *",
    "7 */2 * * *",
    "*/20 1,2 * * *",
    "30 * * * *",
]


@pytest.mark.full
@pytest.mark.parametrize("expression", FREQUENT)
@pytest.mark.parametrize(
    ("zone", "first", "last"),
    [
        ("Europe/Rome", "2026-10-24T20:00:00Z", "2026-10-25T06:00:00Z"),
        ("Europe/Rome", "2026-03-28T20:00:00Z", "2026-03-29T06:00:00Z"),
        ("America/New_York", "2026-11-01T02:00:00Z", "2026-11-01T12:00:00Z"),
        ("America/New_York", "2026-03-08T02:00:00Z", "2026-03-08T12:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T10:00:00Z", "2026-04-04T20:00:00Z"),
    ],
)
def test_what_is_frequent_goes_on_when_clocks_change(expression, zone, first, last):
    """By the minute: one after the other, in a backfill, and from every moment between."""
    schedule = cron(expression, zone)
    expected = minutes_that_match(expression, zone, at(first), at(last))

    assert times_between(schedule, at(first), at(last)) == expected
    for moment in range(at(first), expected[-1], 7 * 60_000):
        following = next(time for time in expected if time > moment)
        assert next_time(schedule, moment) == following


@pytest.mark.parametrize("expression", ["30 2 * * *", "0,30 1,2 * * *", "15 0-3 * * *"])
@pytest.mark.parametrize(
    ("zone", "first", "last"),
    [
        ("Europe/Rome", "2026-10-24T20:00:00Z", "2026-10-25T06:00:00Z"),
        ("America/New_York", "2026-11-01T02:00:00Z", "2026-11-01T12:00:00Z"),
    ],
)
def test_fixed_hours_come_once_when_clocks_go_back(expression, zone, first, last):
    """No face of that night has two runs, and each that matches has one."""
    times = times_between(cron(expression, zone), at(first), at(last))
    faces = [
        datetime.fromtimestamp(time / 1000, ZoneInfo(zone)).strftime("%d %H:%M")
        for time in times
    ]

    assert len(faces) == len(set(faces))
    assert len(faces) == {"30": 1, "0,30": 4, "15": 4}[expression.split()[0]]


def test_what_was_missed_is_one_run():
    """After an outage of five hours the latest time has its run, and the next one is in the future."""
    now = HOURLY.next_at + 5 * HOUR + 7

    started, after = due(HOURLY, now, is_free=True)

    assert (started, after.next_at) == (HOURLY.next_at + 5 * HOUR, HOURLY.next_at + 6 * HOUR)
    assert due(after, now, is_free=True)[0] == 0


def test_overlaps():
    """While the last run goes on a time is left out, waits for its end, or is started beside it."""
    now = HOURLY.next_at

    assert due(HOURLY, now, is_free=False) == (0, replace(HOURLY, next_at=now + HOUR))
    assert due(replace(HOURLY, overlap="all"), now, is_free=False)[0] == now
    nothing, waits = due(replace(HOURLY, overlap="buffer"), now, is_free=False)
    assert (nothing, waits.waiting_at) == (0, now)
    assert due(waits, now + 5, is_free=False)[0] == 0
    started, after = due(waits, now + 9, is_free=True)
    assert (started, after.waiting_at) == (now, 0)


def test_a_paused_schedule_starts_nothing():
    """However long it was due."""
    paused = replace(HOURLY, paused=True)

    assert due(paused, HOURLY.next_at + 9 * HOUR, is_free=True) == (0, paused)


@pytest.mark.full
def test_a_range_has_each_of_its_times():
    """Both ends included; too many are refused."""
    times = times_between(
        cron("0 * * * *"), at("2026-01-01T00:00:00Z"), at("2026-01-01T05:00:00Z")
    )

    assert len(times) == 6
    with pytest.raises(UsageError, match="1000"):
        times_between(cron("* * * * *"), 0, at("2026-01-01T00:00:00Z"))


def test_a_time_has_one_key():
    """It differs by schedule, time, and the schedule of that name that there was before."""
    keys = {key_of(HOURLY, 1), key_of(HOURLY, 2), key_of(replace(HOURLY, id="t"), 1)}

    assert len({*keys, key_of(replace(HOURLY, created_at=5), 1)}) == 4
    assert key_of(HOURLY, 1) == key_of(replace(HOURLY, paused=True), 1)


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": "a|b"},
        {"graph": ""},
        {"interval": None},
        {"cron": "0 9 * * *"},
        {"interval": None, "cron": "every day"},
        {"interval": None, "cron": "0 9 * * * *"},
        {"interval": None, "cron": "0 0 30 2 *"},
        {"interval": None, "cron": "R * * * *"},
        {"interval": None, "cron": "r(0-5) 9 * * *"},
        {"interval": None, "cron": f"{'0,' * 50_000}0 9 * * *"},
        {"interval": 0.1},
        {"timezone": "Mars/Base"},
        {"overlap": "maybe"},
        {"tags": {"a=b": "c"}},
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(change):
    """At the door, with the reason."""
    with pytest.raises(UsageError):
        checked(replace(HOURLY, **change))


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 3 * * *", "every day at 03:00"),
        ("0 9 * * 1-5", "Monday to Friday at 09:00"),
        ("0 9 * * 0", "every Sunday at 09:00"),
        ("30 8 1 * *", "on day 1 of each month at 08:30"),
        ("5 * * * *", "every hour at :05"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/7 * * * *", "*/7 * * * *"),
        ("0 9 1 * 1", "0 9 1 * 1"),
        ("0 9 * 1 *", "0 9 * 1 *"),
    ],
)
def test_a_time_is_told_in_words(cron, words):
    """The usual expressions have words; any other stays as it was written."""
    assert in_words(Schedule("id", "graph", cron=cron)) == words


def test_an_interval_is_told_in_its_largest_unit():
    """Of those that leave no rest."""
    assert [
        in_words(Schedule("id", "graph", interval=seconds))
        for seconds in (60.0, 5400.0, 86_400.0)
    ] == [
        "every minute",
        "every 90 minutes",
        "every day",
    ]
