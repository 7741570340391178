"""Levels of safety that a write must reach before it is acknowledged: see docs/decisions/0010-durability.md.

`fast` trusts the server's reply. `fsync` waits until its append-only file is on its disk, `replica`
until a replica has the write. Both ask on the connection that wrote, since the answer is about that
connection. Both write a mark first: otherwise a repeat that had nothing to write would wait for nothing.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import redis

from runner.errors import NotDurable, StoreError

log = logging.getLogger(__name__)

FAST = "fast"
FSYNC = "fsync"
REPLICA = "replica"

ASKS = {FSYNC: ("WAITAOF", 1, 0), REPLICA: ("WAIT", 1)}

WHO = {FSYNC: "its disk did not confirm it", REPLICA: "no replica confirmed it"}

WORKERS_OWN = frozenset(
    {
        "claim",
        "shelve",
        "save",
        "ask",
        "park",
        "settle",
        "retry",
        "expand",
        "hold",
        "hand",
        "sent",
        "spend",
        "use",
    }
)
"""The requests that a worker makes for a node that it holds or claims."""

ACKNOWLEDGED = WORKERS_OWN - {"claim", "shelve"} | {
    "answer",
    "cancel",
    "fork",
    "hold_slot",
    "keep_early",
    "remove",
    "report",
    "rewrite",
    "session_add",
    "start",
    "withdraw",
}
"""The requests whose reply is a promise. A claim isn't: if it is lost, the node is claimed again.

A slot that is counted on another server than the run's is a promise: if it were lost but the claim weren't,
two nodes would have it.
"""

WAIT_MS = 1000

WITHIN = 2.0
"""Seconds that a caller waits: longer than a server needs if it syncs its file each second."""

SAID_EVERY = 30.0
"""Seconds after which a worker that still waits logs it again."""

OLDEST = (7, 2)
"""The first version that can wait for its disk."""


class Durability:
    """One level for one partition: `fsync` or `replica`. For `fast` no object is made."""

    def __init__(self, level: str, mark: str, place: str, *, patient: bool) -> None:
        """Take the key of the mark; with `patient` a worker waits for as long as it takes."""
        self.level = level
        self._mark = mark
        self._place = place
        self._patient = patient
        self._able = level != FSYNC

    def covers(self, verb: str) -> bool:
        """Return whether a request is only done when it is durable."""
        return verb in ACKNOWLEDGED

    def prepare(self, connection: Any) -> None:
        """Check once whether the server supports the level.

        Raises:
            StoreError: it can't; nothing was written.
        """
        if self._able:
            return
        info = connection.call("INFO").decode(errors="replace")
        why = incapable(dict(line.split(":", 1) for line in info.splitlines() if ":" in line))
        if why:
            refused = StoreError(
                f"The store at {self._place} can't keep RUNNER_DURABILITY=fsync: {why}. Nothing was done. "
                "Set appendonly yes on a Redis 7.2 or newer or a Valkey, or choose another level."
            )
            refused.passing = False
            raise refused
        self._able = True

    def confirm(self, connection: Any, verb: str) -> None:
        """Wait until all earlier writes of the connection are safe.

        Raises:
            NotDurable: they aren't within the request's time.
        """
        ends = time.monotonic() + WITHIN
        waits = self._patient and verb in WORKERS_OWN
        _send(connection, "SET", self._mark, self.level)
        while not self._reached(connection):
            if time.monotonic() < ends:
                continue
            if not waits:
                raise self._missed(f"{WHO[self.level]} within {WITHIN:g} s")
            ends += SAID_EVERY
            log.warning(
                "store.not_durable: %s, so this node waits with its result (%s). It continues by itself. "
                "Check the store at %s; RUNNER_DURABILITY is %s.",
                WHO[self.level],
                verb,
                self._place,
                self.level,
            )

    def _reached(self, connection: Any) -> bool:
        try:
            reply = _send(connection, *ASKS[self.level], WAIT_MS)
        except redis.ResponseError as error:
            if "UNBLOCKED" in str(error):
                # The server is no longer the primary: the request is repeated at the new one.
                raise redis.ConnectionError(str(error)) from error
            raise self._missed(str(error)) from error
        return bool(reply[0] if isinstance(reply, list) else reply)

    def _missed(self, why: str) -> NotDurable:
        return NotDurable(
            f"The store at {self._place} has written the request, but {why}, so a crash may still lose it "
            f"(RUNNER_DURABILITY={self.level}). It does not count as accepted. Repeat it with the same "
            "idempotency key: it takes effect once, and is acknowledged when it is safe."
        )


def incapable(info: dict[str, str]) -> str:
    """Return why a server can't wait for its disk, by its INFO; "" if it can."""
    version = info.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return f"version {version} can't be asked"
    return "" if info.get("aof_enabled") == "1" else "its append-only file is off"


def _send(connection: Any, *command: str | int) -> Any:
    connection.send_command(*command, check_health=False)
    return connection.read_response()
