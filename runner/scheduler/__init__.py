"""Every transition of a run: the rules in prose, and the one entry point to this folder.

Two rules hold it together. All code that changes the status of a node, a loop or a run is here, for
every store; `store/lua/take.lua` and `store/lua/apply.lua` repeat only its most frequent cases. And
the cost of a node doesn't grow with the graph: its transitions read only the node, its direct
neighbours and the run's counters. Only a stop, a retry, a fork and a migration read more.

The life of a node:

    pending -> ready -> running -> completed | failed
                 ^         |-> waiting   (for an answer, a child run or an external task)
                 |         |-> retrying  (its retry policy allows another attempt, after a delay)
                 +---------+             (answered, due, child ended, reported, lease lost, worker shut down)
    ready -> retrying       a rate limit delays it (see `reserve` of limits/slots.py)
    pending -> skipped      every path to it is dead
    running -> failed       its workers were lost or released it too often in a row, without progress
    pending, ready, waiting, retrying -> held   an operator holds it, so it isn't made ready
    running -> held         its graph has changed since the run began
    ready, waiting, retrying -> cancelled   its run stops
    running -> cancelled    its run stops, and it would wait or run again
    ready, waiting, retrying -> failed | completed   its question has expired with that effect

A node becomes ready together with its doorbell: a queue message that holds only ids, so that a
lost, doubled or late doorbell costs only time. A timer pushes it again while no worker has claimed
the node. If a node makes one other node ready, its worker may claim that node at once, without a
doorbell (see `lifecycle.may_follow`).

A node that settles sends an arrival, live or dead, along each of its edges. A join `all` is ready
when every edge has arrived and one is live, a join `any` at the first live arrival; a node whose
edges are all dead is skipped, and its own edges die.

Loops. A live back edge only records that another round is requested. When every node of a loop has
settled, the loop either starts its next round (if one is requested, and none of a loop around it)
or ends. A round starts by increasing the loop's number: nodes whose records have an older number
count as pending, and nothing needs to be deleted. An edge out of a loop arrives once per run of that
loop: live when first taken, dead when the loop ends without it.

Maps. A map that has its list waits while its items, nodes `M[0]`, `M[1]` …, run. When an item ends
or waits for a person, the next starts; when all have ended, the map is ready again for a worker to
collect their results. Items have no edges and count in no loop, and a failed item stops its map or,
if the map continues on errors, nothing.

Counters decide the run's status: `active` above 0 is executing; see `run.status_of`. A run that
stops (a failure under fail_fast, a limit, a cancel) makes no more nodes ready. Ready, waiting and
retrying nodes are cancelled at once, running nodes may finish, and the run ends with its last node.

Undos. A run that would end as failed or cancelled first undoes completed visits, one at a time and
the newest first. The record `@undo:` lists those that have an undo; a node `@undo:<node>`, which a
stop doesn't cancel, undoes each.

A run with `on_end` then gets a doorbell for its callback, pushed again until a worker has confirmed
the call.
"""

from __future__ import annotations

from runner.scheduler.changes import IDLE, MAX_REDISPATCH_MS, drain_order, owns
from runner.scheduler.lifecycle import (
    RELEASE_BUDGET,
    claim,
    leave,
    live_inputs,
    may_follow,
    offer_slot,
    retry,
    settle,
)
from runner.scheduler.questions import answer, ask, granted, note, park, wake, withdraw
from runner.scheduler.runs import (
    begin,
    cancel,
    delay,
    drain,
    end_reported,
    fork,
    leave_key,
    migrate,
    put_off,
    queue,
    reopen,
    requeue,
    start,
)
from runner.scheduler.timers import CRASH_BUDGET, due
from runner.scheduler.waits import (
    child_changed,
    confirm_hand_over,
    delegate,
    expand,
    hand_over,
    hold,
    intervene,
    release,
    report,
)

__all__ = [
    "CRASH_BUDGET",
    "IDLE",
    "MAX_REDISPATCH_MS",
    "RELEASE_BUDGET",
    "answer",
    "ask",
    "begin",
    "cancel",
    "child_changed",
    "claim",
    "confirm_hand_over",
    "delay",
    "delegate",
    "drain",
    "drain_order",
    "due",
    "end_reported",
    "expand",
    "fork",
    "granted",
    "hand_over",
    "hold",
    "intervene",
    "leave",
    "leave_key",
    "live_inputs",
    "may_follow",
    "migrate",
    "note",
    "offer_slot",
    "owns",
    "park",
    "put_off",
    "queue",
    "release",
    "reopen",
    "report",
    "requeue",
    "retry",
    "settle",
    "start",
    "wake",
    "withdraw",
]
