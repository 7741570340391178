"""The store in Redis: one script for each transition."""
