"""The sessions of memory stores: conversations that outlive their runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from runner.records.checkpoints import Session, SessionUpdate
from runner.records.codec import JSON
from runner.store.encoding import pack_copy


class Sessions:
    """The sessions of one or more memory stores, by id, in stored form. Thread-safe."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def read(self, session_id: str) -> Session:
        """Copy a session; it is empty if it was never written."""
        with self._lock:
            session = self._sessions.get(session_id, Session())
            return Session(pack_copy(session.messages), pack_copy(session.state))

    def add(self, update: SessionUpdate, messages: Sequence[JSON]) -> None:
        """Add a visit's part to its session; `messages` are all messages of its node."""
        with self._lock:
            session = self._sessions.setdefault(update.session_id, Session())
            session.messages.extend(pack_copy(list(messages[update.first :])))
            session.state.update(pack_copy(update.state))
            for name in update.gone:
                session.state.pop(name, None)

    def forget(self, session_id: str) -> bool:
        with self._lock:
            return self._sessions.pop(session_id, None) is not None
