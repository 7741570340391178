"""Files in the arguments of calls: texts in base64, which pages name with their kind and their size."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import Any

from runner.immutable import immutable

BASE64 = re.compile(r"(?:data:[\w.+/-]+;base64,)?([A-Za-z0-9+/\r\n]{1000,}={0,2})\s*", re.ASCII)

KINDS = {"JVBERi": "pdf", "iVBORw": "png", "/9j/": "jpg", "R0lGOD": "gif", "UEsDB": "zip"}
"""Kinds of files by the beginning of their base64."""


@immutable
class Base64File:
    """A file: its kind as the end of a file name, its size in bytes, and its base64."""

    kind: str
    size: int
    text: str


def file_of(value: Any) -> Base64File | None:
    """Return the file that a value is; None for any other value, and for a short one."""
    match = BASE64.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        text = "".join(match[1].split())
        with suppress(ValueError):
            size = len(base64.b64decode(text, validate=True))
            kinds = (kind for start, kind in KINDS.items() if text.startswith(start))
            return Base64File(next(kinds, "bin"), size, text)
    return None
