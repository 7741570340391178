"""Form of a run's id, and the name of its effects.

An id is two digits of partition and a UUID in 26 letters and digits: version 7, of time and random
bits. If the start has an idempotency key it is version 8, of time and a hash of that key: the time
makes the id new, the hash names the run's effects. So a run that is started again with its key,
because its store was lost or it was removed, passes the same keys to the services that it calls.
"""

from __future__ import annotations

import base64
import hashlib

RANDOM, KEYED = 0x70, 0x80
"""The version bits of a UUID: 7, and 8, whose content its maker defines."""

PARTITION_DIGITS, LETTERS = 2, 26
_VERSION_AT = PARTITION_DIGITS + 9
_HASH_AT = PARTITION_DIGITS + 10
_KEYED = frozenset("26aeimqu")
"""The letters whose last two of five bits are 10, the first two bits of version 8."""


def letters(ms: int, version: int, digest: bytes) -> str:
    """Return an id without its partition; the base32hex alphabet keeps the order of the bytes."""
    name = (
        ms.to_bytes(6)
        + bytes([version | digest[0] & 0x0F, digest[1], 0x80 | digest[2] & 0x3F])
        + digest[3:10]
    )
    return base64.b32hexencode(name).decode().rstrip("=").lower()


def partition_of(run_id: str) -> int:
    """Return the partition that a run's id names; 0 if the text isn't a run's id."""
    digits = run_id[:PARTITION_DIGITS]
    return int(digits) if digits.isdecimal() else 0


def time_of(run_id: str) -> int:
    """Return when a run's id was made, in ms since 1970; 0 if the text isn't a run's id."""
    name = run_id[PARTITION_DIGITS:]
    try:
        return int.from_bytes(
            base64.b32hexdecode(f"{name.upper()}{'=' * (-len(name) % 8)}")[:6]
        )
    except ValueError:
        return 0


def keyed(ms: int, *names: str | int) -> str:
    """Return an id without its partition; these names, in their order, name its effects."""
    text = "".join(f"{len(str(name))}:{name}" for name in names)
    return letters(ms, KEYED, hashlib.sha256(text.encode()).digest())


def effect_name(run_id: str) -> str:
    """Return the prefix of the keys of a run's effects: the hash of its start's key, or its id."""
    is_keyed = len(run_id) == PARTITION_DIGITS + LETTERS and run_id[_VERSION_AT] in _KEYED
    return run_id[_HASH_AT:] if is_keyed else run_id
