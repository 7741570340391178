"""Transactions on runs in Redis: optimistic concurrency control over two scripts.

A request runs in Python, and one script commits all of it or nothing:

1. Read. `lua/look.lua` reads at one moment what the request will need: its read set (`ReadSet`). Where a
   plan asks for more it goes on as if that were absent, and its result is thrown away; the missing values
   are read in one request, another look, and the plan runs from its beginning.
2. Plan. The scheduler's transitions see a run as `RunInTransaction` and fill the write set (`WriteSet`).
   `WriteSet.read` notes the value in `expected`: it must not change until the commit. `read_unvalidated`
   notes nothing. Where only a part of a text matters, a pattern of it is noted.
3. Validate and commit. `lua/commit.lua` compares `expected`, `patterns` and `scores` (which due_timers.py
   and archive_queue.py fill) with what is stored, `deadline` with the time and `limit_positions` with the
   queues of limits. If all of them hold it writes, rings doorbells and replies "done"; otherwise it writes
   nothing and replies "changed". It replies "full" where a run of `bounded_roots` has no room for its
   `sizes`: then nothing was written either, and store.py raises PayloadTooLarge. Counters of runs and
   arrivals at joins are not compared: the script adds to them, and validates only that the status, or the
   readiness, is the planned one. So nodes of the same run rarely conflict.
4. Retry. After a conflict the whole read set is read again at one moment, and the plan runs on that. A
   conflict means that another request was committed, so the store makes progress, but one request could
   lose again and again: retries are bounded (`TRIES`), and wait from `IMMEDIATE_TRIES` on. A request that
   stops a run, and so reads all of its nodes, leaves that to a timer after `DEFER_CANCEL_AFTER` conflicts.

A request that can guess what it would read *speculates*: its read set is filled without a look, by
`FastPath.speculate` or for a new run by `_speculate` in requests.py. After a wrong guess everything is read,
as after a conflict, but it counts as none and nothing waits. `fast/` has the claims and settles that need no
transaction.
"""
