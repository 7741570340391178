"""What a Redis server says of itself, for `runner doctor`: only what INFO tells every client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.errors import StoreError
from runner.store.durability import incapable
from runner.store.keys import Keys
from runner.store.link import Link


@dataclass(frozen=True, slots=True)
class Vitals:
    """One server. `now` is its time in ms; memory is in bytes, `memory_limit` 0 without a limit.

    `overdue` says for how many ms the oldest timer has been waiting for a sweep. `fsync` is "always",
    "everysec" or "no", and "" where the server doesn't tell, as some hosted ones. `unable` says why it
    can't wait for its disk, `least_replicas` without how many it refuses writes, None when it doesn't tell.
    """

    server: str
    version: tuple[int, int]
    now: int
    policy: str
    appendonly: bool
    memory: int
    memory_limit: int
    overdue: int
    fsync: str = ""
    unable: str = ""
    replicas: int = 0
    least_replicas: int | None = None

    @property
    def forgets(self) -> bool:
        """Whether runs that wait are thrown away when memory is full."""
        return self.policy.startswith("allkeys")


def vitals(url: str) -> Vitals:
    """Ask a server how it is.

    Raises:
        StoreError: it can't be reached.
    """
    link = Link(url)
    try:
        told = _info(link.call("INFO"))
        seconds, micros = link.call("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        fsync, least = _setting(link, "appendfsync"), _setting(link, "min-replicas-to-write")
        oldest = link.call("ZRANGE", f"{Keys().prefix}timers", 0, 0, "WITHSCORES")
    finally:
        link.close()
    name = "Valkey" if "valkey_version" in told else "Redis"
    said = told.get("valkey_version") or told.get("redis_version", "0.0")
    major, minor = (int(part) for part in (said + ".0").split(".")[:2])
    return Vitals(
        server=f"{name} {said}",
        version=(major, minor),
        now=now,
        policy=told.get("maxmemory_policy", ""),
        appendonly=told.get("aof_enabled") == "1",
        memory=int(told.get("used_memory", 0)),
        memory_limit=int(told.get("maxmemory", 0)),
        overdue=max(0, now - int(float(oldest[1]))) if oldest else 0,
        fsync=fsync,
        unable=incapable(told),
        replicas=int(told.get("connected_slaves", 0)),
        least_replicas=int(least) if least else None,
    )


def _setting(link: Link, name: str) -> str:
    try:
        told = link.call("CONFIG", "GET", name)
    except StoreError:
        return ""
    return bytes(told[1]).decode() if told else ""


def _info(told: Any) -> dict[str, str]:
    lines = bytes(told).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
