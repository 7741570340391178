"""What a store does for runs that a deploy met: their nodes are set aside, and go on again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runner.ports import Reply, Token


class Migrating(Protocol):
    """The part of a store that keeps nodes whose graph is another one now."""

    def hold(self, token: Token) -> Reply:
        """Set a visit aside until its run is migrated: "held" or "stale"."""

    def release(self, run_id: str, nodes: Sequence[str]) -> Reply:
        """Let nodes go on that were set aside: "released", or "stale" when none of them is."""
