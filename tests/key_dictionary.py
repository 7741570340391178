"""The data dictionary of runner/store/redis/keys.py: the Redis type of each key, by the key's pattern."""

from __future__ import annotations

import re

from runner.store.redis import keys

ENTRIES = dict(re.findall(r"^(\S+) \((\w+)\)$", str(keys.__doc__), re.MULTILINE))


def type_in_dictionary(key: str) -> str | None:
    """Return the type that the dictionary gives a partition's key; None if it has no such key."""
    _, brace, rest = key.partition("}:")
    for pattern, kind in ENTRIES.items() if brace else ():
        if re.fullmatch(re.sub(r"<\w+>", ".+", pattern.replace("<run>", "[^:]+")), rest):
            return kind
    return None
