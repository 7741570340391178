"""Faults to plant, one line each: what the property tests must catch.

Every mutation is a file below the package `runner`, a text that occurs in it once, what stands there
instead, and what then goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One planted fault."""

    file: str
    old: str
    new: str
    breaks: str


SCHEDULE = "schedule.py"
LUA = "store/lua/"

MUTATIONS = (
    # -- the scheduler -----------------------------------------------------------------------------
    Mutation(
        SCHEDULE,
        "if arrived >= shape.needs and not alive:",
        "if not alive:",
        "a join is skipped at its first dead edge",
    ),
    Mutation(
        SCHEDULE,
        "elif (live and shape.join is Join.ANY) or (arrived >= shape.needs and alive):",
        "elif live or (arrived >= shape.needs and alive):",
        "a join of all does not wait for all",
    ),
    Mutation(
        SCHEDULE,
        "    if record.status is not Status.PENDING:\n        return\n    shape",
        "    shape",
        "a join of any runs at each arrival",
    ),
    Mutation(
        SCHEDULE,
        "    if old.stamp != stamp:\n        old = Arrivals(stamp)\n",
        "",
        "a loop's round counts arrivals of the round before",
    ),
    Mutation(
        SCHEDULE,
        "if loop.asked and not any(draft.loop(outer).asked for outer in shape.outer):",
        "if loop.asked:",
        "an inner loop goes on though an outer one was asked",
    ),
    Mutation(
        SCHEDULE,
        "        if (source, position) not in taken:\n",
        "        if True:\n",
        "an exit that was taken arrives dead, too",
    ),
    Mutation(
        SCHEDULE,
        "draft.loops[outer] = replace(around, settled=around.settled - shape.size)",
        "draft.loops[outer] = around",
        "the outer loop ends while the inner one repeats",
    ),
    Mutation(
        SCHEDULE,
        "    if not draft.run.stopping:\n        _spread(draft, node)",
        "    _spread(draft, node)",
        "a run that stops settles what follows",
    ),
    Mutation(
        SCHEDULE,
        "if limit and draft.run.started >= limit:",
        "if limit and draft.run.started > limit:",
        "one execution too many",
    ),
    Mutation(
        SCHEDULE,
        "return (record.status, record.visit, record.fence) == (Status.RUNNING, visit, fence)",
        "return (record.status, record.visit) == (Status.RUNNING, visit)",
        "a worker that lost its lease still writes",
    ),
    Mutation(
        SCHEDULE,
        "return record.unseen > 0 and (draft.shape(node).each or not record.questions)",
        "return record.unseen > 0",
        "a node goes on at the first of its answers",
    ),
    Mutation(
        SCHEDULE,
        "    unseen = record.unseen + len(record.questions) - len(left)\n",
        "    unseen = record.unseen\n",
        "an answer wakes nobody",
    ),
    Mutation(
        SCHEDULE,
        "    if lost.crashes >= CRASH_BUDGET:",
        "    if lost.crashes > CRASH_BUDGET:",
        "a node kills one worker more than it may",
    ),
    # -- the scripts -------------------------------------------------------------------------------
    Mutation(
        LUA + "parts/arrive.lua",
        "if arrived >= at.needs and alive == 0 then",
        "if alive == 0 then",
        "a join is skipped at its first dead edge",
    ),
    Mutation(
        LUA + "parts/arrive.lua",
        "return found[1] == round(d, scope) and found or {round(d, scope), 0, 0}",
        "return found",
        "a loop's round counts arrivals of the round before",
    ),
    Mutation(
        LUA + "parts/turn.lua",
        "for _, outer in ipairs(at.outer) do go_on = go_on and #loop(d, outer).asked == 0 end",
        "",
        "an inner loop goes on though an outer one was asked",
    ),
    Mutation(
        LUA + "parts/held.lua",
        "return record.status == 'running' and record.visit == visit and record.fence == fence",
        "return record.status == 'running' and record.visit == visit",
        "a worker that lost its lease still writes",
    ),
    Mutation(
        LUA + "parts/resolve.lua",
        "return unseen > 0 and (#left == 0 or shape(d, 'n:' .. name).each)",
        "return unseen > 0",
        "a node goes on at the first of its answers",
    ),
    Mutation(
        LUA + "parts/finish.lua",
        "if d.run.stopping == '' then spread(d, name) end",
        "spread(d, name)",
        "a run that stops settles what follows",
    ),
    Mutation(
        LUA + "parts/straight_targets.lua",
        "if (live and edge[3]) or (arrived >= edge[2] and alive > 0) then",
        "if live or (arrived >= edge[2] and alive > 0) then",
        "a join of all does not wait for all, on the straight way",
    ),
    Mutation(
        LUA + "parts/lost.lua",
        "if record.crashes + 1 < CRASHES then",
        "if record.crashes < CRASHES then",
        "a node kills one worker more than it may",
    ),
)
