"""Bytes that count for the size of a run, besides its values: keys, records, events.

The size of a run with all runs inside it is counted at the outermost one, in its field `size`: bytes of what
was given to it, of what its nodes and people leave in it and of what nodes keep.
"""

RUN_BYTES, VISIT_BYTES, MESSAGE_BYTES = 1024, 300, 50
"""Bytes of a run, of a settled visit and of a stored message.

Measured; `test_a_run_counts_about_what_it_takes` compares the sums with the server's. The last one
stands in store/lua/save.lua, too.
"""
