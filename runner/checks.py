"""What a declaration may say: ids, options and numbers, checked where they are given."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from runner.errors import DefinitionError
from runner.graph import HIDDEN, Join
from runner.maps import BRACKETS

MAX_ID = 128
MAX_PRIORITY = 9


def can_decide(condition: object) -> bool:
    """Tell whether a condition can be called with the state; a coroutine would always count as true."""
    try:
        found = inspect.signature(condition)  # type: ignore[arg-type]
        extra = {"invocation_state": None} if "invocation_state" in found.parameters else {}
        found.bind(None, **extra)
    except (TypeError, ValueError):
        return False
    return not inspect.iscoroutinefunction(condition)


def check_id(name: object, kind: str) -> None:
    """Check the id of a node or graph.

    Raises:
        DefinitionError: it has characters that mean something else, or is too long.
    """
    fits = isinstance(name, str) and name.isprintable() and name.strip() and len(name) <= MAX_ID
    if not fits or str(name).startswith(HIDDEN) or not set('"\\/' + BRACKETS).isdisjoint(str(name)):
        raise DefinitionError(
            f"{name!r} can't be a {kind} id: use 1 to {MAX_ID} printable characters without quotes, "
            f"slashes, backslashes or brackets, not beginning with {HIDDEN!r}."
        )


def check_options(node: str, join: str, resume: str, priority: int | None, timeout: float | None) -> None:
    """Check the options of a node.

    Raises:
        DefinitionError: one is none of those it may be.
    """
    allowed: Mapping[str, tuple[object, set[Any]]] = {
        "join": (join, set(Join)),
        "resume": (resume, {"all", "each"}),
        "priority": (priority, {None, *range(MAX_PRIORITY + 1)}),
    }
    for name, (value, values) in allowed.items():
        if value not in values:
            raise DefinitionError(
                f"node {node!r}: {name} must be one of {sorted(map(str, values))}, not {value!r}."
            )
    if timeout is not None:
        positive(timeout, f"the timeout of node {node!r}")


def positive(value: float, name: str) -> float:
    """Check a number that must be above 0.

    Raises:
        DefinitionError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise DefinitionError(f"{name} must be a number above 0, not {value!r}.")
    return value
