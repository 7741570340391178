"""Operators' changes to a limit, and pauses by nodes: they override the code until they are reset."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import Annotated, Any

from runner.immutable import immutable
from runner.records.codec import JSONObject
from runner.records.payloads import Hidden, Payload

MOST_PAUSES = 1_000
"""Maximum number of paused keys of a limit; further pauses replace those that end first."""

LimitKey = Annotated[str, Hidden(lambda record: re.sub("(?s)(:input):.*", r"\1", record.key))]
"""A key of a limit; without payloads, it has no value of an input."""


@immutable
class LimitPause:
    """Pause of a key: no node starts under it until `ends_at` (ms), or until it is resumed if that is 0.

    If the key is the limit's name, no node starts under any of its keys.
    """

    key: LimitKey
    ends_at: int
    reason: Payload[str] = ""
    by: str = ""
    at: int = 0

    def is_over(self, now: int) -> bool:
        """Return whether it has ended."""
        return 0 < self.ends_at <= now


DeclaredNumbers = tuple[str, int, int]
"""The start of a limit's keys, its slots and the ms of its rate in the code of some graphs; 0 for none."""


@immutable
class LimitSetting:
    """The changes of the limit `id`; None keeps the number from the code.

    `concurrency` is its slots, `interval` the ms between two executions of its rate. `reason`, `by`
    and `at` (ms) belong to the latest change. `v` is 0 if the stored text can't be read: then the
    code holds. `declared` is not set by operators: it has each declaration with the start of its
    keys. The first one for the same keys holds, also for runs of earlier versions of a graph.
    """

    id: str
    concurrency: int | None = None
    interval: int | None = None
    pauses: tuple[LimitPause, ...] = ()
    reason: Payload[str] = ""
    by: str = ""
    at: int = 0
    declared: tuple[DeclaredNumbers, ...] = ()
    v: int = 1

    @classmethod
    @functools.lru_cache(maxsize=100)
    def read(cls, name: str, text: bytes) -> LimitSetting:
        """Read the fields of a stored setting that this version knows; `v` is 0 if it can't be read."""
        try:
            values = _known(cls, json.loads(text))
            pauses = [
                LimitPause(**_known(LimitPause, pause)) for pause in values.get("pauses", ())
            ]
            declared = tuple(
                (str(start), *numbers) for start, *numbers in values.get("declared", ())
            )
            setting = cls(**{**values, "pauses": tuple(pauses), "declared": declared})
            numbers = [setting.concurrency or 0, setting.interval or 0]
            numbers += [each.ends_at for each in pauses]
            numbers += [
                number for _, slots, interval in declared for number in (slots, interval)
            ]
            if all(type(number) is int for number in numbers):
                return setting
        except (ValueError, TypeError, AttributeError):
            pass  # the limit must keep working; `runner doctor` reports it
        return cls(name, v=0)

    def document(self, before: bytes | None) -> JSONObject:
        """Return the setting as stored JSON, keeping fields of a newer version from the text `before`."""
        try:
            newer = dict(json.loads(before or b"{}"))
        except (ValueError, TypeError):
            newer = {}
        return newer | asdict(self)

    @property
    def is_reset(self) -> bool:
        """Return whether no change or pause is left."""
        return bool(self.v) and not (self.concurrency or self.interval or self.pauses)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing needs to be stored."""
        return self.is_reset and not self.declared

    def numbers(self, declared: DeclaredNumbers) -> tuple[int, int]:
        """Return the slots and the interval in force for these numbers in the code; 0 for none."""
        first = next((each for each in self.declared if each[0] == declared[0]), declared)
        # A bound that the code lacks isn't added: nothing would return its slots.
        slots, interval = (
            mine and (held or mine) for mine, held in zip(declared[1:], first[1:], strict=True)
        )
        return slots and (self.concurrency or slots), interval and (self.interval or interval)

    def slots(self, key: str, concurrency: int) -> int:
        """Return the slots in force for a key that has this many in the code."""
        starts = (start for start, _, _ in self.declared if is_of(key, start))
        return self.numbers((next(starts, ""), concurrency, 0))[0]

    def declare(self, declarations: Iterable[DeclaredNumbers]) -> LimitSetting:
        """Return the setting with the graphs' declarations, each once; new ones come last."""
        current = dict.fromkeys(declarations)
        earlier = [each for each in self.declared if each in current]
        return replace(self, declared=tuple(dict.fromkeys([*earlier, *current])))

    def paused_until(self, key: str) -> float:
        """Return the time (ms) at which the pauses of a key end, or infinity; 0 without a pause."""
        pause = self.pause_of(key)
        return (pause.ends_at or math.inf) if pause else 0

    def pause_of(self, key: str) -> LimitPause | None:
        """Return the pause of a key, or of the whole limit, that ends last."""
        pauses = [each for each in self.pauses if each.key in (key, self.id)]
        return max(pauses, key=lambda each: each.ends_at or math.inf, default=None)

    def at_time(self, now: int) -> LimitSetting:
        """Return the setting without the pauses that are over."""
        return replace(
            self, pauses=tuple(each for each in self.pauses if not each.is_over(now))
        )

    def pause(self, pause: LimitPause) -> LimitSetting:
        """Return the setting with a pause, in place of an earlier one of the same key."""
        others = [each for each in self.pauses if each.key != pause.key]
        others.sort(key=lambda each: each.ends_at or math.inf)
        return replace(self, pauses=(*others[-MOST_PAUSES + 1 :], pause))

    def resume(self, key: str) -> LimitSetting:
        """Return the setting without the pause of a key; with the limit's name, without any pauses."""
        return replace(
            self, pauses=tuple(each for each in self.pauses if key not in (each.key, self.id))
        )


def is_of(key: str, start: str) -> bool:
    """Return whether a key has this start; a start that ends with a colon is followed by a value."""
    return key.startswith(start) if start.endswith(":") else key == start


def _known(type_: type, values: dict[str, Any]) -> dict[str, Any]:
    return {each.name: values[each.name] for each in fields(type_) if each.name in values}
