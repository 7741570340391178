"""The `runner` command: every module here imports its heavy parts where they are used, for quick help."""

from __future__ import annotations

import gc

ALLOCATIONS = 200_000
"""Objects made since the last collection of garbage that begin another: about what a command imports."""


def main() -> None:
    """Run the command line and leave with its exit code; see `runner.cli.exits` for the codes."""
    # What is imported stays: searching it for garbage, while it grows and again at exit, finds nothing, and
    # was a fifth of the time of a short command. One that watches still collects.
    gc.set_threshold(ALLOCATIONS)
    from runner.cli.program import runner

    try:
        runner.main(prog_name="runner")
    finally:
        gc.freeze()
