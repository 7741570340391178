"""The store in Redis: it applies the scheduler's rules to read data, and scripts validate and write."""
