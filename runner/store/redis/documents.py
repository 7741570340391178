"""Documents that have a timer each, such as schedules and webhooks, in the first partition of a namespace.

A sweep takes the timer and moves it by a lease; whoever took it does what it stands for. Every change
compares the document with what was read, so that of two processes one changes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from runner.errors import ConflictError, NotFoundError, UsageError
from runner.store.addresses import NAMESPACE
from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import Keys

TRIES = 10
"""Times that a change is retried where another process came between."""


class Document(Protocol):
    """A value with an id, its JSON, and a timer; `kind` is what messages and timers call such values.

    A namespace has `limit` of them at most.
    """

    kind: ClassVar[str]
    limit: ClassVar[int]

    def __init__(self, **values: Any) -> None: ...

    @property
    def id(self) -> str: ...

    def document(self) -> dict[str, Any]:
        """Return it as JSON, as it is stored."""

    def due_at(self, now: int) -> int | None:
        """Return for when its timer is set (ms); None for no timer."""


Kind = TypeVar("Kind", bound=Document)


class Documents(Generic[Kind]):
    """Reads and changes documents of a type. Every method raises StoreError when Redis can't be reached."""

    def __init__(
        self, document_type: type[Kind], place: str | RedisConnection, namespace: str = NAMESPACE
    ) -> None:
        """Take the first server, by its URL or as it is connected; nothing is connected yet."""
        self._type, self._keys = document_type, Keys(namespace)
        self._key = self._keys.documents[document_type.kind]
        self._redis = connected(place, self._keys.prefix)

    def _read(self, text: bytes) -> Kind:
        return self._type(**json.loads(text))

    def now(self) -> int:
        """Return the store's time in ms."""
        return self._redis.now()

    def all(self) -> list[Kind]:
        """List them by their ids."""
        stored = self._redis.call("HGETALL", self._key)
        documents = stored.values() if isinstance(stored, dict) else stored[1::2]
        return sorted((self._read(text) for text in documents), key=lambda document: document.id)

    def get(self, document_id: str) -> Kind:
        """Read one.

        Raises:
            NotFoundError: there is none of that id.
        """
        text = self._redis.call("HGET", self._key, document_id)
        if text is None:
            raise NotFoundError(f"there is no {self._type.kind} {document_id!r:.80}.")
        return self._read(text)

    def add(self, document: Kind) -> None:
        """Store a new one.

        Raises:
            UsageError: there are too many. ConflictError: there is one of that id.
        """
        if self._redis.call("HLEN", self._key) >= self._type.limit:
            raise UsageError(
                f"there are {self._type.limit:,} {self._type.kind}s already; remove one first."
            )
        if not self._write(document.id, None, document):
            raise ConflictError(
                f"there is a {self._type.kind} {document.id!r} already; nothing was changed."
            )

    def replace(self, before: Kind, after: Kind) -> bool:
        """Change one; False where it is not what was read any more."""
        return self._write(before.id, before, after)

    def change(self, document_id: str, change: Callable[[Kind], Kind]) -> Kind:
        """Read one, and replace it by what `change` makes of it.

        Raises:
            NotFoundError: there is none of that id. ConflictError: others change it all the time.
        """
        for _ in range(TRIES):
            before = self.get(document_id)
            after = change(before)
            if self._write(document_id, before, after):
                return after
        raise ConflictError(
            f"the {self._type.kind} {document_id!r} changes all the time; nothing was done."
        )

    def remove(self, document_id: str) -> Kind:
        """Delete one, and return what it was; it raises as `change` does."""
        for _ in range(TRIES):
            before = self.get(document_id)
            if self._write(document_id, before, None):
                return before
        raise ConflictError(
            f"the {self._type.kind} {document_id!r} changes all the time; nothing was done."
        )

    def _write(self, document_id: str, before: Kind | None, after: Kind | None) -> bool:
        key, timer = self._key, timer_of(self._type.kind, document_id)
        # Repeated after a lost reply, it finds what it has written itself.
        same = {_text(before), _text(after)}
        due = None if after is None else after.due_at(self.now())

        def write(pipe: Any) -> bool:
            present = pipe.hget(key, document_id) or b""
            if present.decode() not in same:
                return False
            pipe.multi()
            if after is None:
                pipe.hdel(key, document_id)
            else:
                pipe.hset(key, document_id, _text(after))
            if due is None:
                pipe.zrem(self._keys.timers, timer)
            else:
                pipe.zadd(self._keys.timers, {timer: due})
            return True

        with self._redis.translated():
            client = self._redis.client_of(key)
            return bool(client.transaction(write, key, value_from_callable=True))


def timer_of(kind: str, document_id: str) -> str:
    """Name the member of the timers that stands for a document."""
    return f"{kind}|{document_id}|"


def _text(document: Document | None) -> str:
    # Always the same text for the same document: it is compared.
    return (
        ""
        if document is None
        else json.dumps(document.document(), sort_keys=True, ensure_ascii=False)
    )
