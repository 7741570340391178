"""What a piece of work costs: time, processor time, bytes, and commands of Redis."""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from time import monotonic, process_time
from typing import Self
from urllib.parse import parse_qs, urlsplit

import redis

TICKS = os.sysconf("SC_CLK_TCK")
LINE = re.compile(rb'^\+?[\d.]+ \[(\d+) (\S+)\] "([\w|]+)"(?: "([\w|-]+)")?')
WITH_SUBCOMMAND = {b"client", b"config", b"script", b"xgroup", b"xinfo"}
IGNORED = {"hget", "llen", "zcard"}
"""What programs here ask while they wait; no worker of either kind sends these on its own."""


@dataclass(frozen=True)
class Cost:
    """The cost of one node or task: seconds, microseconds of processor time, bytes."""

    rate: float
    python_us: float
    redis_us: float
    bytes_in: float


def middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Take the median of each figure."""
    return {name: median(figures[name] for figures in rounds) for name in rounds[0]}


def percentiles(times: list[float]) -> dict[str, float]:
    """Sum times up: the middle one, and those that 95 and 99 of a hundred stay below."""
    cuts = quantiles(times, n=100)
    return {"p50": median(times), "p95": cuts[94], "p99": cuts[98], "count": len(times)}


GONE = FileNotFoundError, ProcessLookupError
"""What reading of a thread or a process raises that has ended since it was listed."""


def tree_cpu(pid: int) -> float:
    """Return the processor seconds of a process and of all below it, ended children included."""
    own = _cpu(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        children: list[str] = []
        with suppress(*GONE):
            children = (task / "children").read_text().split()
        for child in children:
            with suppress(*GONE):
                own += tree_cpu(int(child))
    return own


def _cpu(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(part) for part in parts[11:15]) / TICKS


def server_cpu(server: redis.Redis) -> float:
    """Return the processor seconds that a Redis server has used."""
    usage = server.info("cpu")
    return usage["used_cpu_user"] + usage["used_cpu_sys"]


def measure(
    server: redis.Redis, pid: int, nodes: int, work: Callable[[], object], *more: int
) -> dict[str, float]:
    """Do the work once and return its cost for each of its nodes; this process's time is Python's, too.

    `pid` and `more` are the workers.
    """
    pids = pid, *more
    received = server.info("stats")["total_net_input_bytes"]
    used, python, own = server_cpu(server), sum(map(tree_cpu, pids)), process_time()
    began = monotonic()
    work()
    spent = monotonic() - began
    python_spent = sum(map(tree_cpu, pids)) - python + process_time() - own
    cost = Cost(
        rate=nodes / spent,
        python_us=python_spent / nodes * 1e6,
        redis_us=(server_cpu(server) - used) / nodes * 1e6,
        bytes_in=(server.info("stats")["total_net_input_bytes"] - received) / nodes,
    )
    return asdict(cost)


class Monitor:
    """Counts commands of one database, those that clients send apart from those inside scripts.

    A transaction sent as MULTI ... EXEC is one round trip, everything else is one each.
    """

    def __init__(self, url: str) -> None:
        """Take the address as redis-py reads it."""
        self._url = url
        path = parse_qs(urlsplit(url).query).get("db") or [
            urlsplit(url).path.lstrip("/") or "0"
        ]
        self._database = path[0].encode() if urlsplit(url).scheme == "unix" else b"0"
        self.sent: list[str] = []
        self.inside: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._client = redis.Redis.from_url(self._url)
        self._connection = self._client.connection_pool.make_connection()
        self._connection.connect()
        self._connection.send_command("MONITOR")
        self._connection.read_response()
        return self

    def __exit__(self, *_: object) -> None:
        """Read up to a mark that is sent now: everything before it has been counted then."""
        mark = secrets.token_hex(8)
        self._client.execute_command("ECHO", mark)
        while mark.encode() not in (line := self._line()):
            self._count(line)
        self._connection.disconnect()
        self._client.close()

    def _line(self) -> bytes:
        line = self._connection.read_response()
        return line if isinstance(line, bytes) else str(line).encode()

    def _count(self, line: bytes) -> None:
        match = LINE.match(line)
        if match is None or match[1] != self._database:
            return
        name = match[3].lower()
        if name in WITH_SUBCOMMAND and match[4]:
            name += b"|" + match[4].lower()
        if match[2] == b"lua":
            self.inside[name.decode()] += 1
        elif name.decode() not in IGNORED:
            self.sent.append(name.decode())

    @property
    def trips(self) -> int:
        """How many round trips there were."""
        inside, trips = False, 0
        for name in self.sent:
            if name == "multi":
                inside = True
            elif name == "exec":
                inside = False
                trips += 1
            elif not inside:
                trips += 1
        return trips
