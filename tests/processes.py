"""Looking at processes of this machine."""

from __future__ import annotations

import os


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
