"""Every transition of a run: the rules, and the one door to `transitions/`.

Two rules hold that room together. Everything that changes a node's, a loop's or a run's status is
written there and, in the same words, in `store/lua`; a property test holds the two equal. And a
transition looks only at the node, its direct neighbours and the run's counters: its cost does not
grow with the graph.

The life of a node:

    pending -> ready -> running -> completed | failed
                 ^         |-> waiting   (it asked, or a child run or another system works for it)
                 |         |-> retrying  (its policy says again, later)
                 +---------+             (answered, due, child ended, reported, lease lost, its worker left)
    ready -> retrying       a rate gives it a time (see `limits.py`)
    pending -> skipped      every way to it is dead
    ready, waiting, retrying -> cancelled   its run stops
                             -> failed | completed   a question's time is over that says so (see `expiry.py`)

A node that settles sends an arrival, live or dead, along each of its edges. Join `all` is ready
when every edge has arrived and one is live; `any` at the first live one; a node all of whose
edges are dead is skipped, and its own edges die.

Loops. A live back edge only notes that another round is asked. When every node of a loop has
settled, the loop either starts its next round (asked, and no loop around it is asked as well) or
ends. A round begins by growing the loop's number: what carries an older number is forgotten, at
no cost. An edge out of a loop arrives once per run of that loop: live when first taken, dead when
the loop ends without it.

Batches. A graph that runs as Strands runs it (`topology.batches`) knows neither arrivals nor loops.
No node starts before all of its batch have settled; then BATCH becomes ready, its worker asks the
conditions, and `advance` opens the next batch. The run's own counters are those of the batch.

Maps. A map that has its list waits while its items, nodes `M[0]`, `M[1]` …, do its work. As one ends
or waits for a person the next begins; when all have ended the map is ready again, for its worker to
collect what they gave. Items have no edges and count in no loop, and one that fails stops at most its
map.

Counters decide the run's status: `active` above 0 is executing; see `run.status_of`. A run that
stops (a failure under fail_fast, a limit, a cancel) makes nothing ready any more; what waits is
cancelled at once, what runs is recorded, and the last one ends the run. A run with `on_end` rings at
its end for a worker that tells so, and again until that is done.
"""

from __future__ import annotations

from runner.transitions.claims import claim, live_inputs, pass_on
from runner.transitions.ends import advance, leave, retry, settle
from runner.transitions.questions import answer, ask, park, withdraw
from runner.transitions.runs import cancel, drain, fork, migrate, reopen, start, told
from runner.transitions.steps import IDLE, MAX_RING_MS, holds
from runner.transitions.timers import CRASH_BUDGET, due
from runner.transitions.waits import child_moved, delegate, expand, hand, hold, release, report, sent

__all__ = [
    "CRASH_BUDGET",
    "IDLE",
    "MAX_RING_MS",
    "advance",
    "answer",
    "ask",
    "cancel",
    "child_moved",
    "claim",
    "delegate",
    "drain",
    "due",
    "expand",
    "fork",
    "hand",
    "hold",
    "holds",
    "leave",
    "live_inputs",
    "migrate",
    "park",
    "pass_on",
    "release",
    "reopen",
    "report",
    "retry",
    "sent",
    "settle",
    "start",
    "told",
    "withdraw",
]
