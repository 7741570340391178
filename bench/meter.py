"""What a piece of work costs: time, processor time, bytes, and commands sent to Redis."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Self

import redis

TICKS = os.sysconf("SC_CLK_TCK")
LINE = re.compile(rb'^\+?[\d.]+ \[(\d+) (\S+)\] "(\w+)"', re.MULTILINE)
IGNORED = {b"hget", b"llen", b"zcard"}
"""What this program asks while it waits; no worker of either kind sends these on its own."""


@dataclass(frozen=True)
class Cost:
    """The cost of one node or task: seconds, microseconds of processor time, bytes, commands."""

    rate: float
    python_us: float
    redis_us: float
    bytes_in: float
    commands: float
    trips: float


def middle(costs: list[Cost]) -> Cost:
    """Take the median of each figure."""
    return Cost(*(median(getattr(cost, field.name) for cost in costs) for field in fields(Cost)))


def tree_cpu(pid: int) -> float:
    """Return the processor seconds of a process and of all below it, ended children included."""
    own = _cpu(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except FileNotFoundError:  # a thread that has just ended
            continue
        own += sum(tree_cpu(int(child)) for child in children)
    return own


def _cpu(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(part) for part in parts[11:15]) / TICKS


class Monitor:
    """Counts the commands that clients send to one database; what scripts do inside is not counted.

    A transaction sent as MULTI ... EXEC is one round trip, everything else is one each.
    """

    def __init__(self, socket_path: str, database: int) -> None:
        self._connection = redis.UnixDomainSocketConnection(path=socket_path)
        self._database = str(database).encode()
        self._seen: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._connection.connect()
        self._connection.send_command("MONITOR")
        self._connection.read_response()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.2)  # the last lines are on their way
        self._connection.disconnect()

    def _read(self) -> None:
        try:
            while True:
                line = self._connection.read_response()
                found = LINE.match(line if isinstance(line, bytes) else line.encode())
                if found and found[1] == self._database and found[2] != b"lua":
                    self._seen.append(found[3].lower())
        except (OSError, redis.RedisError, AttributeError, ValueError):
            return

    def counts(self) -> tuple[int, int]:
        """Return how many commands and how many round trips there were."""
        commands = [name for name in self._seen if name not in IGNORED]
        inside, trips = False, 0
        for name in commands:
            if name == b"multi":
                inside = True
            elif name == b"exec":
                inside = False
                trips += 1
            elif not inside:
                trips += 1
        return len(commands), trips


def measure(server: redis.Redis, pid: int, nodes: int, work: Callable[[], None]) -> Cost:
    """Do the work once and return its cost for each of its nodes; commands are counted apart."""
    before, python, own = server.info(), tree_cpu(pid), time.process_time()
    began = time.monotonic()
    work()
    spent = time.monotonic() - began
    after = server.info()
    used = sum(after[key] - before[key] for key in ("used_cpu_user", "used_cpu_sys"))
    python_spent = tree_cpu(pid) - python + time.process_time() - own
    return Cost(
        rate=nodes / spent,
        python_us=python_spent / nodes * 1e6,
        redis_us=used / nodes * 1e6,
        bytes_in=(after["total_net_input_bytes"] - before["total_net_input_bytes"]) / nodes,
        commands=0,
        trips=0,
    )
