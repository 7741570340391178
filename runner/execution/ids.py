"""New names: run ids that sort by time and name their partition, and nonces."""

from __future__ import annotations

import base64
import itertools
import os
import time
from collections.abc import Iterator

import uuid_utils

from runner.records import run_ids
from runner.records.run_ids import PARTITION_DIGITS


def run_id(partition: int = 0, letters: str = "") -> str:
    """Make a run id: two digits of partition, then a UUID version 7 in 26 letters and digits.

    The alphabet of base32hex keeps the order of the bytes, so ids sort by time. Ids are no secrets.
    `letters` are those of a signed start, see `proofs.run_name`, or of one with a key, see `keyed`.
    """
    letters = (
        letters
        or base64.b32hexencode(uuid_utils.uuid7().bytes).decode("ascii").rstrip("=").lower()
    )
    return f"{partition:0{PARTITION_DIGITS}d}{letters}"


def keyed(*names: str | int) -> str:
    """Return the letters of a new run whose effects are named by these names, see `run_ids`."""
    return run_ids.keyed(time.time_ns() // 1_000_000, *names)


def nonce() -> str:
    """Make a text that no other request has.

    A random beginning of 72 bits and a number, so that most cost no system call. A fork would repeat both:
    the child is known by its process id, which no other living process has, and begins again. Threads may
    begin again at once; each then counts on from a beginning of its own.
    """
    global _source  # noqa: PLW0603 - one for the process
    source = _source
    if source[0] != os.getpid():
        source = _source = _begin()
    return f"{source[1]}{next(source[2])}"


def _begin() -> tuple[int, str, Iterator[int]]:
    """Return this process's id, a random text of fixed length, and numbers."""
    return (
        os.getpid(),
        base64.urlsafe_b64encode(os.urandom(9)).decode("ascii"),
        itertools.count(),
    )


_source = _begin()
