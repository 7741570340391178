"""API keys of `runner server`: the file that lists them, and the times of their last use."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from runner.errors import UsageError
from runner.immutable import immutable
from runner.store.shared import Shared


@immutable
class ApiKey:
    """An API key, by its hash. `used_at` is its last use, to the minute; 0 means never."""

    name: str
    hash: str
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    expires_at: int
    used_at: int = 0


def read_keys(path: Path) -> list[ApiKey]:
    """Read the keys of a file, without their uses.

    Raises:
        UsageError: the file can't be read.
    """
    try:
        return [
            ApiKey(
                entry["name"],
                entry["hash"],
                tuple(entry["roles"]),
                tuple(entry.get("groups", ())),
                _milliseconds(entry["expires"]) if "expires" in entry else 0,
            )
            for entry in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the API keys in {path} can't be read: {error!r}. The file is a JSON list of "
            "entries as `runner server --new-key NAME` prints them."
        ) from error


def list_keys(path: Path, shared: Shared) -> list[ApiKey]:
    """Read the keys of a file, with each key's last use at any server of the store.

    Raises:
        UsageError: the file can't be read.
        StoreError: the store can't be reached.
    """
    uses = shared.key_uses()
    return [replace(key, used_at=uses.get(key.hash, 0)) for key in read_keys(path)]


def _milliseconds(time: str) -> int:
    """Parse a time, as UTC if it has no zone."""
    moment = datetime.fromisoformat(time)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
