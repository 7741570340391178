"""What Celery keeps of the code in a traceback is made once for each piece of code.

Billiard copies the place of every instruction of every function in a traceback: half a megabyte and a
millisecond or more for each task that raises, and all nodes that wait, are tried again or fail do. It lies
in circles, which Python finds late, so a worker seems to grow.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from billiard import einfo

KEPT = 1000
"""Pieces of code; a worker sees a few dozen."""


def share_code() -> None:
    """Let tracebacks share what they say of the same code; harmless twice."""
    frame: Any = einfo.Traceback.Frame
    if not isinstance(vars(frame)["Code"], staticmethod):
        frame.Code = staticmethod(lru_cache(KEPT)(frame.Code))
