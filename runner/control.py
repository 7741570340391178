"""The verbs by which people steer runs that have ended or wait; the engine has them, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runner import answers, codec, ids, labels
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.forks import Begin
from runner.interrupts import Answer, Receipt
from runner.migrations import Migrated, Migrations
from runner.missing import no_such_run
from runner.ports import Reply, Store
from runner.registry import Registry
from runner.reruns import Reruns
from runner.wishes import Wish


class Control:
    """The part of the engine that answers and steers runs."""

    store: Store
    registry: Registry
    _ring: Callable[[Reply], Reply]

    def answer(self, given: Sequence[Answer]) -> list[Receipt]:
        """Apply a set of answers, all or none; each gets a receipt."""
        found = self.store.interrupts([each.interrupt_id for each in given])
        refused = answers.refusals(given, found, self.store.max_bytes)
        if refused:
            return answers.refuse(given, found, refused)
        receipts, reply = self.store.answer(given, ids.nonce())
        self._ring(reply)
        return receipts

    def withdraw(self, interrupt_id: str, reason: str, *, reask: bool) -> None:
        """Take an open question back.

        Raises:
            NotFoundError: it was never asked.
            ConflictError: it is not open any more. UsageError: the reason is no text, or long.
        """
        word = self._ring(self.store.withdraw(interrupt_id, labels.reason(reason), reask=reask)).word
        if word == "unknown":
            raise NotFoundError(f"no question {interrupt_id!r} was asked.")
        if word == "closed":
            raise ConflictError(
                f"the question {interrupt_id} is not open any more: it was answered, has expired or was "
                "withdrawn. Nothing was changed."
            )

    def remove(self, run_id: str) -> None:
        """Remove a run that has ended, and the runs inside it.

        Raises:
            NotFoundError: there is no such run. UsageError: it is inside another run.
            ConflictError: it goes on.
        """
        word = self.store.remove(run_id).word
        if word == "unknown":
            raise no_such_run(run_id)
        if word == "inside":
            raise UsageError(
                f"run {run_id} is inside another one; nothing was removed. Remove the outermost."
            )
        if word == "goes_on":
            raise ConflictError(
                f"run {run_id} has not ended, or must still tell so; nothing was removed. Cancel it first, "
                "or try again in a while."
            )

    def fork(
        self,
        run_id: str,
        node: str,
        visit: int | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        given: Sequence[object] = (),
    ) -> str:
        """Begin a run from what another has done; `given` holds the node's new input, or nothing."""
        packed = codec.pack(given[0], "input") if given else None
        new_id = ids.run_id(int(run_id[: ids.PARTITION_DIGITS])) if run_id[:1].isdecimal() else ids.run_id()
        begin = Begin(new_id, codec.pack(dict(tags or {}), "tags"), bool(given), packed)
        self._ring(Reruns(self.store).fork(run_id, node, visit, begin))
        return new_id

    def migrate(self, run_id: str, wish: Wish, *, dry_run: bool = False) -> Migrated:
        """Let a waiting run go on in today's graph; see `Migrations.migrate`."""
        found, reply = Migrations(self.store, self.registry).migrate(run_id, wish, dry_run=dry_run)
        if reply is not None:
            self._ring(reply)
        return found

    def retry(self, run_id: str, node: str | None = None) -> list[str]:
        """Let a failed or cancelled run go on, and name the nodes that run again; see `Reruns.retry`."""
        names, reply = Reruns(self.store).retry(run_id, node)
        self._ring(reply)
        return names
