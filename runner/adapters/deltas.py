"""A conversation as a framework holds it, stored as the messages that are new. Pure."""

from __future__ import annotations

from typing import Any

from runner.outcomes import Saved

JSON = Any


class Conversation:
    """The stored messages of a visit, and what has to be written when a framework has others now."""

    def __init__(self, stored: list[JSON]) -> None:
        self.stored = list(stored)

    def saved(self, document: dict[str, JSON], messages: list[JSON]) -> Saved:
        """Give what to store: the document, and the messages after the last one that is unchanged."""
        pairs = zip(self.stored, messages, strict=False)
        shorter = min(len(self.stored), len(messages))
        keep = next((i for i, (old, new) in enumerate(pairs) if old != new), shorter)
        self.stored = list(messages)
        return Saved(document, keep, messages[keep:])

    def unchanged(self, document: dict[str, JSON]) -> Saved:
        """Give what to store where only the document has changed."""
        return Saved(document, len(self.stored))
