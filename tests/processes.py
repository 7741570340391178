"""Programs of ours as processes of their own, and looking at processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS = 150
"""Within these a program of ours ends that starts a worker and waits for its runs."""


def run_module(
    module: str, *arguments: str, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a module to its end and give what it said."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not yet collected does not."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:  # noqa: PTH123 - one line
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # no /proc on this system
        return True
