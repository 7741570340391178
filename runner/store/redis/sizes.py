"""The size of a run with all runs inside it, which is counted at the outermost one, in its field `size`.

It is the bytes of what was given to the run, of what its nodes and people leave in it and of what nodes keep.
"""

from __future__ import annotations

from runner.records.run import RunRecord
from runner.records.size_limits import no_room
from runner.store.redis.draft import Draft
from runner.store.redis.keys import run_key

VISIT_BYTES, MESSAGE_BYTES = 300, 50
"""Bytes that a settled visit and a stored message take beside their values: keys, records, events.

Measured; `test_a_run_counts_about_what_it_takes` compares the sums with the server's. The scripts have
the same numbers, in parts/settings.lua.
"""


def check_room(draft: Draft, run: RunRecord, more: int, *, stops: bool) -> None:
    """Refuse bytes for which a run has no room. One that stops takes all that its nodes still leave.

    Raises:
        PayloadTooLarge: there is none.
    """
    if stops or more <= 0:
        return
    size = int(draft.peek(run_key(run.root), "size") or 0)
    if size + more > draft.settings.max_run:
        raise no_room(size, more, draft.settings.max_run)
