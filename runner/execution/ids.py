"""New names: run ids that sort by time and name their partition, and nonces."""

from __future__ import annotations

import base64
import os

import uuid_utils

PARTITION_DIGITS = 2


def run_id(partition: int = 0) -> str:
    """Make a run id: two digits of partition, then a UUID version 7 in 26 letters and digits.

    The alphabet of base32hex keeps the order of the bytes, so ids sort by time. Ids are no secrets.
    """
    letters = base64.b32hexencode(uuid_utils.uuid7().bytes).decode("ascii").rstrip("=").lower()
    return f"{partition:0{PARTITION_DIGITS}d}{letters}"


def nonce() -> str:
    """Make a text that no other request has."""
    return base64.urlsafe_b64encode(os.urandom(12)).decode("ascii")
