"""Business time: the moment at which some working seconds have passed, in a time zone, with days off.

A question's escalations are computed when it is asked, so the store only sees milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from runner.approvals.rules import Rule
from runner.errors import UsageError
from runner.immutable import immutable

Span = tuple[time, time]
"""Working time: from the first until before the second, which is on the next day unless it is later."""

WORKDAYS: Mapping[int, Sequence[Span]] = {day: ((time(9), time(17)),) for day in range(5)}
"""Monday to Friday, nine to five."""

MOST_DAYS = 3_660
"""Days searched for working time: a calendar without any in ten years has none."""


@immutable
class Calendar:
    """Working hours by weekday (0 is Monday), in the named time zone, without the days in `holidays`.

    A span belongs to the day on which it begins.
    """

    zone: str = "UTC"
    hours: Mapping[int, Sequence[Span]] = field(default_factory=lambda: WORKDAYS)
    holidays: Collection[date] = frozenset()

    def __post_init__(self) -> None:
        """Check the zone and the hours.

        Raises:
            UsageError: the zone is not known, a weekday is invalid, or spans overlap or are out of
                order.
        """
        try:
            ZoneInfo(self.zone)
        except (KeyError, OSError, ValueError) as error:
            raise UsageError(f"the calendar's zone {self.zone!r:.80} is not known.") from error
        for holiday in self.holidays:
            if isinstance(holiday, datetime) or not isinstance(holiday, date):
                raise UsageError(
                    f"a holiday is a date, such as date(2026, 12, 25), not {holiday!r:.80}."
                )
        spans = [
            (day, *span) for day in self.hours for span in self.hours[day] if day in range(7)
        ]
        following = [*spans[1:], *((day + 7, begin, end) for day, begin, end in spans[:1])]
        if not set(self.hours) <= set(range(7)) or any(
            (day + (end <= begin), end) > (next_day, next_begin)
            for (day, begin, end), (next_day, next_begin, _) in zip(
                spans, following, strict=True
            )
        ):
            raise UsageError(
                "the calendar's hours must be spans of the weekdays 0 (Monday) to 6, in order and apart."
            )

    def after(self, start: int, seconds: float) -> int:
        """Return the moment (ms) at which this many working seconds have passed since `start` (ms).

        Raises:
            UsageError: the calendar has no working time in the following ten years.
        """
        zone = ZoneInfo(self.zone)
        remaining = timedelta(seconds=seconds)
        day = datetime.fromtimestamp(start / 1000, zone).date() - timedelta(days=1)
        # The last span of that day may end on the next.
        for _ in range(MOST_DAYS):
            for begin, end in () if day in self.holidays else self.hours.get(day.weekday(), ()):
                # Compare moments: a day on which the clocks change is shorter or longer.
                opening = max(datetime.combine(day, begin, zone).timestamp(), start / 1000)
                last_day = day + timedelta(days=end <= begin)
                closing = datetime.combine(last_day, end, zone).timestamp()
                business_time = timedelta(seconds=max(0.0, closing - opening))
                if business_time and business_time >= remaining:
                    return round((opening + remaining.total_seconds()) * 1000)
                remaining -= business_time
            day += timedelta(days=1)
        raise UsageError(
            "the calendar has no working time in ten years, so nothing would escalate."
        )


_calendars: dict[str, Calendar] = {}


def add_calendar(name: str, calendar: Calendar) -> Calendar:
    """Make a calendar known to rules with `calendar=name`; call it in a module that RUNNER_GRAPHS names.

    Raises:
        UsageError: it isn't a calendar, or another one has that name.
    """
    if not isinstance(calendar, Calendar) or not name:
        raise UsageError(f"{calendar!r:.80} can't be added as the calendar {name!r:.80}.")
    if _calendars.setdefault(name, calendar) != calendar:
        raise UsageError(
            f"there is another calendar {name!r} already; give this one another name."
        )
    return calendar


def calendar(name: str) -> Calendar:
    """Return a calendar by its name.

    Raises:
        UsageError: no calendar has that name.
    """
    result = _calendars.get(name)
    if result is None:
        raise UsageError(
            f"there is no calendar {name!r:.80}; use add_calendar() in a module that RUNNER_GRAPHS names."
        )
    return result


def escalates_at(rule: Rule, asked_at: int) -> list[int]:
    """Return the time of each escalation step in ms, counted in working time if the rule names a calendar.

    Raises:
        UsageError: the calendar is not known, or has no working time.
    """
    if not rule.calendar:
        return [asked_at + round(seconds * 1000) for seconds, _ in rule.escalate]
    hours = calendar(rule.calendar)
    return [hours.after(asked_at, seconds) for seconds, _ in rule.escalate]
