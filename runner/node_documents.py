"""The stored document of a node between its executions. Pure.

It wraps the executor's own: beside that lie the visit that wrote it and, while the hooks after a node
ask a person, the node's tentative outcome.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from runner.errors import CorruptDocument

JSON = Any
VERSION = 1
SOMETIMES = ("trace", "named")


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """What is stored of a node between its executions.

    `named` is the "node.visit" under which a visit began whose node has another name since: it stays in
    the idempotency key.
    """

    visit: int
    executor: dict[str, JSON] | None = None
    tentative: dict[str, JSON] | None = None
    trace: str = ""
    named: str = ""

    def dump(self) -> dict[str, JSON]:
        """Return the stored form; what is seldom there is left out where it is not."""
        stored = {"v": VERSION, **asdict(self)}
        return {name: value for name, value in stored.items() if value or name not in SOMETIMES}

    def first_name(self, visit: int) -> str:
        """Return under which "node.visit" a visit began, "" where that is its name still."""
        return self.named if self.named.endswith(f".{visit}") else ""


def load_document(stored: JSON) -> NodeDocument | None:
    """Read a stored document strictly.

    Raises:
        CorruptDocument: it has another form or a version unknown here.
    """
    if stored is None:
        return None
    if not isinstance(stored, dict) or set(stored) - set(SOMETIMES) != {
        "v",
        "visit",
        "executor",
        "tentative",
    }:
        raise CorruptDocument("a stored node document has an unknown form; it was left untouched.")
    if stored["v"] != VERSION:
        raise CorruptDocument(
            f"a stored node document has version {stored['v']!r}, this library reads {VERSION}; "
            "it was left untouched."
        )
    also = {name: stored[name] for name in SOMETIMES if name in stored}
    return NodeDocument(stored["visit"], stored["executor"], stored["tentative"], **also)
