"""Calendars by name, and when a question escalates by one."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from runner.approvals import DAY, HOUR, Rule, calendars
from runner.approvals.calendars import Calendar, add_calendar, escalates_at
from runner.errors import UsageError

FRIDAY = round(datetime(2026, 11, 27, 16, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(autouse=True)
def office(monkeypatch):
    monkeypatch.setattr(calendars, "_calendars", {})
    return add_calendar("office", Calendar())


def moments(rule):
    return [
        datetime.fromtimestamp(at / 1000, UTC).strftime("%a %H:%M")
        for at in escalates_at(rule, FRIDAY)
    ]


def rule(**options):
    return Rule(escalate=[(2 * HOUR, ["role:lead"]), (8 * HOUR, ["role:cfo"])], **options)


def test_a_rule_escalates_in_working_time():
    """Asked on Friday at four, two working hours are over on Monday at ten; by the clock at six."""
    assert moments(rule(calendar="office")) == ["Mon 10:00", "Mon 16:00"]
    assert moments(rule()) == ["Fri 18:00", "Sat 00:00"]
    assert moments(Rule(escalate=[(DAY, ["role:cfo"])])) == ["Sat 16:00"]


def test_a_calendar_that_nobody_added_is_refused_when_asked():
    """Its name is in the message, and where to add it."""
    with pytest.raises(UsageError, match=r"'office 2'.*add_calendar"):
        escalates_at(rule(calendar="office 2"), FRIDAY)


def test_a_name_means_one_calendar(office):
    """The same one again is fine: modules are imported twice. Another one is a mistake."""
    assert add_calendar("office", Calendar()) == office
    with pytest.raises(UsageError, match="another calendar"):
        add_calendar("office", Calendar("Europe/Berlin"))
    with pytest.raises(UsageError, match="can't be added"):
        add_calendar("days", [date(2026, 1, 1)])


@pytest.mark.full
def test_holidays_of_a_country_are_days_off():
    """The package `holidays` (extra `calendars`) has them; what it gives is used as it is."""
    holidays = pytest.importorskip("holidays")
    germany = add_calendar(
        "de", Calendar("Europe/Berlin", holidays=holidays.country_holidays("DE"))
    )
    christmas_eve = round(datetime(2026, 12, 24, 15, tzinfo=UTC).timestamp() * 1000)
    escalation = Rule(escalate=[(2 * HOUR, ["role:lead"])], calendar="de")

    [at] = escalates_at(escalation, christmas_eve)
    # Thursday at four; Friday and the weekend are off.
    assert datetime.fromtimestamp(at / 1000, UTC).strftime("%d %H:%M") == "28 09:00"
    assert germany == add_calendar("de", germany)
