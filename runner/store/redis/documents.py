"""Documents with a timer each, such as schedules and webhooks, in the first partition of a namespace.

A sweep takes a due timer and moves it by a lease; the process that took it does the document's work. Every
change is a transaction, so that only one of two processes makes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import Field, asdict
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from runner.errors import ConflictError, NotFoundError, UsageError
from runner.store.addresses import NAMESPACE
from runner.store.interface import Reply
from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import Keys
from runner.store.redis.transaction.transaction import Transaction, transactions_of


class Document(Protocol):
    """A dataclass with an id and a timer, stored as JSON; `kind` is the name of the document type.

    A namespace has at most `limit` documents of a type.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    kind: ClassVar[str]
    limit: ClassVar[int]

    def __init__(self, **values: Any) -> None: ...

    @property
    def id(self) -> str: ...

    def due_at(self, now: int) -> int | None:
        """Return the time of its timer (ms); None for no timer."""


Kind = TypeVar("Kind", bound=Document)


class Documents(Generic[Kind]):
    """Reads and changes documents of a type. Every method raises StoreError when Redis can't be reached."""

    def __init__(
        self,
        document_type: type[Kind],
        place: str | RedisConnection,
        namespace: str = NAMESPACE,
    ) -> None:
        """Take the first server's URL or connection; nothing is connected yet."""
        self._type = document_type
        self._keys = Keys(namespace)
        self._key = f"{document_type.kind}s"
        self._redis = connected(place, self._keys.prefix)
        self._transactions = transactions_of(self._redis, self._keys.prefix)

    def _read(self, text: bytes) -> Kind:
        return self._type(**json.loads(text))

    def now(self) -> int:
        """Return the store's time in ms."""
        return self._redis.now()

    def all(self) -> list[Kind]:
        """List all documents, sorted by id."""
        stored = self._redis.call("HGETALL", self._keys.prefix + self._key)
        return sorted(map(self._read, stored[1::2]), key=lambda document: document.id)

    def get(self, document_id: str) -> Kind:
        """Read a document.

        Raises:
            NotFoundError: no document has that id.
        """
        return self._there(document_id, self.find(document_id))

    def find(self, document_id: str) -> Kind | None:
        """Read a document; None if no document has that id."""
        text = self._redis.call("HGET", self._keys.prefix + self._key, document_id)
        return None if text is None else self._read(text)

    def add(self, document: Kind) -> None:
        """Store a new document.

        Raises:
            UsageError: there are too many. ConflictError: the id is taken.
        """
        if self._redis.call("HLEN", self._keys.prefix + self._key) >= self._type.limit:
            raise UsageError(
                f"there are {self._type.limit:,} {self._type.kind}s already; remove one first."
            )

        def begin(current: Kind | None) -> Kind:
            if current is not None:
                raise ConflictError(
                    f"there is a {self._type.kind} {document.id!r} already; nothing was changed."
                )
            return document

        self._update(document.id, begin)

    def replace(self, before: Kind, after: Kind) -> bool:
        """Replace a document; return False if it has changed since it was read."""

        def exchange(current: Kind | None) -> Kind:
            if _text(current) != _text(before):
                raise ConflictError(f"the {self._type.kind} {before.id!r} has changed.")
            return after

        try:
            self._update(before.id, exchange)
        except ConflictError:
            return False
        return True

    def change(self, document_id: str, change: Callable[[Kind], Kind]) -> Kind:
        """Read a document, and replace it by the result of `change`.

        Raises:
            NotFoundError: no document has that id.
        """
        _, after = self._update(
            document_id, lambda current: change(self._there(document_id, current))
        )
        return self._there(document_id, after)

    def upsert(self, initial: Kind, change: Callable[[Kind], Kind]) -> None:
        """Replace a document by the result of `change`; if it doesn't exist yet, change its initial state.

        Raises:
            UsageError: there are too many.
        """
        try:
            self.change(initial.id, change)
        except NotFoundError:
            try:
                self.add(change(initial))
            except ConflictError:  # another process has just added it
                self.change(initial.id, change)

    def remove(self, document_id: str) -> Kind:
        """Delete a document and return it; raises like `change`."""

        def end(current: Kind | None) -> None:
            self._there(document_id, current)

        before, _ = self._update(document_id, end)
        return self._there(document_id, before)

    def _there(self, document_id: str, document: Kind | None) -> Kind:
        if document is None:
            raise NotFoundError(f"there is no {self._type.kind} {document_id!r:.80}.")
        return document

    def _update(
        self, document_id: str, change: Callable[[Kind | None], Kind | None]
    ) -> tuple[Kind | None, Kind | None]:
        """Replace a document and set its timer, in one transaction; return it before and after."""
        pair: tuple[Kind | None, Kind | None] = None, None
        proposed: list[str] = []

        def plan(transaction: Transaction) -> Reply:
            nonlocal pair
            write_set = transaction.write_set
            text = write_set.read(self._key, document_id)
            # After a lost reply, the repeat finds its own first write.
            if (text or b"").decode() in proposed:
                return Reply("done")
            before = self._read(text) if text is not None else None
            after = change(before)
            pair = before, after
            proposed.append(_text(after))
            due = None
            if after is None:
                write_set.drop(self._key, document_id)
            else:
                write_set.put(self._key, document_id, proposed[-1])
                due = after.due_at(transaction.clock())
            write_set.timers[timer_of(self._type.kind, document_id)] = due
            return Reply("done")

        self._transactions.run(self._type.kind, plan, [(self._key, document_id)])
        return pair


def timer_of(kind: str, document_id: str) -> str:
    """Name a document's member in the timers."""
    return f"{kind}|{document_id}|"


def _text(document: Document | None) -> str:
    # Texts are compared, so a document must always have the same one.
    if document is None:
        return ""
    return json.dumps(asdict(document), sort_keys=True, ensure_ascii=False)
