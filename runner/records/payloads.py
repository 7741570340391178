"""Payloads: texts and data of users and agents, which only some people may read.

The type of a record's field says that it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from runner.immutable import immutable

Value = TypeVar("Value")


@immutable
class Hidden:
    """Marks the type of a field as a payload.

    `instead` returns from the record the value to show in its place; by default it is an empty one.
    """

    instead: Callable[[Any], object] | None = None


Payload = Annotated[Value, Hidden()]
"""The type of a payload that is left out as a whole."""

EMPTY: dict[Any, object] = {str: "", bytes: b"", tuple: (), list: [], dict: {}, Mapping: {}}
"""By type: the value in place of a payload; None for any other type."""


def without_reason(field: str) -> Hidden:
    """Hide only the `reason` in a field that holds a mapping or None."""
    return Hidden(lambda record: (value := getattr(record, field)) and {**value, "reason": ""})


def bare(value: Any) -> Any:
    """Return a record, or a list or mapping of records, without payloads."""
    if is_dataclass(type(value)):
        changes = {name: make(value) for name, make in _changes(value.__class__).items()}
        return replace(value, **changes) if changes else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(bare, value))
    if isinstance(value, Mapping):
        return {key: bare(item) for key, item in value.items()}
    return value


@cache
def _changes(kind: type) -> dict[str, Callable[[Any], object]]:
    """Return by field the function that makes its bare value, for payloads and fields with records."""
    hints = get_type_hints(kind, include_extras=True)
    records: dict[str, Callable[[Any], object]] = {
        name: partial(_bare_field, name) for name, hint in hints.items() if _has_records(hint)
    }
    return records | {
        name: mark.instead or _empty(part.__origin__)
        for name, hint in hints.items()
        for part in (hint, *get_args(hint))  # `Payload[str] | None` is a payload, too
        for mark in getattr(part, "__metadata__", ())
        if isinstance(mark, Hidden)
    }


def _bare_field(name: str, record: Any) -> Any:
    return bare(getattr(record, name))


def _has_records(hint: Any) -> bool:
    is_record = isinstance(hint, TypeVar) or is_dataclass(hint)
    return is_record or any(map(_has_records, get_args(hint)))


def _empty(kind: Any) -> Callable[[Any], object]:
    value = EMPTY.get(get_origin(kind) or kind)
    return lambda _: value
