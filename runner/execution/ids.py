"""New run ids, which sort by time and name their partition."""

from __future__ import annotations

import base64
import time

import uuid_utils

from runner.records import run_ids
from runner.records.run_ids import PARTITION_DIGITS


def run_id(partition: int = 0, letters: str = "") -> str:
    """Make a run id: two digits of partition, then a UUID version 7 in 26 letters and digits.

    The alphabet of base32hex keeps the order of the bytes, so ids sort by time. Ids aren't secret.
    `letters` replaces the UUID for a signed start, see `proofs.run_name`, or a start with a key,
    see `keyed`.
    """
    letters = (
        letters
        or base64.b32hexencode(uuid_utils.uuid7().bytes).decode("ascii").rstrip("=").lower()
    )
    return f"{partition:0{PARTITION_DIGITS}d}{letters}"


def keyed(*names: str | int) -> str:
    """Return the letters of a new run whose effects take their keys from these names, see `run_ids`."""
    return run_ids.keyed(time.time_ns() // 1_000_000, *names)
