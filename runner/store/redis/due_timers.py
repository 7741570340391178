"""The work of a sweep: due timers, each in its own transaction, and expired runs."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable

from runner import scheduler
from runner.errors import CorruptDocument, StoreError
from runner.scheduler.changes import TimerKind
from runner.store import requests
from runner.store.apply_transition import admitted
from runner.store.interface import Doorbell, Reply
from runner.store.redis import archive_queue, ledger
from runner.store.redis.connection import mapping_of
from runner.store.redis.transaction import early_answers, questions, run_end
from runner.store.redis.transaction.transaction import Transaction, Transactions, of_run

log = logging.getLogger(__name__)

LONGEST_DELAY_MS, FAILURES = 300_000, 5
"""The longest delay of a failing timer, and the number of its failures that writes a dead letter."""

TIMERS, FAILING = "timers", "failing"

SLOT = "slot"
"""The timer of a slot that a run in another partition holds."""


def name_of(member: bytes) -> str | None:
    """Return the name of a timer: its kind, a run and a key, joined by "|"; None if it is malformed."""
    with contextlib.suppress(UnicodeDecodeError):
        name = member.decode()
        return name if name.count("|") >= 2 else None
    return None


def drop_malformed(transaction: Transaction, member: bytes) -> Reply:
    """Delete a malformed timer, with a dead letter."""
    transaction.write_set.command("ZREM", TIMERS, member)
    transaction.write_dead_letter(
        "", "", 0, f"{member!r} isn't a timer and was deleted: only this library writes there"
    )
    return Reply("malformed")


def handle_due(transaction: Transaction, member: str, new_score: str, *, failed: bool) -> Reply:
    """Handle a timer that the sweep moved to `new_score`; if it is gone, it was already handled."""
    write_set = transaction.write_set
    at: bytes | None = write_set.read_set.reply("ZSCORE", TIMERS, member)
    if at is None or float(at) != float(new_score):
        return Reply("stale")
    write_set.scores[TIMERS, member] = new_score
    kind, run_id, key = member.split("|", 2)
    # A timer of a newer version is left to that version's workers.
    is_newer = kind not in DUE and kind not in set(TimerKind)
    # A map's items keep ending, and each end begins others.
    if is_newer or (kind == TimerKind.MAP and transaction.defers_to_timer):
        write_set.timers[member] = transaction.clock() + write_set.settings.lease_ms
        return Reply("left")
    write_set.timers[member] = None
    if failed:
        write_set.drop(FAILING, member)
    if kind in DUE:
        return DUE[kind](transaction, run_id, key)
    return requests.make(transaction, run_id, scheduler.due, TimerKind(kind), key)


LOST = {
    "ready": "The node runs again; if it is lost five times in a row, it fails.",
    "cancelled": "The node is cancelled, as its run stops.",
    "dead": "That was the fifth time in a row: it has failed, with a dead letter.",
}
"""The end of the message about a lost node, by its outcome."""


def put_off(transaction: Transaction, member: str, problem: str) -> Reply:
    """Postpone a failing timer, longer each time; after some failures write a dead letter."""
    write_set = transaction.write_set
    times = int(write_set.read(FAILING, member) or 0) + 1
    write_set.put(FAILING, member, times)
    write_set.timers[member] = transaction.clock() + min(
        LONGEST_DELAY_MS, write_set.settings.lease_ms * 2 ** min(times, 16)
    )
    if times == FAILURES:
        _, run_id, key = member.split("|", 2)
        transaction.write_dead_letter(
            run_id, key, 0, f"what is due for this run fails: {problem}"
        )
    return Reply("failing")


def _hand_early(transaction: Transaction, run_id: str, key: str) -> Reply:
    number, _, interrupt_id = key.partition(" ")
    early_answers.hand_back(transaction.write_set, run_id, interrupt_id, number)
    return Reply("handed")


def _hand_over(kind: str) -> Callable[[Transaction, str, str], Reply]:
    # The work isn't part of this transaction: the process that swept does it, or another if that dies.
    def plan(transaction: Transaction, name: str, key: str) -> Reply:
        transaction.write_set.timers[f"{kind}|{name}|{key}"] = (
            transaction.clock() + transaction.write_set.settings.lease_ms
        )
        return Reply("due", fired=((kind, name),))

    return plan


def handle(transactions: Transactions, member: str, moved: str, *, failed: bool) -> Reply:
    """Handle a due timer. If it fails, postpone it and go on with the next."""
    try:
        reply = attempt(transactions, member, moved, failed=failed)
        if reply.word == "lost":
            then, worker, name = reply.detail.split(" ", 2)
            log.log(
                logging.ERROR if then == "dead" else logging.WARNING,
                "node.lost: a process of worker %r died, or did not renew its lease, while it ran %s of run "
                "%s. %s",
                worker or "unknown",
                name,
                member.split("|")[1],
                LOST[then],
            )
        return reply
    except Exception as error:
        if isinstance(error, StoreError) and error.passing:
            raise
        problem = " ".join(f"{type(error).__name__}: {error}".split())
    kind, run_id, key = member.split("|", 2)
    log.error(
        "timer.failed: run %r: what is due for it (%s %r) fails: %s. It is tried again later; other "
        "runs are not affected. See `runner doctor`.",
        run_id,
        kind,
        key,
        problem,
    )
    return transactions.run(
        "sweep", lambda transaction: put_off(transaction, member, problem), makes_room=True
    )


def attempt(transactions: Transactions, member: str, moved: str, *, failed: bool) -> Reply:
    """Handle a due timer in a transaction."""
    kind, run_id, key = member.split("|", 2)
    plan = functools.partial(handle_due, member=member, new_score=moved, failed=failed)
    wants = of_run(run_id, *([f"n:{key}"] if kind == TimerKind.NODE else []))
    return transactions.run("sweep", plan, wants, [("ZSCORE", TIMERS, member)], makes_room=True)


def _check_slot(transaction: Transaction, run_id: str, key: str) -> Reply:
    # The run is in another partition: a store that sweeps both asks there.
    write_set = transaction.write_set
    version = transaction.clock() + write_set.settings.lease_ms
    write_set.timers[f"{SLOT}|{run_id}|{key}"] = version
    return Reply("due", fired=((SLOT, f"{version}|{run_id}|{key}"),))


def _admit(transaction: Transaction, at_most: str, key: str) -> Reply:
    """Begin runs of a key whose bound a deploy has changed; if any began, the next sweep continues."""
    doorbells: list[Doorbell] = []
    for run in admitted(transaction, key, int(at_most)):
        doorbells += requests.make(transaction, run.record.run_id, scheduler.begin).doorbells
        transaction.write_set.timers[f"admit|{at_most}|{key}"] = transaction.clock()
    return Reply("admitted", doorbells)


DUE = {
    "admit": _admit,
    "early": _hand_early,
    "archive": archive_queue.end,
    "schedule": _hand_over("schedule"),
    "job": _hand_over("job"),
    "webhook": _hand_over("webhook"),
    SLOT: _check_slot,
}
"""Kinds of timer beside `TimerKind`, which the scheduler doesn't know."""


