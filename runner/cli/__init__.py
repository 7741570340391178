"""The `runner` command. Its modules import heavy dependencies only where used, so that help is quick."""

from __future__ import annotations

import gc
import os
import sys

ALLOCATIONS = 200_000
"""Allocations that trigger a garbage collection: about as many as a command's imports make."""


METADATA = ("celery_graph_runner-", ".dist-info")
"""Start and end of the folder name that pip installs beside the library; the version is between them."""


def main(name: str = "runner") -> None:
    """Run the command line, called by this name, and exit with its code, which `runner.cli.exits` lists."""
    if sys.argv[1:] == ["--version"] and (version := _installed_version()):
        # Importing the commands takes ten times as long; they find a version that isn't found here.
        print(f"runner {version}")  # noqa: T201 - modules that write output aren't imported
        return
    # Imported objects stay, so searching them for garbage, during the imports and again at exit, finds
    # nothing and was a fifth of a short command's time. A command that watches still collects.
    gc.set_threshold(ALLOCATIONS)
    from runner.cli.program import runner

    try:
        runner.main(prog_name=name)
    finally:
        gc.freeze()


def _installed_version() -> str:
    start, end = METADATA
    entries = (
        entry for folder in filter(os.path.isdir, sys.path) for entry in os.scandir(folder)
    )
    names = (entry.name for entry in entries if entry.name.startswith(start))
    return next((name[len(start) : -len(end)] for name in names if name.endswith(end)), "")
