"""Copies in stored form: what goes into a store and comes out is never the caller's own object."""

from __future__ import annotations

from typing import Any

import pydantic_core


def pack_copy(value: Any) -> Any:
    """Copy packed JSON data by writing and reading it, as a real store would."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return pydantic_core.from_json(pydantic_core.to_json(value))