def let_expire(transaction: Transaction, limit: int) -> Reply:
    """Set the expiry of ended runs' children, and forget expired runs: at most `limit` of each.

    The word is the number of children, plus `limit` if there may be more runs to forget.
    """
    write_set = transaction.write_set
    write_set.read_set.ask("LRANGE", "retiring", 0, limit - 1)
    # The command can't contain the time, which differs at each look.
    range_command: tuple[str | int, ...] = ("ZRANGE", "retired", 0, limit - 1, "WITHSCORES")
    write_set.read_set.ask(*range_command)
    children: list[bytes] = write_set.read_set.reply("LRANGE", "retiring", 0, limit - 1)
    for name in children:
        write_set.command("LREM", "retiring", 1, name)
        try:
            run = run_end.read_record(write_set, name.decode())
        except CorruptDocument:
            continue
        if run is None:
            continue
        if run_end.read_record(write_set, run.parent) is None:
            if not run_end.in_use(run):
                ledger.note_removal(write_set, run)
                run_end.remove(write_set, run)
        elif run_end.outlived(write_set, run.parent):
            # Otherwise its parent has continued since.
            run_end.retire(write_set, run)
    entries: list[bytes] = write_set.read_set.reply(*range_command)
    pairs = mapping_of(entries).items()
    expired = [entry for entry, at in pairs if float(at) <= transaction.clock()]
    for graph_id in {run_end.forget(write_set, entry) for entry in expired} - {""}:
        questions.forget_closed(write_set, graph_id)
    return Reply("swept", count=len(children) + (limit if len(expired) == limit else 0))
