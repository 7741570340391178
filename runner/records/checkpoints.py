"""Checkpoints: the state that nodes and sessions keep between executions, and its document."""

from __future__ import annotations

from dataclasses import field

from runner.errors import CorruptDocument
from runner.immutable import immutable
from runner.records.codec import JSON, JSONObject, without_empty


@immutable
class Saved:
    """State of a node across a pause: its document, and the messages after the first `keep`.

    `document` is packed JSON data with a field `v`. Messages are stored as deltas: the stored list
    is cut to `keep` messages, and `messages` are appended.
    """

    document: JSONObject
    keep: int = 0
    messages: list[JSON] = field(default_factory=list)


@immutable
class Session:
    """A conversation that outlives its runs: packed messages in order, and packed state by name."""

    messages: list[JSON] = field(default_factory=list)
    state: JSONObject = field(default_factory=dict)


@immutable
class SessionUpdate:
    """Messages that a completed visit adds to a session: the node's messages from index `first`.

    `state` holds the values that the visit changed, `gone` the names that it deleted.
    """

    session_id: str
    first: int
    state: JSONObject = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def session_key(graph: str, session_id: str) -> str:
    """Return the stored name of an outermost graph's session; with "", of a session that all share.

    The name of a graph has no slash, so a shared id is never taken for a session of a graph.
    """
    return f"{graph}/{session_id}"


def session_of(key: str) -> tuple[str, str]:
    """Return the graph ("" if graphs share it) and the id of a session from its stored name."""
    graph, slash, session_id = key.partition("/")
    return (graph, session_id) if slash else ("", key)


VERSION = 1
"""The version of a stored node document; another one is refused."""


@immutable
class NodeDocument:
    """A node's stored document between executions: its executor's document and the writing visit.

    `tentative` is the node's outcome while the hooks after it ask a person. If the node was renamed
    during a visit, `named` is the "node.visit" under which the visit began; the idempotency key
    keeps it.
    """

    visit: int
    executor: JSONObject | None
    tentative: JSONObject | None
    trace: str = ""
    named: str = ""

    def dump(self) -> JSONObject:
        """Return the stored form, without optional fields that are empty."""
        document = {"visit": self.visit, "executor": self.executor, "tentative": self.tentative}
        return {
            "v": VERSION,
            **document,
            **without_empty({"trace": self.trace, "named": self.named}),
        }

    def first_name(self, visit: int) -> str:
        """Return the "node.visit" under which a visit began; "" if it has not been renamed."""
        return self.named if self.named.endswith(f".{visit}") else ""


def load_document(document: JSON) -> NodeDocument | None:
    """Read a stored document strictly.

    Raises:
        CorruptDocument: its fields or its version are not those written here.
    """
    if document is None:
        return None
    try:
        fields = dict(document)
        version = fields.pop("v")
        loaded = NodeDocument(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDocument(
            "a stored node document has an unknown form; it was left untouched."
        ) from error
    if version != VERSION:
        raise CorruptDocument(
            f"a stored node document has version {version!r}, this library reads {VERSION}; "
            "it was left untouched."
        )
    return loaded
