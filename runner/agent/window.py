"""Which part of a long conversation the model sees: from the start of some exchange to its end.

A conversation is only ever cut before a message of the user that holds no tool result, so that no
call is cut from its result and the batch that runs now is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def start_of(messages: Sequence[dict[str, Any]], start: int, size: int | None) -> int:
    """Return where the window begins: as late as `size` messages ask for, never before `start`."""
    if size is None or len(messages) - start <= size:
        return start
    cuts = _cuts(messages, start)
    fitting = [cut for cut in cuts if len(messages) - cut <= size]
    return fitting[0] if fitting else (cuts[-1] if cuts else start)


def next_cut(messages: Sequence[dict[str, Any]], start: int) -> int | None:
    """Return where a smaller window can begin, about half way; None when it can't be made smaller."""
    cuts = _cuts(messages, start)
    if not cuts:
        return None
    middle = (start + len(messages)) // 2
    return next((cut for cut in cuts if cut >= middle), cuts[-1])


def _cuts(messages: Sequence[dict[str, Any]], start: int) -> list[int]:
    return [index for index in range(start + 1, len(messages)) if _opens(messages[index])]


def _opens(message: dict[str, Any]) -> bool:
    return message["role"] == "user" and not any("toolResult" in block for block in message["content"])
