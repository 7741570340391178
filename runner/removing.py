"""What a store does to forget a run that has ended, before its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runner.ports import Reply


class Removing(Protocol):
    """The part of a store that removes runs."""

    def remove(self, run_id: str) -> Reply:
        """Remove an ended run: "removed", "goes_on", "inside" (another run) or "unknown".

        It is gone at once, and its idempotency key with it; the runs inside it go with the next sweeps.
        """
