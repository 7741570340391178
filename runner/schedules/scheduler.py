"""Operations on schedules: make, pause, resume, remove, backfill, and start due runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from urllib.parse import quote

from runner.errors import NotFoundError, RunnerError, StoreError, UsageError
from runner.execution.engine import Engine
from runner.immutable import immutable
from runner.records import codec
from runner.records.run import Status
from runner.records.validation import similar
from runner.schedules.schedule import (
    LONGEST_ERROR,
    Schedule,
    checked,
    due,
    key_of,
    next_time,
    tags_of,
    times_between,
)
from runner.store.interface import Store
from runner.store.shared import Documents

log = logging.getLogger(__name__)

LATE = 60_000
"""Ms after which a due schedule that no sweep has handled is late: sweeps come every few seconds."""


@immutable
class Scheduler:
    """The schedules of a store, and the engine that starts their runs."""

    engine: Engine
    schedules: Documents[Schedule]

    def add(self, schedule: Schedule) -> Schedule:
        """Store a new schedule, which starts its first run at its next time.

        Raises:
            UsageError: a value can't be used. ConflictError: the id is taken. NotFoundError: no
                worker has published the graph. UnstorableError: the task can't be stored.
        """
        checked(schedule)
        codec.pack(schedule.task, "the task of the schedule")
        if schedule.graph not in (graphs := self.engine.store.graphs()):
            raise NotFoundError(
                f"no worker has published the graph {schedule.graph!r}; nothing was scheduled."
                + similar(schedule.graph, graphs)
            )
        now = self.schedules.now()
        made = replace(schedule, created_at=now)
        made = replace(made, next_at=next_time(made, now))
        self.schedules.add(made)
        return made

    def pause(self, schedule_id: str) -> Schedule:
        """Start no runs of a schedule until it is resumed."""
        return self.schedules.change(
            schedule_id, lambda schedule: replace(schedule, paused=True, waiting_at=0)
        )

    def resume(self, schedule_id: str) -> Schedule:
        """Continue with the next time; the times that passed meanwhile are left out."""

        def resumed(schedule: Schedule) -> Schedule:
            return replace(
                schedule, paused=False, next_at=next_time(schedule, self.schedules.now())
            )

        return self.schedules.change(
            schedule_id, lambda schedule: resumed(schedule) if schedule.paused else schedule
        )

    def remove(self, schedule_id: str) -> None:
        """Delete a schedule; its runs continue."""
        self.schedules.remove(schedule_id)

    def backfill(self, schedule_id: str, first: int, last: int) -> list[str]:
        """Start a run for each time of a range (ms), at once, even while others run; return the runs.

        A time that already had its run gets no second one.

        Raises:
            UsageError: the range has too many times, or ends in the future.
        """
        schedule = self.schedules.get(schedule_id)
        if last > self.schedules.now():
            raise UsageError(
                "a backfill is for times that have passed: let the range end now or earlier."
            )
        return [self._start(schedule, at) for at in times_between(schedule, first, last)]

    def fire(self, schedule_id: str) -> str:
        """Start the due run of a schedule; return its id, or "".

        The start's key contains the time: if a process dies right after the start, its timer stays,
        and the process that takes it over gets the same run.
        """
        schedule = self.schedules.find(schedule_id)
        if schedule is None:
            return ""
        at, after = due(schedule, self.schedules.now(), is_free=self._is_free(schedule))
        run_id = ""
        if at:
            try:
                run_id = self._start(schedule, at)
            except StoreError:
                raise
            except RunnerError as error:
                log.error("schedule.failed: %r: no run for %s ms: %s", schedule_id, at, error)  # noqa: TRY400 - says all
                after = replace(after, error=str(error)[:LONGEST_ERROR])
            else:
                after = replace(after, last_run=run_id, error="")
        # Even if nothing changes: this sets the timer to its next time.
        self.schedules.replace(schedule, after)
        return run_id

    def _is_free(self, schedule: Schedule) -> bool:
        record = self.engine.store.peek(schedule.last_run) if schedule.last_run else None
        return record is None or record.is_final

    def _start(self, schedule: Schedule, at: int) -> str:
        return self.engine.start(
            schedule.graph,
            schedule.task,
            idempotency_key=key_of(schedule, at),
            tags=tags_of(schedule, at),
            requester={"principal": schedule.requester} if schedule.requester else None,
        )


def trouble(store: Store, schedule: Schedule, now: int) -> tuple[str, str]:
    """Return why a schedule starts no run, and the remedy; two empty texts if it works or is paused."""
    name = quote(schedule.id)
    last = schedule.last_run
    if schedule.paused:
        return "", ""
    if schedule.error:
        fix = f"Correct that, or remove the schedule: `runner api DELETE /v1/schedules/{name}`."
        return f"started no run: {schedule.error}", fix
    if schedule.next_at + LATE < now:
        fix = "Start a worker, with the extra `schedules` for cron expressions. "
        fix += "If one runs, set the timer again: "
        fix += f"`runner api POST /v1/schedules/{name}:pause`, then `:resume`."
        return "is late: no worker has looked at it since its time came", fix
    record = store.peek(last) if last and schedule.overlap != "all" else None
    if record is not None and record.status in {Status.INTERRUPTED, Status.NEEDS_MIGRATION}:
        fix = f"See what that needs, `runner runs show {last}`, or let runs overlap."
        return f"starts no run before its last one, {last}, has ended, and that waits", fix
    return "", ""
