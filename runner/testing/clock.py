"""A clock that moves only when a test says so."""

from __future__ import annotations


class ManualClock:
    """Milliseconds since 1970, as stores want them; starts in November 2023."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        """Start at `now`, in milliseconds."""
        self.now = now

    def __call__(self) -> int:
        """Return the time in milliseconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += round(seconds * 1000)
