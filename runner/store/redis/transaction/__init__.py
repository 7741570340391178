"""Transactions on runs in Redis: optimistic concurrency control over two scripts.

A request runs in Python, and one script commits all of it or nothing. Four scripts write before that, and
a conflict does not undo them: `reserve` (times under rates), `slot` (slots that another partition counts),
`shelve` (large values) and `unpack` (a packed run); none of them changes the run's meaning. A node that is
offered a slot starts in a later transaction.

1. Read. `lua/look.lua` reads the values that the request will need at one moment: its read set (`ReadSet`).
   If a plan asks for more, it continues as if the values were absent, and its result is thrown away; the
   missing values are read in one request, another look, and the plan runs again from its beginning.
2. Plan. The scheduler's transitions see a run as `RunInTransaction` and fill the write set (`WriteSet`).
   `WriteSet.read` notes the value in `expected`: it must not change until the commit. `read_unvalidated`
   notes nothing, and takes the reason (`Because`). If only a part of a text matters, a pattern or a
   beginning is noted.
3. Validate and commit. `lua/commit.lua` compares `expected`, `patterns` and `scores` (of timers and of the
   archive queue; with `FEWER` for a member the lengths of lists) with the stored values, `deadline` with the
   time and `limit_positions` with the queues of limits. If all of them hold, it writes, rings doorbells and
   replies "done"; otherwise it writes nothing and replies "changed". It replies "full" if a run of
   `bounded_roots` has no room for its `sizes`: then nothing was written either, and `RedisStore._call`
   raises PayloadTooLarge. Counters of runs and arrivals at joins are normally not compared: the script adds
   to them, and validates only that the status, or the readiness, is the planned one. So nodes of the same
   run rarely conflict. The field `run`, with the number of events, is compared as a whole if a run stops at
   once; so is a field of arrivals inside loops, or if the step changes their node.
4. Retry. After a conflict the whole read set is read again at one moment, and the plan runs on that. A
   conflict means that another request was committed, so the store makes progress, but one request could
   lose again and again: retries are bounded (`TRIES`), and wait from `IMMEDIATE_TRIES` on. A request that
   stops a run, and so reads all of its nodes, or that starts the next items of a map, leaves them to a timer
   after `DEFER_AFTER` conflicts. If a plan writes nothing, no commit validates it: its reply counts only
   after a single look.

A request that can guess its reads *speculates*: its read set is filled without a look, by
`FastPath.speculate` or for a new run by `_speculate` in store/redis/requests.py. After a wrong guess
everything is read, but the guess isn't counted as a conflict, and there is no wait. `fast/` has the claims
and settles that need no transaction.
"""
