"""Stored values: runs, interrupts, outcomes, failures, messages and their encoding. Pure."""
