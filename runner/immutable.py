"""The decorator of values, which never change and have no dictionary; and results kept for a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar, dataclass_transform
from weakref import ref

Value = TypeVar("Value")
Result = TypeVar("Result")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[Value]) -> type[Value]:
    """Make a class a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True, weakref_slot=True)(cls)


def kept(function: Callable[[Value], Result]) -> Callable[[Value], Result]:
    """Keep a function's results while their arguments live, by identity: many can't be hashed."""
    results: dict[int, tuple[ref[Value], Result]] = {}

    @wraps(function)
    def result_of(value: Value) -> Result:
        key = id(value)
        if key not in results:
            results[key] = ref(value, lambda _: results.pop(key)), function(value)
        return results[key][1]

    return result_of
