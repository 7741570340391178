"""Slots and start times: whether an execution may begin under its limits, and the changes to write.

An execution takes a slot of each limit of its node while a worker has it; a node that waits for a
person, a child run or its next attempt has none. Without a free slot a node joins the limit's
queue, ordered by the time of its first request; a free slot is reserved for the next node in the
queue. A rate assigns each execution its own start time. Slots are taken in the order of the limits'
names, so that no two nodes wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runner.immutable import immutable
from runner.limits.limit import Keyed, LimitShape


@immutable
class KeyedLimit:
    """A visit's limit with its current numbers, and the key that counts it; 0 means no limit.

    `paused_until` is the time (ms) at which a pause ends, or infinity; 0 without a pause.
    """

    key: str
    concurrency: int
    interval: int
    paused_until: float = 0


@immutable
class QueuePosition:
    """A node at a limit: slots `taken` by others, others `ahead` of it, and whether one slot is its own."""

    taken: int
    ahead: int
    mine: bool


class LimitUsage(Keyed, Protocol):
    """State of the limits, as far as a claim reads it."""

    def next_start(self, key: str, interval: int) -> int:
        """Return when the next execution of a rate may begin, in ms; 0 means at once.

        The one after it may begin `interval` ms later.
        """

    def queue_position(
        self, limit: KeyedLimit, node: str, since: int, now: int
    ) -> QueuePosition:
        """Return the position of a node of this run that requested a slot at `since` (ms)."""


@immutable
class ReserveTime:
    """Record that the next execution under a rate limit may begin at `start` (ms)."""

    key: str
    start: int


@immutable
class TakeSlot:
    """Give a node a slot of a limit until it returns it, or reserve the slot for it until `until` (ms)."""

    key: str
    node: str
    until: int | None


@immutable
class JoinQueue:
    """Put a node into the queue of a limit that has no free slot, ordered by `since` (ms)."""

    key: str
    node: str
    since: int


@immutable
class ReturnSlot:
    """Take back a node's slot, or its position in the queue; `OfferSlots` gives free slots to others.

    `ran` is the `claim_name` of a node that had the slot while it ran.
    """

    key: str
    node: str
    concurrency: int
    ran: str = ""


@immutable
class OfferSlots:
    """Reserve a limit's free slots for the next nodes in its queue for one lease; push their doorbells."""

    key: str
    concurrency: int


LimitAction = ReserveTime | TakeSlot | JoinQueue | ReturnSlot | OfferSlots
"""Change to limits, which many runs share."""


def keyed(
    limits: Sequence[LimitShape], view: LimitUsage, node: str, visit: int
) -> list[KeyedLimit]:
    """Return the limits of a visit, except one whose value its input lacks: the worker fails that visit."""
    found: list[KeyedLimit] = []
    for limit in limits:
        key = limit.key(view, node, visit)
        setting = view.limit_setting(limit.name)
        if key is not None:
            concurrency, interval = (
                setting.numbers(limit.numbers) if setting else limit.numbers[1:]
            )
            paused_until = setting.paused_until(key) if setting else 0
            found.append(KeyedLimit(key, concurrency, interval, paused_until))
    return found


def reserve(
    limits: Sequence[KeyedLimit], view: LimitUsage, now: int
) -> tuple[int, list[LimitAction]]:
    """Assign the earliest start under all rates: return the ms to wait, and the actions that record it."""
    start = now
    actions = list[LimitAction]()
    for limit in limits:
        if limit.interval:
            earliest = max(now, view.next_start(limit.key, limit.interval))
            actions.append(ReserveTime(limit.key, earliest + limit.interval))
            start = max(start, earliest)
    return start - now, actions


def take(
    limits: Sequence[KeyedLimit],
    view: LimitUsage,
    node: str,
    since: int,
    times: tuple[int, int],
) -> tuple[bool, list[LimitAction]]:
    """Take a slot of every limit, or join the queue of the first limit without a free one.

    `times` are now and the time until which slots that it already has stay reserved. Slots of later
    limits are returned, so that two nodes never wait for each other.
    """
    now, kept_until = times
    slots = [limit for limit in limits if limit.concurrency]
    for position, limit in enumerate(slots):
        waiting = view.queue_position(limit, node, since, now)
        if not waiting.mine and waiting.taken + waiting.ahead >= limit.concurrency:
            reservations: list[LimitAction] = [
                TakeSlot(earlier.key, node, kept_until) for earlier in slots[:position]
            ]
            returns = [
                ReturnSlot(later.key, node, later.concurrency)
                for later in slots[position + 1 :]
            ]
            return False, [
                *reservations,
                JoinQueue(limit.key, node, since),
                OfferSlots(limit.key, limit.concurrency),
                *returns,
            ]
    return True, [TakeSlot(limit.key, node, None) for limit in slots]
