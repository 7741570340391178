"""Comparison of a value with the value that is read back from its JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import fields, is_dataclass
from typing import Any

import pydantic


def difference(value: Any, again: Any, path: str = "the value") -> str:
    """Return the path of the first part that differs after it was read back; "" if none does.

    Fields that a model excludes from its JSON form and objects that can't be compared are skipped.
    """
    if value is again:
        return ""
    children: Iterable[tuple[object, Any, Any]]
    if type(value) is type(again) and (names := _fields(value)):
        children = [(name, getattr(value, name), getattr(again, name)) for name in names]
    elif isinstance(value, Mapping) and isinstance(again, Mapping):
        pairs = zip(value.items(), again.values(), strict=False)
        children = [(name, old_value, new_value) for (name, old_value), new_value in pairs]
    elif isinstance(value, (list, tuple)) and isinstance(again, (list, tuple)):
        children = [(n, *pair) for n, pair in enumerate(zip(value, again, strict=False))]
    elif any("__eq__" in base.__dict__ for base in type(value).__mro__[:-1]):
        return "" if value == again or value != value else path  # noqa: PLR0124 - NaN
    else:
        return ""
    if isinstance(value, Sized) and isinstance(again, Sized) and len(value) != len(again):
        return path
    inner = "" if path == "the value" else f"{path}."
    paths = (
        difference(old_value, new_value, f"{inner}{name}")
        for name, old_value, new_value in children
    )
    return next(filter(None, paths), "")


def _fields(value: Any) -> list[str]:
    """Name the fields of a model or a dataclass."""
    if isinstance(value, pydantic.BaseModel):
        return [name for name, info in type(value).model_fields.items() if not info.exclude]
    is_value = is_dataclass(value) and not isinstance(value, type)
    return [field.name for field in fields(value)] if is_value else []
