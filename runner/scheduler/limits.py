"""Limits of concurrency and rate: whether an execution may begin, and what is written either way.

Twin: `store/lua/parts/limits.lua` with parts/places.lua.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.definition.policies import LimitShape, LimitUsage
from runner.scheduler.changes import Action, JoinQueue, OfferPlaces, ReserveTime, ReturnPlace, TakePlace


def reserve(limits: Sequence[LimitShape], view: LimitUsage, now: int) -> tuple[int, list[Action]]:
    """Assign the earliest start under all rates: how many ms to wait, and the actions that record it."""
    start, actions = now, list[Action]()
    for limit in limits:
        if limit.interval:
            key = limit.key(view)
            earliest = max(now, view.next_start(key))
            actions.append(ReserveTime(key, earliest + limit.interval))
            start = max(start, earliest)
    return start - now, actions


def take(
    limits: Sequence[LimitShape], view: LimitUsage, node: str, since: int, times: tuple[int, int]
) -> tuple[bool, list[Action]]:
    """Take a place of every limit, or join the queue of the first limit that has none free.

    `times` are now and the time until which places that it already has stay reserved. Places of later
    limits are returned, so that two nodes never wait for each other.
    """
    now, kept_until = times
    places = [(limit.key(view), limit.concurrency) for limit in limits if limit.concurrency]
    for position, (key, concurrency) in enumerate(places):
        turn = view.queue_position(key, node, since, now)
        if not turn.mine and turn.taken + turn.ahead >= concurrency:
            reserved: list[Action] = [
                TakePlace(earlier, node, kept_until) for earlier, _ in places[:position]
            ]
            returned = [ReturnPlace(later, node, number) for later, number in places[position + 1 :]]
            return False, [*reserved, JoinQueue(key, node, since), OfferPlaces(key, concurrency), *returned]
    return True, [TakePlace(key, node, None) for key, _ in places]
