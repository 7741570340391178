"""Schedules: the times at which runs start, and the overlap with a previous run that is still open.

Pure: times are milliseconds since 1970 and are passed in. A run is started for a time, never by a
count: the times missed while no worker ran become one run, for the latest of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal
from zoneinfo import ZoneInfo

from runner.errors import UsageError, needs_extra
from runner.immutable import immutable
from runner.records import validation
from runner.records.json_form import stamp
from runner.records.listings import checked_tags
from runner.records.payloads import Payload

Overlap = Literal["skip", "buffer", "all"]
OVERLAPS = ("skip", "buffer", "all")

LEAST_INTERVAL = 1.0
MOST_INTERVAL = 366 * 86_400.0

MOST_YEARS = 50
"""Maximum years between two cron times; an expression that never matches, such as 30 February, is refused."""

MOST_REPEATED = timedelta(hours=3)
"""Longer than clocks go back at once: a repeated time came for the first time less than this ago."""

MOST_CRON = 200
"""Maximum number of characters of a cron expression: each look at a schedule parses it."""

CHANCE = re.compile(r"(?<![a-z])[rh](?![a-z])", re.IGNORECASE)
"""Fields that croniter reads as a random or hashed value, a different one at each look."""

SOON = 1_000
"""Ms until the next look at a schedule whose run waits for another one to end."""

LONGEST_ERROR = 1_000
"""Maximum number of characters of the error stored with a schedule."""

MOST_BACKFILL = 1_000
"""Maximum number of runs of one backfill."""


@immutable
class Schedule:
    """Times at which a graph is started automatically.

    Either `interval` (seconds) or `cron` (five fields) with `timezone`. If the last run is still
    open at a time, `overlap` decides: no run ("skip"), one run after its end ("buffer": at most one
    waits), or a run beside it ("all"). `next_at` is the time of the next run, `last_run` the last
    one, `requester` the principal who made the schedule, and so asks for its runs. `waiting_at` is
    the time whose run waits for the last one to end; 0 for none. `error` says why the latest time
    started no run.
    """

    id: str
    graph: str
    task: Payload[Any] = None
    interval: float | None = None
    cron: str = ""
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    tags: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    created_at: int = 0
    next_at: int = 0
    last_at: int = 0
    last_run: str = ""
    waiting_at: int = 0
    requester: str = ""
    error: Payload[str] = ""
    v: int = 1

    kind: ClassVar = "schedule"
    limit: ClassVar = 1_000  # a list reads all

    def due_at(self, now: int) -> int | None:
        """Return the time of its timer (ms); None if it is paused."""
        if self.paused:
            return None
        return min(self.next_at, now + SOON) if self.waiting_at else self.next_at


def checked(schedule: Schedule) -> Schedule:
    """Return a schedule whose values can be used.

    Raises:
        UsageError: a value can't be used; the message says which and why.
    """
    for name, text in (("id", schedule.id), ("graph", schedule.graph)):
        if not text or validation.problem(text, 200) or "|" in text or "/" in text:
            raise UsageError(
                f"the {name} of a schedule is a short text without | and /, not {text!r:.80}."
            )
    if bool(schedule.cron) == (schedule.interval is not None):
        raise UsageError("a schedule needs an interval or a cron expression, and not both.")
    if (
        schedule.interval is not None
        and not LEAST_INTERVAL <= schedule.interval <= MOST_INTERVAL
    ):
        raise UsageError(
            f"an interval is from 1 second to a year, not {schedule.interval!r:.40} seconds."
        )
    if schedule.overlap not in OVERLAPS:
        raise UsageError(
            f"overlap is one of {', '.join(OVERLAPS)}, not {schedule.overlap!r:.40}."
        )
    try:
        ZoneInfo(schedule.timezone)
    except (KeyError, OSError, ValueError) as error:
        raise UsageError(f"the time zone {schedule.timezone!r:.80} is not known.") from error
    if schedule.cron and next(_cron_times(schedule, 0), None) is None:
        raise UsageError(f"{schedule.cron!r} never matches a time.")
    checked_tags(schedule.tags)
    return schedule


def _cron(expression: str) -> Any:
    with needs_extra("schedules", "cron expressions"):
        from croniter import croniter  # noqa: PLC0415 - an extra
    is_plain = len(expression) <= MOST_CRON and not CHANCE.search(expression)
    if not is_plain or len(expression.split()) != 5 or not croniter.is_valid(expression):
        raise UsageError(
            f"{expression!r:.80} is not a cron expression: minute, hour, day, month, weekday."
        )
    return croniter


def next_time(schedule: Schedule, after: int) -> int:
    """Return the first time of a schedule after a moment.

    Intervals count from the schedule's creation. Cron times are local. As in ISC cron(8), if the
    minute or the hour begins with `*`, they continue through the time that clocks repeat when they
    go back, and skipped times are not made up when clocks go forward. Other times come once: a
    skipped one comes as much later as the clocks went forward (in ISC cron right after the change).
    """
    if schedule.interval is not None:
        step = round(schedule.interval * 1000)
        passed = (after - schedule.created_at) // step
        return schedule.created_at + (passed + 1) * step
    return next(_cron_times(schedule, after))


def _cron_times(schedule: Schedule, after: int) -> Iterator[int]:
    # Count local times without a zone, so that every matching time of a day comes exactly once.
    zone = ZoneInfo(schedule.timezone)
    face = datetime.fromtimestamp(after / 1000, zone).replace(tzinfo=None)
    croniter = _cron(schedule.cron)
    frequent = any(part.startswith("*") for part in schedule.cron.split()[:2])
    if _moment(face, zone, 0) != _moment(face, zone, 1):
        face -= MOST_REPEATED
    years = {"max_years_between_matches": MOST_YEARS}
    coming: list[int] = []
    for local in croniter(schedule.cron, face, ret_type=datetime, **years).all_next():
        now = _moment(local, zone, 0)
        again = _moment(local, zone, 1)
        if not frequent or now <= again:  # in a gap, fold=1 is the earlier moment
            coming.append(now)
        yield from (moment for moment in sorted(coming) if after < moment <= now)
        coming = [moment for moment in coming if moment > now]
        if frequent and now < again:
            coming.append(again)


def _moment(face: datetime, zone: ZoneInfo, fold: int) -> int:
    return round(face.replace(tzinfo=zone, fold=fold).timestamp() * 1000)


def times_between(schedule: Schedule, first: int, last: int) -> list[int]:
    """List the times of a schedule from `first` to `last`, both included.

    Raises:
        UsageError: the range has more times than a backfill may have, or ends before it begins.
    """
    if not 0 <= first <= last:
        raise UsageError("a range begins in 1970 or later, and before it ends.")
    times: list[int] = []
    moment = next_time(schedule, first - 1)
    while moment <= last:
        times.append(moment)
        if len(times) > MOST_BACKFILL:
            raise UsageError(
                f"the range has more than {MOST_BACKFILL} times; take a shorter one."
            )
        moment = next_time(schedule, moment)
    return times


def due(schedule: Schedule, now: int, *, is_free: bool) -> tuple[int, Schedule]:
    """Return the time for which to start a run now (0: none), and the schedule after that.

    `is_free` says that the last run has ended.
    """
    if schedule.paused:
        return 0, schedule
    free = is_free or schedule.overlap == "all"
    if schedule.next_at > now:
        if schedule.waiting_at and free:
            return schedule.waiting_at, replace(
                schedule, waiting_at=0, last_at=schedule.waiting_at
            )
        return 0, schedule
    latest = schedule.next_at
    while (later := next_time(schedule, latest)) <= now:
        latest = later
    moved = replace(schedule, next_at=later)
    if free:
        return latest, replace(moved, waiting_at=0, last_at=latest)
    return 0, replace(moved, waiting_at=latest if schedule.overlap == "buffer" else 0)


NAMES = "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"
DAYS = dict(zip("01234567", NAMES, strict=True))


def in_words(schedule: Schedule) -> str:
    """Say when a schedule starts runs; a cron expression without a short description stays as it is."""
    if schedule.interval is not None:
        return f"every {_spell(schedule.interval)}"
    minute, hour, day, month, weekday = schedule.cron.split()
    if hour == day == month == weekday == "*":
        step = minute.removeprefix("*/")
        if step.isdecimal() and 60 % int(step or 1) == 0 and step != minute:
            return f"every {_spell(60 * int(step))}"
    if not minute.isdecimal() or month != "*":
        return schedule.cron
    if hour == day == weekday == "*":
        return f"every hour at :{minute:0>2}"
    days = [DAYS.get(part, "") for part in weekday.split("-")]
    when = f"at {hour:0>2}:{minute:0>2}"
    match hour.isdecimal(), day, weekday:
        case True, "*", "*":
            return f"every day {when}"
        case True, "*", _ if all(days):
            return f"{'every ' * (len(days) == 1)}{' to '.join(days)} {when}"
        case True, _, "*" if day.isdecimal():
            return f"on day {day} of each month {when}"
    return schedule.cron


def _spell(seconds: float) -> str:
    for name, length in (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60)):
        number, rest = divmod(seconds, length)
        if number and not rest:
            return name if number == 1 else f"{number:g} {name}s"
    return f"{seconds:g} second{'s' * (seconds != 1)}"


def key_of(schedule: Schedule, at: int) -> str:
    """Return the idempotency key of a run: each time of a schedule starts one run, in whichever process."""
    return f"schedule:{schedule.id}:{schedule.created_at}:{at}"


def tags_of(schedule: Schedule, at: int) -> dict[str, str]:
    """Return the tags of a run: the schedule's tags, its id and the time."""
    return {**schedule.tags, "schedule": schedule.id, "scheduled_at": stamp(at) or ""}
