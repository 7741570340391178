"""The store in memory, of a run in process."""
