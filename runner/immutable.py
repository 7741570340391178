"""The decorator of values, which never change and have no dictionary; and results kept for a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")
Result = TypeVar("Result")

MOST_KEPT = 300


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[Value]) -> type[Value]:
    """Make a class a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True)(cls)


def kept(function: Callable[[Value], Result]) -> Callable[[Value], Result]:
    """Keep a function's results by the identity of its argument, because many values can't be hashed."""
    results: dict[int, tuple[Value, Result]] = {}

    @wraps(function)
    def result_of(value: Value) -> Result:
        known = results.get(id(value))  # which no other value has while this one is kept
        if known is None:
            if len(results) >= MOST_KEPT:
                results.clear()
            known = results[id(value)] = value, function(value)
        return known[1]

    return result_of
