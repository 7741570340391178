"""Bytes that count for the size of a run, besides its values: keys, records, events.

The size of a run with all runs inside it is counted at the outermost run, in its field `size`: bytes of its
input, of the results and answers that nodes and people leave in it, and of the documents that nodes keep.
"""

RUN_BYTES, VISIT_BYTES, MESSAGE_BYTES = 1024, 300, 50
"""Bytes of a run, of a settled visit and of a stored message.

Measured; `test_a_run_counts_about_what_it_takes` compares the sums with the server's. The last value
is repeated in store/lua/save.lua.
"""
