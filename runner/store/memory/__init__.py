"""The store in memory: the reference implementation."""
