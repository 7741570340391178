"""The calendars that rules name, and the moments at which a question escalates by them."""

from __future__ import annotations

from runner.errors import UsageError
from runner.records.approvals import Rule
from runner.records.calendars import Calendar

_calendars: dict[str, Calendar] = {}


def add_calendar(name: str, calendar: Calendar) -> Calendar:
    """Make a calendar known to rules with `calendar=name`; do it in a module that RUNNER_GRAPHS names.

    Raises:
        UsageError: it is no calendar, or another one has that name.
    """
    if not isinstance(calendar, Calendar) or not name:
        raise UsageError(f"{calendar!r:.80} can't be added as the calendar {name!r:.80}.")
    if _calendars.setdefault(name, calendar) != calendar:
        raise UsageError(f"there is another calendar {name!r} already; give this one a name of its own.")
    return calendar


def calendar(name: str) -> Calendar:
    """Return a calendar by its name.

    Raises:
        UsageError: none has that name.
    """
    known = _calendars.get(name)
    if known is None:
        raise UsageError(
            f"there is no calendar {name!r:.80}; use add_calendar() in a module that RUNNER_GRAPHS names."
        )
    return known


def escalates_at(rule: Rule, asked_at: int) -> list[int]:
    """Return when each step of a rule's escalation comes, in ms: in working time where it names a calendar.

    Raises:
        UsageError: the calendar is not known, or has no working time.
    """
    if not rule.calendar:
        return [asked_at + round(seconds * 1000) for seconds, _ in rule.escalate]
    hours = calendar(rule.calendar)
    return [hours.after(asked_at, seconds) for seconds, _ in rule.escalate]
