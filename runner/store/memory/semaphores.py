"""The limits of all runs in memory: nodes with a place, waiting nodes, and next starts under rates."""

from __future__ import annotations

import math
from collections import defaultdict

from runner.limits.limit import name_of
from runner.limits.setting import LimitSetting
from runner.limits.slots import (
    JoinQueue,
    LimitAction,
    OfferSlots,
    QueuePosition,
    ReserveTime,
    ReturnSlot,
    TakeSlot,
)

Member = tuple[str, str]
"""A run and one of its nodes."""


class Semaphores:
    """Places and start times of limits, by the limit's key."""

    def __init__(self) -> None:
        self.holders: dict[str, dict[Member, float]] = defaultdict(dict)
        self.waiting: dict[str, dict[Member, int]] = defaultdict(dict)
        self.starts: dict[str, int] = {}
        self.settings: dict[str, LimitSetting] = {}

    def queue_position(self, key: str, member: Member, since: int, now: int) -> QueuePosition:
        held = [holder for holder, until in self.holders[key].items() if until > now]
        since = self.waiting[key].get(member, since)
        before = [
            other
            for other, other_since in self.waiting[key].items()
            if _order(other, other_since) < _order(member, since)
        ]
        return QueuePosition(
            sum(holder != member for holder in held), len(before), member in held
        )

    def act(
        self, run_id: str, action: LimitAction, reservation: tuple[int, int]
    ) -> list[Member]:
        """Apply a transition's limit action, and return the nodes that get a place.

        `reservation` is the current time, and the time until which such a place is kept, in ms.
        """
        match action:
            case ReserveTime():
                self.starts = {
                    key: start for key, start in self.starts.items() if start > reservation[0]
                }
                self.starts[action.key] = action.start
            case TakeSlot():
                until = math.inf if action.until is None else action.until
                self.waiting[action.key].pop((run_id, action.node), None)
                self.holders[action.key][run_id, action.node] = until
            case JoinQueue():
                self.holders[action.key].pop((run_id, action.node), None)
                self.waiting[action.key].setdefault((run_id, action.node), action.since)
            case ReturnSlot():
                self.waiting[action.key].pop((run_id, action.node), None)
                if self.holders[action.key].pop((run_id, action.node), None) is not None:
                    return self._offer(action.key, action.concurrency, reservation)
            case OfferSlots():
                return self._offer(action.key, action.concurrency, reservation)
        return []

    def _offer(self, key: str, concurrency: int, reservation: tuple[int, int]) -> list[Member]:
        now, until = reservation
        setting = self.settings.get(name_of(key))
        slots = setting.slots(key, concurrency) if setting else concurrency
        held = {holder: ends for holder, ends in self.holders[key].items() if ends > now}
        first = sorted(
            self.waiting[key], key=lambda member: _order(member, self.waiting[key][member])
        )[: max(0, slots - len(held))]
        for member in first:
            del self.waiting[key][member]
        self.holders[key] = held | dict.fromkeys(first, float(until))
        return first


def _order(member: Member, since: int) -> tuple[int, bytes]:
    """Return a sort key that orders by time, then by name, as Redis does."""
    return since, "|".join(member).encode()
