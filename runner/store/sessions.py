"""Sessions in memory: conversations that outlive their runs, in stored form. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from runner.outcomes import Remembered, Session
from runner.store.stored import pack_copy

JSON = Any


class Sessions:
    """All sessions of one or more memory stores, by their ids."""

    def __init__(self) -> None:
        """Start with none."""
        self._found: dict[str, Session] = {}
        self._lock = threading.Lock()

    def read(self, session_id: str) -> Session:
        """Copy a session; one that nobody wrote is empty."""
        with self._lock:
            found = self._found.get(session_id, Session())
            return Session(pack_copy(found.messages), pack_copy(found.state))

    def add(self, more: Remembered, messages: Sequence[JSON]) -> None:
        """Append what a visit adds; `messages` are all of its node's."""
        with self._lock:
            found = self._found.setdefault(more.session_id, Session())
            found.messages.extend(pack_copy(list(messages[more.first :])))
            found.state.update(pack_copy(more.state))
            for name in more.gone:
                found.state.pop(name, None)

    def forget(self, session_id: str) -> bool:
        """Delete a session; False when there was none."""
        with self._lock:
            return self._found.pop(session_id, None) is not None
