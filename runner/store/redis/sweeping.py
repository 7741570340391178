"""What a sweep does: timers that are due, each in a transaction of its own, and runs that have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from runner import scheduler
from runner.errors import CorruptDocument
from runner.scheduler.changes import TimerKind
from runner.store import requests
from runner.store.interface import Reply
from runner.store.redis import auditing, early, retention, unarchived
from runner.store.redis.transaction import Transaction

LONGEST_DELAY_MS, FAILURES = 300_000, 5
"""How long a timer that fails is put off at most, and how often it fails before there is a dead letter."""

TIMERS, FAILING = "timers", "failing"


def name_of(member: bytes) -> str | None:
    """Return the name of a timer: its kind, a run and a key, with "|" between; None for what is none."""
    with contextlib.suppress(UnicodeDecodeError):
        name = member.decode()
        return name if name.count("|") >= 2 else None
    return None


def drop_malformed(step: Transaction, member: bytes) -> Reply:
    """Delete what is no timer, with a dead letter."""
    step.draft.command("ZREM", TIMERS, member)
    step.write_dead_letter(
        "", "", 0, f"{member!r} is no timer and was deleted: only this library writes there"
    )
    return Reply("malformed")


def ring(step: Transaction, member: str, moved: str, *, failed: bool) -> Reply:
    """Do what a timer says that was moved to `moved` meanwhile; one that is not there any more was done."""
    draft = step.draft
    at: bytes | None = draft.reads.reply("ZSCORE", TIMERS, member)
    if at is None or float(at) != float(moved):
        return Reply("stale")
    draft.scores[TIMERS, member] = moved
    kind, run_id, key = member.split("|", 2)
    if kind not in DUE and kind not in set(TimerKind):
        # One that a newer version set is left to its workers.
        draft.timer(member, step.clock() + draft.settings.lease_ms)
        return Reply("left")
    draft.timer(member, None)
    if failed:
        draft.drop(FAILING, member)
    if kind in DUE:
        return DUE[kind](step, run_id, key)
    return requests.make(step, run_id, scheduler.due, TimerKind(kind), key)


def put_off(step: Transaction, member: str, problem: str) -> Reply:
    """Set a timer that fails again for later and later; when it has failed often, write a dead letter."""
    draft = step.draft
    times = int(draft.get(FAILING, member) or 0) + 1
    draft.put(FAILING, member, times)
    draft.timer(
        member, step.clock() + min(LONGEST_DELAY_MS, draft.settings.lease_ms * 2 ** min(times, 16))
    )
    if times == FAILURES:
        _, run_id, key = member.split("|", 2)
        step.write_dead_letter(run_id, key, 0, f"what is due for this run fails: {problem}")
    return Reply("failing")


def _hand_early(step: Transaction, run_id: str, key: str) -> Reply:
    number, _, interrupt_id = key.partition(" ")
    early.hand(step.draft, run_id, interrupt_id, number)
    return Reply("handed")


def _fire(kind: str) -> Callable[[Transaction, str, str], Reply]:
    # What follows is not this step's: whoever swept does it. Another does where that process dies.
    def fire(step: Transaction, name: str, key: str) -> Reply:
        step.draft.timer(f"{kind}|{name}|{key}", step.clock() + step.draft.settings.lease_ms)
        return Reply("due", fired=((kind, name),))

    return fire


DUE = {
    "early": _hand_early,
    "archive": unarchived.end,
    "schedule": _fire("schedule"),
    "job": _fire("job"),
    "webhook": _fire("webhook"),
}


def let_expire(step: Transaction, limit: int) -> Reply:
    """Give children of ended runs their expiry, and forget runs whose keys are gone: so many of each at most.

    The word is the number of children.
    """
    draft = step.draft
    draft.reads.ask("LRANGE", "retiring", 0, limit - 1)
    # The time is no part of the question: it is another one at each look.
    ended: tuple[str | int, ...] = ("ZRANGE", "retired", 0, limit - 1, "WITHSCORES")
    draft.reads.ask(*ended)
    children: list[bytes] = draft.reads.reply("LRANGE", "retiring", 0, limit - 1)
    for name in children:
        draft.command("LREM", "retiring", 1, name)
        try:
            run = retention.read_record(draft, name.decode())
        except CorruptDocument:
            continue
        if run is None:
            continue
        if retention.read_record(draft, run.parent) is None:
            if not retention.in_use(run):
                auditing.note_removal(draft, run)
                retention.remove(draft, run)
        elif retention.outlived(draft, run.parent):
            # Otherwise its parent goes on again since.
            retention.retire(draft, run)
    entries: list[bytes] = draft.reads.reply(*ended)
    for entry, at in zip(entries[::2], entries[1::2], strict=True):
        if float(at) <= step.clock():
            retention.forget(draft, entry)
    return Reply(str(len(children)))
