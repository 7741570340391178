"""Fences: the number that each claim of a visit raises, and that every later write of it carries."""

from __future__ import annotations

import hashlib

DIGITS = 5


def next_fence(fence: int, nonce: str) -> int:
    """Raise a fence for a claim, by an amount that no other claim shares: see parts/fence.lua."""
    mark = hashlib.sha1(nonce.encode(), usedforsecurity=False).hexdigest()[:DIGITS]
    return fence + 1 + int(mark, 16)
