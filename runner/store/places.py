"""The limits of all runs as the memory store keeps them: who has a place, who waits, when rates go on."""

from __future__ import annotations

import math
from collections import defaultdict

from runner.actions import Leave, PassOn, Queue, Reserve, Take
from runner.limits import Turn

Member = tuple[str, str]
"""A run and a node of it."""


class Places:
    """What limits have given out, by key."""

    def __init__(self) -> None:
        """Start with every place free."""
        self.holders: dict[str, dict[Member, float]] = defaultdict(dict)
        self.waiting: dict[str, dict[Member, int]] = defaultdict(dict)
        self.starts: dict[str, int] = {}

    def turn(self, key: str, member: Member, since: int, now: int) -> Turn:
        """Return how a node stands that asks since then."""
        held = [each for each, until in self.holders[key].items() if until > now]
        since = self.waiting[key].get(member, since)
        before = [each for each, at in self.waiting[key].items() if _order(each, at) < _order(member, since)]
        return Turn(sum(each != member for each in held), len(before), member in held)

    def act(
        self, run_id: str, action: Reserve | Take | Queue | Leave | PassOn, kept: tuple[int, int]
    ) -> list[Member]:
        """Do what a transition decided, and name whom to ring; `kept` are now and the end of a kept place."""
        match action:
            case Reserve():
                self.starts = {key: at for key, at in self.starts.items() if at > kept[0]}
                self.starts[action.key] = action.at
            case Take():
                until = math.inf if action.until is None else action.until
                self.waiting[action.key].pop((run_id, action.node), None)
                self.holders[action.key][run_id, action.node] = until
            case Queue():
                self.holders[action.key].pop((run_id, action.node), None)
                self.waiting[action.key].setdefault((run_id, action.node), action.since)
            case Leave():
                self.waiting[action.key].pop((run_id, action.node), None)
                if self.holders[action.key].pop((run_id, action.node), None) is not None:
                    return self._pass_on(action.key, action.concurrency, kept)
            case PassOn():
                return self._pass_on(action.key, action.concurrency, kept)
        return []

    def _pass_on(self, key: str, concurrency: int, kept: tuple[int, int]) -> list[Member]:
        now, until = kept
        held = {each: ends for each, ends in self.holders[key].items() if ends > now}
        queue = sorted(self.waiting[key], key=lambda each: _order(each, self.waiting[key][each]))
        first = queue[: max(0, concurrency - len(held))]
        for each in first:
            del self.waiting[key][each]
        self.holders[key] = held | dict.fromkeys(first, float(until))
        return first


def _order(member: Member, at: int) -> tuple[int, bytes]:
    """Order a queue by time; equal times by name, as Redis does."""
    return at, "|".join(member).encode()
