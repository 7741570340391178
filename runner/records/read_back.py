"""Comparison of a value with the value that is read back from its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pydantic


def difference(value: Any, again: Any, path: str = "the value") -> str:
    """Return the path of the first part that differs after it was read back; "" if none does.

    Fields that a model excludes from its JSON form and objects that can't be compared are skipped.
    """
    if value is again:
        return ""
    if isinstance(value, pydantic.BaseModel) and type(value) is type(again):
        names = [name for name, info in type(value).model_fields.items() if not info.exclude]
        return _of_parts(
            [(name, getattr(value, name), getattr(again, name)) for name in names], path
        )
    if is_dataclass(value) and not isinstance(value, type) and type(value) is type(again):
        names = [field.name for field in fields(value)]
        return _of_parts(
            [(name, getattr(value, name), getattr(again, name)) for name in names], path
        )
    if isinstance(value, Mapping) and isinstance(again, Mapping):
        if len(value) == len(again):
            pairs = zip(value.items(), again.values(), strict=True)
            return _of_parts(
                [
                    (str(name), value_before, value_after)
                    for (name, value_before), value_after in pairs
                ],
                path,
            )
        return path
    if isinstance(value, (list, tuple)) and isinstance(again, (list, tuple)):
        if len(value) == len(again):
            pairs = zip(value, again, strict=True)
            return _of_parts(
                [
                    (str(n), value_before, value_after)
                    for n, (value_before, value_after) in enumerate(pairs)
                ],
                path,
            )
        return path
    if any("__eq__" in base.__dict__ for base in type(value).__mro__[:-1]):
        return "" if value == again or value != value else path  # noqa: PLR0124 - NaN
    return ""


def _of_parts(pairs_by_name: list[tuple[str, Any, Any]], path: str) -> str:
    inner = "" if path == "the value" else f"{path}."
    paths = (
        difference(value_before, value_after, f"{inner}{name}")
        for name, value_before, value_after in pairs_by_name
    )
    return next(filter(None, paths), "")
