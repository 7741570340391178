"""The decorator of values: a dataclass that never changes, without a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[Value]) -> type[Value]:
    """Make a class a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True)(cls)
