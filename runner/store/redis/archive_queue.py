"""Ended runs that wait for an archive: workers take them to write, or they expire without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.immutable import immutable
from runner.store.encoding import RECORD
from runner.store.interface import Reply
from runner.store.redis.connection import mapping_of
from runner.store.redis.keys import run_key
from runner.store.redis.transaction import run_end
from runner.store.redis.transaction.run_end import ARCHIVE, UNARCHIVED
from runner.store.redis.transaction.sets import GUARDED, Command
from runner.store.redis.transaction.transaction import Transaction

TIMER = "archive||"
"""The timer that is due when no worker has looked for runs to archive for a long time."""

LONGEST_DELAY_MS = 3_600_000
"""The longest wait before a run that could not be archived is tried again."""

AT_ONCE = 100
"""Maximum runs that are given up in one transaction."""


@immutable
class Search:
    """Parameters of a search for runs to archive; see `RedisStore.archivable`. Times are in ms."""

    place: str
    limit: int
    pause: int
    mine: int
    hold: int
    problem: str

    @property
    def oldest(self) -> Command:
        """The command that reads the first runs, each with the time from which it may be taken."""
        return ("ZRANGE", UNARCHIVED, 0, self.limit - 1, "WITHSCORES")


def take(transaction: Transaction, search: Search, runs: list[str]) -> Reply:
    """Put the runs for the caller to archive into a list; no other caller gets them for a while.

    It also records that an archive exists, for which ended runs are kept from now on.
    """
    write_set = transaction.write_set
    now = transaction.clock()
    oldest = write_set.read_set.reply(*search.oldest)
    times = {run_id.decode(): int(at) for run_id, at in mapping_of(oldest).items()}
    due = {run_id: at for run_id, at in times.items() if at <= now}
    runs.clear()
    for name, value in (("place", search.place), ("at", now), ("problem", search.problem)):
        write_set.put(ARCHIVE, name, value)
    write_set.timers[TIMER] = now + search.hold
    if len(due) < search.limit and (not due or min(due.values()) + search.pause > now):
        return Reply("archivable")
    for run_id in due:
        write_set.read_set.want(run_key(run_id), ("ended",))
    for run_id, at in due.items():
        write_set.scores[UNARCHIVED, run_id] = at
        age_ms = now - int(write_set.read_unvalidated(run_key(run_id), "ended", GUARDED) or now)
        if age_ms > search.hold:
            _give_up(transaction, run_id, "it could not be written")
        else:
            # A run that fails is tried again after ever longer waits.
            wait = min(max(search.mine, age_ms // 8), LONGEST_DELAY_MS)
            write_set.command("ZADD", UNARCHIVED, now + wait, run_id)
            runs.append(run_id)
    return Reply("archivable")


def reads(runs: Mapping[str, int]) -> tuple[Sequence[tuple[str, str]], Sequence[Command]]:
    """Return the read set of `let_expire`: fields, each with its key, and commands."""
    names = (*RECORD, "ended", "idem", "tags")
    fields = [(run_key(run_id), name) for run_id in runs for name in names]
    asks: list[Command] = [("ZSCORE", UNARCHIVED, run_id) for run_id in runs]
    return fields, asks + [("LRANGE", f"{run_key(run_id)}:c", 0, -1) for run_id in runs]


def let_expire(transaction: Transaction, runs: Mapping[str, int]) -> Reply:
    """Let archived runs expire: run -> the end at which it was archived.

    A run that has continued or ended again since doesn't expire. While it continues, it doesn't wait for the
    archive either, since its end puts it back.
    """
    write_set = transaction.write_set
    for run_id, ended_at in runs.items():
        run = run_end.read_record(write_set, run_id)
        end_text = write_set.read(run_key(run_id), "ended")
        is_final = run is not None and run.is_final
        if is_final and int(end_text or 0) != ended_at:
            continue
        if write_set.read_set.reply("ZSCORE", UNARCHIVED, run_id) is None:
            continue
        write_set.command("ZREM", UNARCHIVED, run_id)
        if run is not None and is_final:
            run_end.retire(write_set, run)
    return Reply("archived")


def end(transaction: Transaction, run_id: str, key: str) -> Reply:  # noqa: ARG001 - it has no run
    """Give up all runs, some at a time, because no archive is left."""
    write_set = transaction.write_set
    write_set.command("DEL", ARCHIVE)
    waiting: list[bytes] = write_set.read_set.reply("ZRANGE", UNARCHIVED, 0, AT_ONCE - 1)
    for name in waiting:
        _give_up(transaction, name.decode(), "no worker writes to an archive any more")
    if waiting:
        write_set.timers[TIMER] = transaction.clock()
    return Reply("ended")


def _give_up(transaction: Transaction, run_id: str, why: str) -> None:
    """Let an ended run expire unarchived, with a dead letter, unless it has continued."""
    write_set = transaction.write_set
    write_set.command("ZREM", UNARCHIVED, run_id)
    run = run_end.read_record(write_set, run_id)
    end_text = write_set.read(run_key(run_id), "ended")
    if run is not None and end_text is not None:
        reason = f"the run expires and is not in the archive: {why}"
        transaction.write_dead_letter(run_id, "", 0, reason)
        run_end.retire(write_set, run)
