"""The verbs by which people steer runs that have ended or wait; the engine has them, too."""

from __future__ import annotations

from collections.abc import Callable

from runner.errors import ConflictError, NotFoundError
from runner.ports import Reply, Store
from runner.reruns import Reruns


class Control:
    """The part of the engine that steers runs."""

    store: Store
    _ring: Callable[[Reply], Reply]

    def withdraw(self, interrupt_id: str, reason: str, *, reask: bool) -> None:
        """Take an open question back.

        Raises:
            NotFoundError: it was never asked.
            ConflictError: it is not open any more.
        """
        word = self._ring(self.store.withdraw(interrupt_id, reason, reask=reask)).word
        if word == "unknown":
            raise NotFoundError(f"no question {interrupt_id!r} was asked.")
        if word == "closed":
            raise ConflictError(
                f"the question {interrupt_id} is not open any more: it was answered, has expired or was "
                "withdrawn. Nothing was changed."
            )

    def retry(self, run_id: str, node: str | None = None) -> list[str]:
        """Let a failed or cancelled run go on, and name the nodes that run again; see `Reruns.retry`."""
        names, reply = Reruns(self.store).retry(run_id, node)
        self._ring(reply)
        return names
