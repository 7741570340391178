"""How much a store takes, and how long it waits: see `sizes.py` for what is checked where."""

from __future__ import annotations

from typing import Protocol


class Bounded(Protocol):
    """The bounds of a store. Sizes are bytes of JSON.

    `lease_ms` is how long a worker may be silent before its node runs again. `max_bytes` bounds one value,
    `max_state` what a node keeps to go on with. `max_run` bounds a run with all runs inside it: a start, a
    fork, a checkpoint, a question, a list of items, a large value or the result of a node beyond it raises
    PayloadTooLarge, and nothing of it is stored. What ends or stops work is never refused for it, and no
    answer is. It may be set while the store is open.
    """

    lease_ms: int
    max_bytes: int
    max_state: int
    max_run: int
