"""The lists of runs that share a concurrency or debounce key, in a transaction."""

from __future__ import annotations

from collections import defaultdict

from runner.store.redis.connection import Argument
from runner.store.redis.transaction.sets import FEWER, NOT_FEWER, WriteSet


class KeyLists:
    """Sorted sets of runs, by the time at which they were added."""

    def __init__(self, write_set: WriteSet) -> None:
        self._write_set = write_set
        self._read_set = write_set.read_set
        self._changed: dict[str, dict[str, bool]] = defaultdict(dict)
        """By list and run: true if the run is in the list now, false if it was removed."""
        self._damaged: dict[str, bytes] = {}
        """Members that aren't UTF-8, by the names that they get here, which no run can have."""

    def count(self, name: str, bound: int) -> int:
        """Count a list; the commit validates whether the count is below the bound."""
        size: int = self._read_set.reply("ZCARD", name) or 0
        growth = sum(
            is_in - self._is_stored(name, run_id)
            for run_id, is_in in self._changed[name].items()
        )
        self._write_set.scores[name, FEWER if size + growth < bound else NOT_FEWER] = (
            bound - growth
        )
        return size + growth

    def first(self, name: str, most: int) -> list[str]:
        changed = self._changed[name]
        members: list[bytes] = self._read_set.reply("ZRANGE", name, 0, most + len(changed) - 1)
        names = [self._name(member) for member in members]
        added = [run_id for run_id, is_in in changed.items() if is_in and run_id not in names]
        return [run_id for run_id in names + added if changed.get(run_id, True)][:most]

    def add(self, name: str, run_id: str) -> None:
        self._changed[name][run_id] = True
        self._write_set.command(
            "ZADD", name, "NX", self._write_set.time(self._read_set.now), run_id
        )

    def remove(self, name: str, run_id: str) -> None:
        if self._changed[name].get(run_id, self._is_stored(name, run_id)):
            self._write_set.command("ZREM", name, self._member(run_id))
        self._changed[name][run_id] = False

    def _is_stored(self, name: str, run_id: str) -> bool:
        return self._read_set.reply("ZSCORE", name, self._member(run_id)) is not None

    def _name(self, member: bytes) -> str:
        run_id = member.decode(errors="backslashreplace")
        if run_id.encode() != member:
            self._damaged[run_id] = member
        return run_id

    def _member(self, run_id: str) -> Argument:
        return self._damaged.get(run_id, run_id)
