"""The `runner` command: every module here imports its heavy parts where they are used, for quick help."""

from __future__ import annotations

import gc
import os
import sys

ALLOCATIONS = 200_000
"""Objects made since the last collection of garbage that begin another: about what a command imports."""


METADATA = ("celery_graph_runner-", ".dist-info")
"""The name of the folder that pip installs beside the library has its version in the middle."""


def main() -> None:
    """Run the command line and leave with its exit code; see `runner.cli.exits` for the codes."""
    if sys.argv[1:] == ["--version"] and (version := _installed_version()):
        # Without importing the commands, which takes ten times as long; what isn't found here, they find.
        print(f"runner {version}")  # noqa: T201 - nothing that writes output is imported
        return
    # What is imported stays: searching it for garbage, while it grows and again at exit, finds nothing, and
    # was a fifth of the time of a short command. One that watches still collects.
    gc.set_threshold(ALLOCATIONS)
    from runner.cli.program import runner

    try:
        runner.main(prog_name="runner")
    finally:
        gc.freeze()


def _installed_version() -> str:
    start, end = METADATA
    entries = (
        entry for folder in filter(os.path.isdir, sys.path) for entry in os.scandir(folder)
    )
    names = (entry.name for entry in entries if entry.name.startswith(start))
    return next((name[len(start) : -len(end)] for name in names if name.endswith(end)), "")
