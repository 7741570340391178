"""Observers of an agent's model and tool calls, for traces.

An observer that raises is logged and left out: it never breaks a call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that begins: names only, never data. `name` is the model's class, or the tool."""

    kind: Literal["model", "tool"]
    agent: str
    name: str


@dataclass(slots=True)
class CallEnd:
    """How a call ended: the name of its error, "interrupt" where a tool asked a person, or "".

    `usage` counts the tokens of a model call.
    """

    error: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)


CallObserver = Callable[[Call], AbstractContextManager[Callable[[CallEnd], object]]]
"""Enters before a call; what it returns is called with the end; leaves afterwards, also after an error."""

observers: list[CallObserver] = []


@contextmanager
def observed(call: Call) -> Iterator[CallEnd]:
    """Have every observer see a call; the caller fills in how it ended."""
    end = CallEnd()
    entered = []
    for observer in observers:
        try:
            around = observer(call)
            entered.append((around, around.__enter__()))
        except Exception:
            log.exception("observer.failed: the call continues without it.")
    try:
        yield end
    finally:
        for around, finish in reversed(entered):
            try:
                finish(end)
                around.__exit__(None, None, None)
            except Exception:
                log.exception("observer.failed: the call's result is not changed by it.")
