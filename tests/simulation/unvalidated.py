"""Checks the reasons of plans for values that no commit validates: `Because` in transaction/sets.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import greenlet

from runner.store.redis import scripts
from runner.store.redis.transaction import transaction
from runner.store.redis.transaction.sets import Because, WriteSet

MAY_NOT_CHANGE = {Because.CONSTANT, Because.GUARDED}

latest: WeakKeyDictionary[greenlet.greenlet, NotingWriteSet] = WeakKeyDictionary()
"""The write set that each actor last made arguments of."""


class NotingWriteSet(WriteSet):
    """A write set that keeps what its plan read without validation, with the reason."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.unvalidated: dict[tuple[str, str], tuple[bytes | None, Because]] = {}

    def read_unvalidated(self, key, name, because):
        value = super().read_unvalidated(key, name, because)
        if key not in self.new_keys and not self.changes_field(key, name):
            self.unvalidated[key, name] = value, because
        return value

    def arguments(self, doorbells):
        latest[greenlet.getcurrent()] = self
        return super().arguments(doorbells)


transaction.WriteSet = NotingWriteSet


def checked(call: Callable[..., Any]) -> Callable[..., Any]:
    """Call the server; a commit fails after a change that the reason of a read excludes."""

    def check_and_call(*words: Any, **named: Any) -> Any:
        write_set = latest.get(greenlet.getcurrent())
        is_commit = words[0] == "EVALSHA" and words[1] == scripts.script("commit").sha
        if write_set is None or not is_commit:
            return call(*words, **named)
        now = {
            (key, name): call("HGET", words[3] + key, name)
            for key, name in write_set.unvalidated
        }
        reply = call(*words, **named)
        for at, (value, because) in write_set.unvalidated.items():
            changed = now[at] != value and not (value is None and because is Because.CONSTANT)
            if reply[0] != b"changed" and changed and because in MAY_NOT_CHANGE:
                raise AssertionError(
                    f"{at} is {because.name}: it was {value!r}, and is {now[at]!r}"
                )
        return reply

    return check_and_call
