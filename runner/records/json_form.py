"""The JSON form of records in commands, exports and archives: names, and times as RFC 3339.

`pretty` and `span` format data and a duration for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

from runner.records.codec import JSONObject
from runner.records.run import Status

JSON_NAMES = {"node_id": "node", "graph_id": "graph"}
"""Fields of records that have the same names in JSON as in messages and events."""

TIMES = frozenset({"at", "since", "seen", "started"})
"""Fields of records with ms of the store's clock, besides fields that end in `_at`."""


def is_time(field: str) -> bool:
    """Return whether a record's field holds one time in ms; JSON has it as RFC 3339."""
    return field in TIMES or (field.endswith("_at") and field != "escalates_at")


TIME = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}


PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of data that are the same in JSON."""


def document(value: Any) -> Any:
    """Return the JSON form of a record, or of a list or mapping of records."""
    if type(value) in PLAIN:  # as most values are, and the tests below are slow
        return value
    if is_dataclass(value):
        return {
            JSON_NAMES.get(field.name, field.name): stamp(getattr(value, field.name))
            if is_time(field.name)
            else document(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, Status):
        return str(value.shown)
    if isinstance(value, Mapping):
        return {str(key): document(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [document(item) for item in value]
    return value


def stamp(milliseconds: int) -> str | None:
    """Return a time of the store as RFC 3339 in UTC; None for 0."""
    if not milliseconds:
        return None
    time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(time: str | None) -> int:
    """Parse a time written by `stamp`; 0 for None."""
    return round(datetime.fromisoformat(time).timestamp() * 1000) if time else 0


def pretty(value: Any) -> str:
    """Return JSON data for a person, indented; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def span(milliseconds: float) -> str:
    """Return a duration for a person."""
    seconds = max(0.0, milliseconds / 1000)
    if seconds < 1:
        return f"{round(milliseconds)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} days {hours % 24} h"


def as_written(schema: JSONObject) -> None:
    """Adapt a dataclass's schema to the output of `document`: names, times, all keys required."""
    if "properties" in schema:
        schema["properties"] = {
            JSON_NAMES.get(name, name): TIME if is_time(name) else value
            for name, value in schema["properties"].items()
        }
        for value in schema["properties"].values():
            # Pydantic's titles repeat the field names; defaults are useless in an output.
            value.pop("title", None), value.pop("default", None)
        schema["required"] = list(schema["properties"])
        schema.pop("additionalProperties", None)
