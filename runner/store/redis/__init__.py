"""The store in Redis: the scheduler's rules on what was read, and scripts that check and write."""
