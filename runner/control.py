"""The verbs by which people steer runs that have ended or wait; the engine has them, too."""

from __future__ import annotations

from collections.abc import Callable

from runner.ports import Reply, Store
from runner.reruns import Reruns


class Control:
    """The part of the engine that steers runs."""

    store: Store
    _ring: Callable[[Reply], Reply]

    def retry(self, run_id: str, node: str | None = None) -> list[str]:
        """Let a failed or cancelled run go on, and name the nodes that run again; see `Reruns.retry`."""
        names, reply = Reruns(self.store).retry(run_id, node)
        self._ring(reply)
        return names
