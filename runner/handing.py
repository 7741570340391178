"""What a store does for nodes whose work goes on elsewhere: in another system, or on another worker.

Where another system works, the node waits without a worker. First it is made to wait, then the system is
told, then that is noted: so whatever is lost in between, the node is rung again and tells the system again,
under the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from runner.ports import Reply, Token

JSON = Any


class Handing(Protocol):
    """The part of a store that lets others work for nodes."""

    def leave(self, token: Token) -> Reply:
        """Ring for a running visit anew, whose worker leaves: "left", "cancelled" or "stale"."""

    def hand(self, token: Token, reference: str) -> Reply:
        """Let a visit wait for work of that name: "handed", "ready" (it is done), "cancelled" or "stale"."""

    def sent(self, token: Token, reference: str, timeout_ms: int) -> Reply:
        """Note that the system has the work, to be done in time (0: in any): "sent" or "stale"."""

    def report(self, run_id: str, node: str, visit: int, reference: str, outcome: JSON) -> Reply:
        """Say how the work ended (packed), once: "reported" (a repeat too), "stale" or "unknown"."""
