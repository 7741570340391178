"""Faults to plant, one line each: what the property tests must catch.

Every mutation is a file or a folder below the package `runner`, a text that occurs in it once, what stands
there instead, and what then goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One planted fault, and what must find it.

    That is a `test`, as pytest takes it, or else a slice: that of graphs, of maps, or of loops' exits.
    """

    file: str
    old: str
    new: str
    breaks: str
    slice: str = "graphs"
    test: str = ""


OF = "scheduler/"
LUA = "store/lua/"

MUTATIONS = (
    # -- the scheduler -----------------------------------------------------------------------------
    Mutation(
        OF + "arrivals.py",
        "if arrivals >= shape.needs and not alive:",
        "if not alive:",
        "a join is skipped at its first dead edge",
    ),
    Mutation(
        OF + "arrivals.py",
        "elif (live and shape.join is Join.ANY) or (arrivals >= shape.needs and alive):",
        "elif live or (arrivals >= shape.needs and alive):",
        "a join of all does not wait for all",
    ),
    Mutation(
        OF + "arrivals.py",
        "    if record.status is not Status.PENDING:\n        return\n    if arrivals",
        "    if arrivals",
        "a join of any runs at each arrival",
    ),
    Mutation(
        OF + "arrivals.py",
        "        if earlier.stamp != stamp:\n            earlier = Arrivals(stamp)\n",
        "",
        "a loop's round counts arrivals of the round before",
    ),
    Mutation(
        OF + "arrivals.py",
        "if loop.asked and not any(changes.loop(outer).asked for outer in shape.outer):",
        "if loop.asked:",
        "an inner loop goes on though an outer one was asked",
    ),
    Mutation(
        OF + "arrivals.py",
        "        if (source, position) not in exits:\n",
        "        if True:\n",
        "an exit that was taken arrives dead, too",
        "exits",
    ),
    Mutation(
        OF + "arrivals.py",
        "changes.loops[outer] = replace(around, settled=around.settled - shape.size)",
        "changes.loops[outer] = around",
        "the outer loop ends while the inner one repeats",
    ),
    Mutation(
        OF + "lifecycle.py",
        "if not changes.run.stopping and (topology",
        "if (topology",
        "a run that stops settles what follows",
    ),
    Mutation(
        OF + "arrivals.py",
        "if limit and changes.run.started >= limit:",
        "if limit and changes.run.started > limit:",
        "one execution too many",
    ),
    Mutation(
        OF + "changes.py",
        "return (record.status, record.visit, record.fence) == (Status.RUNNING, visit, fence)",
        "return (record.status, record.visit) == (Status.RUNNING, visit)",
        "a worker that lost its lease still writes",
    ),
    Mutation(
        OF + "questions.py",
        "return record.unseen > 0 and (changes.shape(node).each or not record.questions)",
        "return record.unseen > 0",
        "a node goes on at the first of its answers",
    ),
    Mutation(
        OF + "questions.py",
        "    unseen = record.unseen + len(record.questions) - len(still_open)\n",
        "    unseen = record.unseen\n",
        "an answer wakes nobody",
    ),
    Mutation(
        OF + "timers.py",
        "    if lost.crashes >= CRASH_BUDGET:",
        "    if lost.crashes > CRASH_BUDGET:",
        "a node kills one worker more than it may",
    ),
    # -- the scripts -------------------------------------------------------------------------------
    Mutation(
        LUA + "apply.lua",
        "if pending and ((live > 0 and kind == ANY) or arrived >= needs) then",
        "if pending and (live > 0 or arrived >= needs) then",
        "a join of all does not wait for all, in a plan",
    ),
    Mutation(
        LUA + "apply.lua",
        "      if tonumber(round) == stamp then\n",
        "      do\n",
        "a loop's round counts arrivals of the round before, in a plan",
    ),
    Mutation(
        LUA + "commit.lua",
        "arrived, alive = arrived + more, alive + live",
        "alive = alive + live",
        "a transaction adds no arrivals",
    ),
    Mutation(
        LUA + "commit.lua",
        "local a, w, h, f = active + more[1],",
        "local a, w, h, f = active,",
        "a transaction does not count which nodes are active",
    ),
    # -- maps, in the scheduler --------------------------------------------------------------------
    Mutation(
        OF + "maps.py",
        "at_window = shape and 0 < shape.window <= items.active",
        "at_window = shape and 0 < shape.window < items.active",
        "one item more is at work than may be",
        "maps",
    ),
    Mutation(
        OF + "maps.py",
        "        changes.maps[owner] = replace(items, failed=items.failed + 1, stopped=stops_map)\n",
        "        changes.maps[owner] = replace(items, failed=items.failed + 1)\n",
        "a failed item does not stop its map",
        "maps",
    ),
    Mutation(
        OF + "lifecycle.py",
        "        count_failure(changes, owner, status)\n        return\n",
        "        count_failure(changes, owner, status)\n",
        "a failed item is a failed node of the run",
        "maps",
    ),
    Mutation(
        OF + "waits.py",
        "    if items.visit != visit and total is None:",
        "    if total is None:",
        "a map that goes on with its items has none",
        "maps",
    ),
    Mutation(
        OF + "waits.py",
        "changes.maps[node] = items if items.visit == visit else MapRecord(visit, total or 0)",
        "changes.maps[node] = MapRecord(visit, total or 0)",
        "a second list of a visit begins the items anew",
        "maps",
    ),
    Mutation(
        OF + "maps.py",
        "    if items.stopped:\n        changes.maps[node] = MapRecord(items.visit, items.total)\n",
        "    if items.stopped:\n        pass\n",
        "a map that stopped and is tried again stays stopped",
        "maps",
    ),
    Mutation(
        OF + "maps.py",
        "    elif record.status in {Status.FAILED, Status.CANCELLED}:\n",
        "    elif record.status is Status.FAILED:\n",
        "a map that is tried again leaves its cancelled items out",
        "maps",
    ),
    Mutation(
        OF + "maps.py",
        "if changes.node(item).visit == items.visit and changes.node(item).status in IDLE:",
        "if changes.node(item).visit == items.visit and changes.node(item).status is Status.READY:",
        "questions of a stopped map stay open",
        "maps",
    ),
    Mutation(
        OF + "changes.py",
        "bool(owner) and changes.map(owner).stopped",
        "False",
        "an item of a stopped map goes on",
        "maps",
    ),
    # -- maps, in the scripts ----------------------------------------------------------------------
    Mutation(
        LUA + "apply.lua",
        "      if busy + rest == 0 then return {'other'} end\n",
        "",
        "a map is not rung when its last item has ended, in a plan",
        "maps",
    ),
)
